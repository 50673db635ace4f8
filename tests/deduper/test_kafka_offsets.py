"""Which offsets of a batch are new: trimmed, skipped, lost and told, never judged twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.errors import IntegrityError
from deduper.kafka_offsets import (
    End,
    Ends,
    Loss,
    OffsetRange,
    TopicPartition,
    ends_from_wire,
    ends_to_wire,
    new_offsets,
    parse_offsets,
    write_offsets,
)

P0, P1, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("buys", 0)
IDS = {"clicks": "id-1", "buys": "id-2"}
places = st.builds(TopicPartition, st.sampled_from(["a", "b-1", "ä.b"]), st.integers(0, 12))


@given(st.dictionaries(places, st.integers(-2, 2**62)))
def test_offsets_come_back_equal(offsets: dict[TopicPartition, int]) -> None:
    """Spark's JSON, round trip."""
    assert parse_offsets(write_offsets(offsets)) == offsets


@given(st.dictionaries(places, st.builds(End, st.sampled_from(["x", "y"]), st.integers(0, 2**62))))
def test_ends_come_back_equal(ends: Ends) -> None:
    """Through the form of a commit record."""
    assert ends_from_wire(ends_to_wire(ends)) == ends


@pytest.mark.parametrize(
    "text", ["", "[]", "1", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": "1"}}', '{"a": {"0": true}}']
)
def test_what_is_no_offsets_is_refused(text: str) -> None:
    """A torn or strange checkpoint is never read as something else."""
    with pytest.raises(ValueError):  # noqa: PT011  # any kind of it
        parse_offsets(text)


#   judged     0 . . . 4            batch    what is new
CASES = [
    ((0, 4), [], []),  # all of it was judged
    ((0, 9), [(4, 9)], []),  # overlaps
    ((4, 9), [(4, 9)], []),  # follows
    ((5, 9), [(5, 9)], [(4, 5)]),  # leaves a gap
    ((4, 4), [], []),  # is empty
]


@pytest.mark.parametrize(("batch", "new", "lost"), CASES)
def test_a_batch_is_held_against_what_was_judged(
    batch: tuple[int, int], new: list[tuple[int, int]], lost: list[tuple[int, int]]
) -> None:
    """Both sides of every edge."""
    found = new_offsets({P0: batch[0]}, {P0: batch[1]}, {P0: End("id-1", 4)}, topic_ids=IDS, earliest={P0: 0})
    assert [(taken.start, taken.end) for taken in found.ranges] == new
    assert [(loss.start, loss.end) for loss in found.losses] == lost


def test_source_order_is_topic_then_partition() -> None:
    """Numbers as numbers: partition 10 comes after partition 2."""
    ten, two = TopicPartition("clicks", 10), TopicPartition("clicks", 2)
    end = {ten: 1, two: 1, OTHER: 1}
    found = new_offsets({}, end, {}, topic_ids=IDS, earliest={})
    assert [taken.place for taken in found.ranges] == [OTHER, two, ten]


def test_a_new_partition_begins_at_its_earliest_offset() -> None:
    """Spark's checkpoint has no beginning for it."""
    found = new_offsets({P0: 3}, {P0: 5, P1: 9}, {}, topic_ids=IDS, earliest={P0: 0, P1: 2})
    assert found.ranges == (OffsetRange(P0, "id-1", 3, 5), OffsetRange(P1, "id-1", 2, 9))


@pytest.mark.parametrize(
    ("earliest", "new", "lost"), [(4, (4, 9), None), (6, (6, 9), (4, 6)), (9, None, (4, 9)), (12, None, (4, 9))]
)
def test_what_the_broker_dropped_is_told(
    earliest: int, new: tuple[int, int] | None, lost: tuple[int, int] | None
) -> None:
    """Retention passed what was judged: which offsets, exactly."""
    found = new_offsets({P0: 4}, {P0: 9}, {P0: End("id-1", 4)}, topic_ids=IDS, earliest={P0: earliest})
    assert [(taken.start, taken.end) for taken in found.ranges] == ([] if new is None else [new])
    assert [(loss.start, loss.end) for loss in found.losses] == ([] if lost is None else [lost])


def test_a_topic_made_anew_is_told_and_begins_anew() -> None:
    """Its offsets mean other records, however equal the numbers."""
    found = new_offsets({P0: 0}, {P0: 9}, {P0: End("id-0", 7)}, topic_ids=IDS, earliest={P0: 0})
    assert found.ranges == (OffsetRange(P0, "id-1", 0, 9),)
    assert [str(loss) for loss in found.losses] == [
        "clicks-0, after offset 7: the topic was deleted and made anew; what followed is unknown"
    ]


def test_a_topic_that_is_gone_stops_the_job() -> None:
    """Nobody can read its batch."""
    with pytest.raises(IntegrityError, match="topic gone is gone"):
        new_offsets({}, {TopicPartition("gone", 0): 1}, {}, topic_ids=IDS, earliest={})


def test_a_loss_says_how_much_and_where() -> None:
    """For the log line of the person on call."""
    assert str(Loss(P1, 1000, 3500, "too old")) == "clicks-1: 2,500 offsets, from 1000 to 3499: too old"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=12))
def test_whatever_batches_come_every_offset_is_judged_once_or_told_as_lost(batches: list[list[int]]) -> None:
    """Replays, overlaps and gaps in any order: nothing twice, nothing in silence."""
    judged: Ends = {}
    seen: list[int] = []
    lost: list[int] = []
    for start, end in batches:
        found = new_offsets({P0: start}, {P0: end}, judged, topic_ids=IDS, earliest={P0: 0})
        for taken in found.ranges:
            seen += range(taken.start, taken.end)
        for loss in found.losses:
            lost += range(loss.start, loss.end)
        judged = found.ends
    assert sorted({*seen, *lost}) == sorted([*seen, *lost])
    if seen:
        first = min(seen)
        told = set(seen) | set(lost)
        assert all(offset in told for offset in range(first, max(seen) + 1))


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
