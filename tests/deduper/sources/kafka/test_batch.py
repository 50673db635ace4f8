"""What of a batch of Spark's a window of Kafka's takes, who reads it, and when it is sure that all of it was read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from bucket_store.log.records import LogState
from deduper.errors import IntegrityError
from deduper.kafka.offsets import ENDS, End, Ends, Held, Offsets, TopicPartition, ends_to_wire
from deduper.sources.kafka import batch as kafka_batch
from deduper.sources.kafka.batch import KafkaBatch, KafkaBatches
from deduper.sources.kafka.checkpoint import beyond
from tests.deduper.kafka_configs import BASE, kafka_source, loaded
from tests.deduper.sources.kafka.test_checkpoint import write

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
FRAME: Any = object()


@dataclass
class Cluster:
    """One topic, as its brokers would tell it."""

    earliest: Offsets = field(default_factory=lambda: {P0: 0, P1: 0})
    latest: Offsets = field(default_factory=lambda: {P0: 100, P1: 100})
    topic_id: str = "id-1"
    cluster_id: str = "cluster"

    def topic_ids(self, topics: set[str]) -> dict[str, str]:
        """By name."""
        return dict.fromkeys(topics, self.topic_id)

    def earliest_offsets(self, places: list[TopicPartition]) -> Offsets:
        """Of those that are there."""
        return {place: self.earliest[place] for place in places if place in self.earliest}

    def latest_offsets(self, places: list[TopicPartition], **_: Any) -> Offsets:
        """Of those that are there."""
        return {place: self.latest[place] for place in places if place in self.latest}

    def held(self, topics: set[str]) -> Held:
        """All of it."""
        return Held(self.topic_ids(topics), self.earliest, self.latest)


def offsets_entry(checkpoint: Path, file: str, offsets: dict[int, int]) -> None:
    """Offsets of the topic, as Spark writes them."""
    text = json.dumps({"clicks": {str(partition): offset for partition, offset in offsets.items()}})
    head = ["v1", "{}"] if file.startswith("offsets") else ["\0v1"]
    write(checkpoint / file, *head, text)


def source_of(
    directory: Path, cluster: Cluster, judged: Ends, batch: dict[int, int], begin: dict[int, int]
) -> KafkaBatches:
    """The source of a job whose store has judged so far, and whose checkpoint has one batch."""
    checkpoint = directory / "checkpoint"
    offsets_entry(checkpoint, "sources/0/0", begin)
    offsets_entry(checkpoint, "offsets/0", batch)
    state = LogState(extra={ENDS: ends_to_wire(judged)})
    source = kafka_source(loaded(BASE, directory))
    return KafkaBatches(source, checkpoint, cast("Any", cluster), state, cast("Any", None))


def batch_of(
    directory: Path, cluster: Cluster, judged: Ends, batch: dict[int, int], begin: dict[int, int]
) -> KafkaBatch:
    """The one batch."""
    taken = source_of(directory, cluster, judged, batch, begin).batch(0, FRAME)
    assert taken is not None
    return taken


@pytest.mark.parametrize(
    ("judged", "begin", "end", "taken", "by_spark"),
    [
        (10, 10, 20, (10, 20), True),
        (12, 10, 20, (12, 20), True),  # Spark's batch holds more
        (10, 12, 20, (10, 20), False),  # Spark has passed over what is still there
        (10, 11, 20, (10, 20), False),
    ],
)
def test_sparks_batch_is_read_when_it_holds_the_whole_window(
    tmp_path: Path, judged: int, begin: int, end: int, taken: tuple[int, int], by_spark: bool
) -> None:
    """Otherwise the window's offsets are read by themselves, or what Spark passed over would be lost."""
    batch = batch_of(tmp_path, Cluster(), {P0: End("id-1", judged)}, {0: end}, {0: begin})
    assert [(one.start, one.end) for one in batch.ranges] == [taken]
    assert (batch.frame is FRAME) == by_spark


def test_a_partition_that_spark_began_later_is_read_without_spark(tmp_path: Path) -> None:
    """One of two is enough; and one that has no beginning in the checkpoint is not held by it."""
    judged = {P0: End("id-1", 5), P1: End("id-1", 5)}
    for number, (begin, by_spark) in enumerate([({0: 5, 1: 5}, True), ({0: 5, 1: 6}, False), ({0: 5}, False)]):
        (tmp_path / str(number)).mkdir()
        batch = batch_of(tmp_path / str(number), Cluster(), judged, {0: 9, 1: 9}, begin)
        assert (batch.frame is FRAME) == by_spark


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
    cluster = Cluster()
    batch = batch_of(tmp_path, cluster, {P0: End("id-1", 10)}, {0: 20}, {0: 10})
    cluster.earliest = {} if earliest is None else {P0: earliest}
    cluster.latest = {} if latest is None else {P0: latest}
    cluster.topic_id = topic_id
    assert batch.source.held_all(batch, {0: rows}) == all_was_there


def test_every_range_must_have_been_there(tmp_path: Path) -> None:
    """One that gave all its records says nothing of another; one without rows is doubtful."""
    cluster = Cluster()
    judged = {P0: End("id-1", 10), P1: End("id-1", 10)}
    batch = batch_of(tmp_path, cluster, judged, {0: 20, 1: 20}, {0: 10, 1: 10})
    assert batch.confirmed({0: 10, 1: 4}) is batch
    cluster.earliest = {P0: 0, P1: 11}
    assert not batch.source.held_all(batch, {0: 10, 1: 4})
    assert not batch.source.held_all(batch, {0: 10})
    assert batch.source.held_all(batch, {0: 4, 1: 10})


def test_what_vanished_while_it_was_read_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it may: then the window is what is left of it."""
    monkeypatch.setattr(kafka_batch, "_BETWEEN_CHECKS_S", 0)
    cluster = Cluster()
    batch = batch_of(tmp_path, cluster, {P0: End("id-1", 10)}, {0: 20}, {0: 10})
    cluster.earliest = {P0: 13, P1: 0}
    with pytest.raises(IntegrityError, match="clicks-0: 3 offsets, from 10 to 12"):
        batch.confirmed({0: 7})


@pytest.mark.parametrize(("done", "is_beyond"), [(9, False), (10, False), (11, True), (12, True)])
@pytest.mark.parametrize("was_judged", [True, False])
def test_a_checkpoint_ahead_of_the_store_is_not_gone_on_with(
    tmp_path: Path, done: int, is_beyond: bool, was_judged: bool
) -> None:
    """By a single offset. Of a partition that was never judged, what Spark began with is passed over by right."""
    offsets_entry(tmp_path, "sources/0/0", {0: 10})
    offsets_entry(tmp_path, "offsets/0", {0: done})
    write(tmp_path / "commits" / "0", "v1", "{}")
    why = beyond(tmp_path, {P0: End("id-1", 10)} if was_judged else {})
    assert why == (f"it has clicks-0 as done up to offset {done}, the store has judged up to 10" if is_beyond else None)


def test_a_partition_without_a_beginning_begins_at_its_first_offset(tmp_path: Path) -> None:
    """It was added after the first batch, and nothing of it was judged."""
    offsets_entry(tmp_path, "sources/0/0", {0: 10})
    offsets_entry(tmp_path, "offsets/0", {0: 10, 1: 1})
    write(tmp_path / "commits" / "0", "v1", "{}")
    assert beyond(tmp_path, {P0: End("id-1", 10)}) == (
        "it has clicks-1 as done up to offset 1, the store has judged up to 0"
    )
