"""The offsets that a window of topics takes, and when it is sure that all of it was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from deduper.errors import IntegrityError
from deduper.kafka.offsets import ENDS, End, Ends, Held, Offsets, TopicPartition
from deduper.sources.kafka import batch as kafka_batch
from deduper.sources.kafka.batch import KafkaBatch, KafkaBatches
from tests.deduper.kafka_configs import BASE, kafka_source, loaded

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@dataclass
class Cluster:
    """One topic, as its brokers would tell it."""

    earliest: Offsets = field(default_factory=lambda: {P0: 0, P1: 0})
    latest: Offsets = field(default_factory=lambda: {P0: 100, P1: 100})
    topic_id: str = "id-1"
    cluster_id: str = "cluster"
    begins_at_end: bool = False
    named: frozenset[str] = frozenset({"clicks"})

    def topic_ids(self, topics: set[str]) -> dict[str, str]:
        """By name."""
        return dict.fromkeys(topics, self.topic_id)

    def earliest_offsets(self, places: list[TopicPartition]) -> Offsets:
        """Of those that are there."""
        return {place: self.earliest[place] for place in places if place in self.earliest}

    def latest_offsets(self, places: list[TopicPartition], **_: Any) -> Offsets:
        """Of those that are there."""
        return {place: self.latest[place] for place in places if place in self.latest}

    def topics(self, judged: Ends) -> list[str]:
        """Those that are there."""
        del judged
        return sorted({place.topic for place in self.earliest} & self.named)

    def configured_start(self, held: Held) -> Offsets:
        """Of a new store that begins at the end, or at the beginning."""
        return dict(held.latest) if self.begins_at_end else dict(held.earliest)

    def commit_offsets(self, ranges: Any) -> None:
        """For tools that show lag."""

    def settle_offsets(self) -> None:
        """The run ends."""

    def held(self, topics: set[str]) -> Held:
        """All of it."""
        first, last = (
            {place: offset for place, offset in offsets.items() if place.topic in topics}
            for offsets in (self.earliest, self.latest)
        )
        return Held(self.topic_ids(topics), first, last)


def source_of(directory: Path, cluster: Cluster, judged: Ends | None, **settings: Any) -> KafkaBatches:
    """The source of a job whose store has judged so far; None for a new one."""
    source = kafka_source(loaded(BASE, directory)).model_copy(update=settings)
    return KafkaBatches(source, cast("Any", cluster), judged, cast("Any", Watch()))


class Watch:
    """Of brokers that are always there."""

    def progressed(self) -> None:
        """A window was judged."""


def batch_of(directory: Path, cluster: Cluster, judged: Ends | None, **settings: Any) -> KafkaBatch:
    """The first batch."""
    source = source_of(directory, cluster, judged, **settings)
    source.begin(drain=False)
    taken = source.next_batch()
    assert taken is not None
    return taken


def taken(batch: KafkaBatch | None) -> list[tuple[int, int, int]]:
    """Partition, start and end of each range."""
    return [] if batch is None else [(one.place.partition, one.start, one.end) for one in batch.ranges]


def test_a_window_is_what_the_brokers_hold_beyond_what_was_judged(tmp_path: Path) -> None:
    """Partition by partition; after it there is nothing until there is more."""
    cluster = Cluster()
    source = source_of(tmp_path, cluster, {P0: End("id-1", 10), P1: End("id-1", 100)})
    source.begin(drain=False)
    batch = source.next_batch()
    assert taken(batch) == [(0, 10, 100)]
    assert batch is not None
    source.judged(batch)
    assert source.next_batch() is None
    cluster.latest = {P0: 100, P1: 103}
    assert taken(source.next_batch()) == [(1, 100, 103)]


def test_a_window_takes_of_each_partition_its_share(tmp_path: Path) -> None:
    """At most so many, and of none that waits nothing: all is judged once in the end."""
    cluster = Cluster(latest={P0: 1000, P1: 3})
    source = source_of(tmp_path, cluster, {P0: End("id-1", 0), P1: End("id-1", 0)}, max_offsets_per_batch=100)
    source.begin(drain=False)
    seen: dict[int, list[int]] = {0: [], 1: []}
    while (batch := source.next_batch()) is not None:
        assert sum(end - start for _, start, end in taken(batch)) <= 101
        for partition, start, end in taken(batch):
            seen[partition] += range(start, end)
        source.judged(batch)
    assert seen == {0: list(range(1000)), 1: list(range(3))}


def test_draining_ends_where_the_topics_ended_at_the_start(tmp_path: Path) -> None:
    """Records and partitions that come later are for the next run."""
    cluster = Cluster(earliest={P0: 0}, latest={P0: 10})
    source = source_of(tmp_path, cluster, None)
    source.begin(drain=True)
    cluster.earliest, cluster.latest = {P0: 0, P1: 0}, {P0: 15, P1: 4}
    batch = source.next_batch()
    assert taken(batch) == [(0, 0, 10)]
    assert batch is not None
    source.judged(batch)
    assert source.next_batch() is None
    source.begin(drain=True)
    assert taken(source.next_batch()) == [(0, 10, 15), (1, 0, 4)]


@pytest.mark.parametrize("start", ["latest", {"time": "2099-01-01T00:00:00Z"}])
def test_a_job_that_begins_at_the_end_records_where(tmp_path: Path, start: Any) -> None:
    """By a window without records: or a start after it would begin at a later end, and pass over what came between.

    A time has it too: in each partition without a record of that time or later.
    """
    batch = batch_of(tmp_path, Cluster(begins_at_end=True), None, starting_offsets=start)
    assert (batch.ranges, batch.extra()) == ((), {ENDS: [["clicks", "id-1", False, [[0, 100], [1, 100]]]]})


def test_a_topic_that_comes_after_the_first_window_begins_at_its_beginning(tmp_path: Path) -> None:
    """Also where the first window had no topic at all: the setting is one of a new store."""
    none = Cluster(earliest={}, latest={}, begins_at_end=True)
    first = batch_of(tmp_path, none, None, starting_offsets="latest")
    assert first.extra() == {ENDS: []}
    assert taken(batch_of(tmp_path, Cluster(begins_at_end=True), {}, starting_offsets="latest")) == [
        (0, 0, 100),
        (1, 0, 100),
    ]


def test_a_topic_that_is_no_longer_named_is_not_read(tmp_path: Path) -> None:
    """Nor missed when it is deleted. Its end stays recorded, so that it goes on there when it is named again."""
    other = TopicPartition("views", 0)
    judged = {P0: End("id-1", 10), P1: End("id-1", 100), other: End("id-1", 7)}
    cluster = Cluster(earliest={P0: 0, P1: 0, other: 0}, latest={P0: 100, P1: 100, other: 50})
    source = source_of(tmp_path, cluster, judged)
    source.begin(drain=False)
    batch = source.next_batch()
    assert batch is not None
    assert [str(one.place) for one in batch.ranges] == ["clicks-0"]
    assert batch.ends == {P0: End("id-1", 100), P1: End("id-1", 100), other: End("id-1", 7)}
    source.judged(batch)
    assert source.next_batch() is None
    cluster.named = frozenset({"clicks", "views"})
    again = source_of(tmp_path, cluster, batch.ends, topics=("clicks", "views"))
    again.begin(drain=False)
    found = again.next_batch()
    assert found is not None
    assert [(str(one.place), one.start, one.end) for one in found.ranges] == [("views-0", 7, 50)]


def test_what_cannot_be_read_yet_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Judged beyond an open transaction, by a job that read all records then: other partitions go on."""

    class Waiting(Cluster):
        def latest_offsets(self, places: list[TopicPartition], **_: Any) -> Offsets:
            return dict.fromkeys(places, 120)

    cluster = Waiting(latest={P0: 90, P1: 100})
    assert taken(batch_of(tmp_path, cluster, {P0: End("id-1", 100), P1: End("id-1", 40)})) == [(1, 40, 100)]


