"""Which offsets of a batch are new: trimmed, skipped, lost and reported, never judged twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.kafka.offsets import (
    End,
    Ends,
    Held,
    Loss,
    OffsetRange,
    TopicPartition,
    after_losses,
    ends_from_wire,
    ends_to_wire,
    new_offsets,
)

P0, P1, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("buys", 0)
IDS = {"clicks": "id-1", "buys": "id-2"}
LAST = 1_000


def held(
    earliest: dict[TopicPartition, int],
    latest: dict[TopicPartition, int] | None = None,
    ids: dict[str, str] | None = None,
) -> Held:
    """A cluster with these partitions; each ends far away unless `latest` says where."""
    return Held(IDS if ids is None else ids, earliest, dict.fromkeys(earliest, LAST) | (latest or {}))


places = st.builds(TopicPartition, st.sampled_from(["a", "b-1", "ä.b"]), st.integers(0, 12))


@given(st.dictionaries(places, st.builds(End, st.sampled_from(["x", "y"]), st.integers(0, 2**62), st.booleans())))
def test_ends_come_back_equal(ends: Ends) -> None:
    """Through the form of a commit record."""
    assert ends_from_wire(ends_to_wire(ends)) == ends


@pytest.mark.parametrize(("end", "new"), [(3, []), (4, []), (5, [(4, 5)]), (9, [(4, 9)])])
def test_a_batch_begins_where_judging_ended(end: int, new: list[tuple[int, int]]) -> None:
    """Both sides of the edge, four offsets being judged; an end below it moves nothing back."""
    found = new_offsets({P0: end}, {P0: End("id-1", 4)}, held({P0: 0}))
    assert [(taken.start, taken.end) for taken in found.ranges] == new
    assert (found.losses, found.ends) == ((), {P0: End("id-1", max(4, end))})


def test_source_order_is_topic_then_partition() -> None:
    """Numbers as numbers: partition 10 comes after partition 2."""
    ten, two = TopicPartition("clicks", 10), TopicPartition("clicks", 2)
    end = {ten: 1, two: 1, OTHER: 1}
    found = new_offsets(end, {}, held(dict.fromkeys(end, 0)))
    assert [taken.place for taken in found.ranges] == [OTHER, two, ten]


def test_a_new_partition_begins_at_its_earliest_offset() -> None:
    """The judged ends have none for it."""
    found = new_offsets({P0: 5, P1: 9}, {}, held({P0: 0, P1: 2}))
    assert found.ranges == (OffsetRange(P0, "id-1", 0, 5), OffsetRange(P1, "id-1", 2, 9))


def test_a_topic_is_known_as_a_whole_from_its_first_window_on() -> None:
    """A partition without records for it was there: it is not added later, with its deleted offsets lost."""
    there = held({P0: 0, P1: 5})
    found = new_offsets({P0: 5}, {}, there)
    assert found.ends == {P0: End("id-1", 5), P1: End("id-1", 5)}
    assert new_offsets({P0: 5, P1: 5}, found.ends, there).losses == ()


@pytest.mark.parametrize(
    ("earliest", "new", "lost"), [(4, (4, 9), None), (6, (6, 9), (4, 6)), (9, None, (4, 9)), (12, None, (4, 12))]
)
def test_what_the_broker_dropped_is_told(
    earliest: int, new: tuple[int, int] | None, lost: tuple[int, int] | None
) -> None:
    """Retention passed what was judged: which offsets, exactly."""
    found = new_offsets({P0: 9}, {P0: End("id-1", 4)}, held({P0: earliest}))
    assert [(taken.start, taken.end) for taken in found.ranges] == ([] if new is None else [new])
    assert [(loss.start, loss.end) for loss in found.losses] == ([] if lost is None else [lost])


def test_a_recreated_topic_is_reported_and_begins_again() -> None:
    """Its offsets mean other records, however equal the numbers."""
    judged = {P0: End("id-0", 7), P1: End("id-0", 3), TopicPartition("clicks", 2): End("id-0", 1)}
    found = new_offsets({P0: 9, P1: 3}, judged, held({P0: 0, P1: 1}))
    assert found.ranges == (OffsetRange(P0, "id-1", 0, 9), OffsetRange(P1, "id-1", 1, 3))
    why = "the topic was deleted and recreated; what followed in the old one is unknown"
    assert [str(loss) for loss in found.losses] == [
        f"clicks-0, from offset 7 on: {why}",
        f"clicks-1, from offset 3 on: {why}",
        f"clicks-2, from offset 1 on: {why}",
    ]
    assert found.ends == {P0: End("id-1", 9), P1: End("id-1", 3)}


def test_a_topic_that_is_recreated_while_a_window_is_planned_has_its_new_end() -> None:
    """The planned end is one of the old topic."""
    found = new_offsets({P0: 150}, {P0: End("id-0", 100)}, held({P0: 0}, {P0: 20}))
    assert found.ranges == (OffsetRange(P0, "id-1", 0, 20),)
    assert found.ends == {P0: End("id-1", 20)}
    later = new_offsets({P0: 25}, found.ends, held({P0: 0}, {P0: 25}))
    assert (later.ranges, later.losses) == ((OffsetRange(P0, "id-1", 20, 25),), ())


def test_a_topic_that_is_gone_is_told_once() -> None:
    """When it comes again under another id it begins again, and that is no other loss; with its own id it goes on."""
    judged = {P0: End("id-1", 7), OTHER: End("id-2", 4)}
    ends, losses = after_losses(judged, held({OTHER: 0}, ids={"buys": "id-2"}))
    assert [str(loss) for loss in losses] == [
        "clicks-0, from offset 7 on: the topic is gone, and what may have followed with it"
    ]
    assert ends == {P0: End("id-1", 7, is_gone=True), OTHER: End("id-2", 4)}
    assert after_losses(ends, held({OTHER: 0}, ids={"buys": "id-2"})) == (ends, ())
    assert after_losses(ends, held({P0: 0, OTHER: 0}))[0][P0] == End("id-1", 7)
    anew, reported = after_losses(ends, held({P0: 0, OTHER: 0}, ids={"clicks": "id-9", "buys": "id-2"}))
    assert (anew[P0], reported) == (End("id-9", 0), ())


def test_what_the_broker_cut_off_is_told_and_its_offsets_are_judged_when_they_come_again() -> None:
    """An unclean leader: the same topic ends before what was judged of it."""
    ends, losses = after_losses({P0: End("id-1", 9)}, held({P0: 0}, {P0: 6}))
    assert [str(loss) for loss in losses] == [
        "clicks-0: 3 offsets, from 6 to 8: the broker has lost what it had acknowledged"
    ]
    assert ends == {P0: End("id-1", 6)}


def test_a_topic_that_was_never_judged_can_be_lost_too() -> None:
    """It came and went between two looks at the cluster; one that was recreated meanwhile has fewer records."""
    gone = new_offsets({P0: 5}, {}, held({}, ids={}))
    assert [(loss.start, loss.end) for loss in gone.losses] == [(0, 5)]
    anew = new_offsets({P0: 60}, {}, held({P0: 0}, {P0: 8}))
    assert (anew.ranges, anew.losses) == ((OffsetRange(P0, "id-1", 0, 8),), ())


def test_a_loss_says_how_much_and_where() -> None:
    """For the log line of the person on call."""
    assert str(Loss(P1, 1000, 3500, "too old")) == "clicks-1: 2,500 offsets, from 1000 to 3499: too old"
    assert str(Loss(P1, 4, 5, "too old")) == "clicks-1: 1 offset, from 4 to 4: too old"


@dataclass
class Topic:
    """A topic partition as a broker has it: every record ever sent has a number of its own."""

    topic_id: int = 0
    first: int = 0
    records: list[int] = field(default_factory=list)

    def now(self) -> Held:
        """What the cluster would say."""
        last = self.first + len(self.records)
        return Held({"clicks": str(self.topic_id)}, {P0: self.first}, {P0: last})


steps = st.lists(
    st.sampled_from(["send", "send", "age", "anew", "plan", "plan", "batch", "batch", "lose commit"]), max_size=40
)


@given(steps)
def test_whatever_happens_every_record_is_judged_once_or_was_gone_before(what: list[str]) -> None:
    """Sends, ageing, deletion, plans, replays and lost commits in any order; a loss is never silent."""
    topic, judged = Topic(), {P0: End("0", 0)}
    sent = 0
    lost: list[int] = []  # gone from the broker before anybody judged it
    seen: list[int] = []
    end = 0
    for step in [*what, "plan", "batch"]:
        if step == "send":
            topic.records += range(sent, sent + 3)
            sent += 3
        elif step in ("age", "anew"):
            gone = topic.records[:2] if step == "age" else topic.records
            lost += [number for number in gone if number not in seen]
            if step == "age":
                topic.first, topic.records = topic.first + len(gone), topic.records[2:]
            else:
                topic = Topic(topic.topic_id + 1)
        elif step == "plan":
            end = topic.first + len(topic.records)
        else:
            found = new_offsets({P0: end}, judged, topic.now())
            if step == "lose commit":
                continue
            for taken in found.ranges:
                assert topic.first <= taken.start
                seen += topic.records[taken.start - topic.first : taken.end - topic.first]
            known = judged[P0]
            behind = known.topic_id != str(topic.topic_id) or known.offset < topic.first
            assert bool(found.losses) == behind
            judged = found.ends
    assert sorted(seen + lost) == list(range(sent))


def test_digests_tell_ranges_apart() -> None:
    """Another cluster, topic, partition, beginning or end is another range."""
    ranges = [
        OffsetRange(place, topic_id, start, end)
        for place in (P0, P1, OTHER)
        for topic_id in ("id-1", "id-2")
        for start in (0, 1)
        for end in (1, 11)
    ]
    digests = {taken.digest(cluster) for taken in ranges for cluster in ("c", "d")}
    assert len(digests) == 2 * len(ranges)
    assert {len(digest) for digest in digests} == {16}