@pytest.mark.parametrize(
    ("rows", "earliest", "latest", "topic_id", "all_was_there"),
    [
        (10, 10, 20, "id-1", True),  # every offset has given a record
        (10, 99, 99, "id-1", True),  # also when they aged out since
        (9, 10, 20, "id-1", True),  # one is no record: a mark of a transaction
        (9, 11, 20, "id-1", False),  # the first may have gone before it was read
        (9, 10, 19, "id-1", False),  # the last may have been cut off
        (0, 10, 20, "id-1", True),
        (10, 10, 20, "id-2", False),  # the records are another topic's
        (9, None, 20, "id-1", False),
        (9, 10, None, "id-1", False),
    ],
)
def test_a_window_is_sure_of_what_was_there_until_it_was_read(
    tmp_path: Path, rows: int, earliest: int | None, latest: int | None, topic_id: str, all_was_there: bool
) -> None:
    """Both sides of every edge; what is not sure is judged again."""
    cluster = Cluster(earliest={P0: 0}, latest={P0: 20})
    batch = batch_of(tmp_path, cluster, {P0: End("id-1", 10)})
    cluster.earliest = {} if earliest is None else {P0: earliest}
    cluster.latest = {} if latest is None else {P0: latest}
    cluster.topic_id = topic_id
    assert batch.source.held_all(batch, {0: rows}) == all_was_there


def test_every_range_must_have_been_there(tmp_path: Path) -> None:
    """One that gave all its records says nothing of another; one without rows is doubtful."""
    cluster = Cluster(latest={P0: 20, P1: 20})
    judged = {P0: End("id-1", 10), P1: End("id-1", 10)}
    batch = batch_of(tmp_path, cluster, judged)
    assert batch.confirmed({0: 10, 1: 4}) is batch
    cluster.earliest = {P0: 0, P1: 11}
    assert not batch.source.held_all(batch, {0: 10, 1: 4})
    assert not batch.source.held_all(batch, {0: 10})
    assert batch.source.held_all(batch, {0: 4, 1: 10})


def test_what_vanished_while_it_was_read_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it may: then the window is what is left of it."""
    monkeypatch.setattr(kafka_batch, "_BETWEEN_CHECKS_S", 0)
    cluster = Cluster(earliest={P0: 0}, latest={P0: 20})
    batch = batch_of(tmp_path, cluster, {P0: End("id-1", 10)})
    cluster.earliest = {P0: 13, P1: 0}
    with pytest.raises(IntegrityError, match="clicks-0: 3 offsets, from 10 to 12"):
        batch.confirmed({0: 7})


@pytest.mark.slow
def test_a_cut_off_that_is_found_at_the_start_is_recorded(tmp_path: Path) -> None:
    """Else the next start has forgotten it, and passes over the records that are at the same offsets by then."""
    cluster = Cluster(earliest={P0: 0}, latest={P0: 900})
    source = source_of(tmp_path, cluster, {P0: End("id-1", 1000)}, data_loss="continue")
    source.begin(drain=True)
    batch = source.next_batch()
    assert batch is not None
    assert (taken(batch), batch.ends) == ([], {P0: End("id-1", 900)})
    source.judged(batch)
    assert source.next_batch() is None
    cluster.latest = {P0: 1050}
    assert taken(batch_of(tmp_path, cluster, dict(batch.ends), data_loss="continue")) == [(0, 900, 1050)]


@pytest.mark.slow
@pytest.mark.parametrize("data_loss", ["fail", "continue"])
def test_an_added_partition_begins_at_0_and_not_where_it_was_found(tmp_path: Path, data_loss: str) -> None:
    """What its brokers deleted before the first window of it is a loss like any other."""
    cluster = Cluster(earliest={P0: 0, P1: 50}, latest={P0: 100, P1: 80})
    source = source_of(tmp_path, cluster, {P0: End("id-1", 100)}, data_loss=data_loss)
    if data_loss == "fail":
        with pytest.raises(IntegrityError, match="clicks-1: 50 offsets, from 0 to 49"):
            source.begin(drain=False)
    else:
        source.begin(drain=False)
        assert taken(source.next_batch()) == [(1, 50, 80)]
