"""Kafka records get their places, and those that were judged before are left out, before anything looks at them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.kafka.offsets import OffsetRange, TopicPartition
from deduper.sources.kafka.places import NOWHERE, OffsetPlaces
from deduper.tasks import exchange
from deduper.tasks.layout import RecordLayout
from deduper.tasks.read import ReadReceipt, ReadTask, read_function

RANGES = (
    OffsetRange(TopicPartition("a", 0), "id-a", 100, 103),
    OffsetRange(TopicPartition("a", 7), "id-a", 0, 2),
    OffsetRange(TopicPartition("b", 0), "id-b", 5, 6),
)
LAYOUT = RecordLayout.of(pa.int64(), [pa.string()])
Record = tuple[str, int, int]


def place(ordinal: int, position: int) -> int:
    """What a place is as a number."""
    return ordinal << POSITION_BITS | position


PLACES: dict[Record, int] = {
    ("a", 0, 99): NOWHERE,
    ("a", 0, 100): place(0, 0),
    ("a", 0, 102): place(0, 2),
    ("a", 0, 103): NOWHERE,
    ("a", 7, 1): place(1, 1),
    ("b", 0, 4): NOWHERE,
    ("b", 0, 5): place(2, 0),
    ("b", 7, 0): NOWHERE,
    ("c", 0, 100): NOWHERE,
}


def columns(records: Sequence[Record]) -> tuple[Any, Any, Any]:
    """Topics, partitions, offsets."""
    topics, partitions, offsets = zip(*records, strict=True)
    return pa.array(topics, pa.string()), np.array(partitions, np.int32), np.array(offsets, np.int64)


def test_a_place_is_the_ordinal_of_the_range_and_the_offset_in_it() -> None:
    """However the records of topics and partitions are mixed."""
    records = list(PLACES)
    assert OffsetPlaces(RANGES).of(*columns(records)).tolist() == list(PLACES.values())


@pytest.mark.parametrize("record", PLACES, ids=str)
def test_records_of_one_partition(record: Record) -> None:
    """As Spark reads them, one partition a task."""
    assert OffsetPlaces(RANGES).of(*columns([record] * 3)).tolist() == [PLACES[record]] * 3


def batch(records: Sequence[Record]) -> pa.RecordBatch:
    """What the plan gives the reading tasks: each record's expiry key is its offset, its key its offset too."""
    topics, partitions, offsets = columns(records)
    count = len(records)
    given = {
        "_hi": pa.array(offsets),
        "_lo": pa.array(offsets + 1),
        "_order": pa.array(offsets),
        "_admission": pa.array([int(Admission.ADMITTED)] * count, pa.int8()),
        "_expiry": pa.array(offsets),
        "_raw": pa.nulls(count, pa.string()),
        "_0": pa.array([f"{topic}-{partition}@{offset}" for topic, partition, offset in records]),
        "_topic": topics,
        "_partition": pa.array(partitions),
    }
    return pa.RecordBatch.from_pydict(given)


@pytest.mark.parametrize("keeps_latest", [False, True])
def test_what_the_window_does_not_take_goes_no_further(tmp_path: Path, keeps_latest: bool) -> None:
    """Neither to the ports nor to the shards; nor does it move the clock. It is counted."""
    clock = ClockRules(
        float_domain=False, period=2, max_ahead_of_now_us=None, max_jump=None, now_us=0, latest=None, quiet_us=0
    )
    task = ReadTask(str(tmp_path), 2, LAYOUT, clock, True, keeps_latest, places=OffsetPlaces(RANGES))
    parts = [[("a", 0, 103), ("a", 0, 99)], [("a", 0, 100), ("a", 0, 101)], [("a", 0, 102), ("a", 0, 900)], []]
    batches = [batch(part) if part else batch([("a", 0, 1)]).slice(1) for part in parts]
    (row,) = read_function(task)(iter(batches))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    assert (receipt.rows, receipt.left_out, receipt.first_order) == (3, 3, 0)
    rows = exchange.mapped(exchange.rows_file(str(tmp_path), receipt.name)).read_all()
    assert rows.schema.names == ["_order", "_raw", "_0"]
    assert rows.column("_0").to_pylist() == ["a-0@100", "a-0@101", "a-0@102"]
    keys = exchange.mapped(exchange.keys_file(str(tmp_path), receipt.name)).read_all()
    assert sorted(keys.column(exchange.ORDER).to_pylist()) == [0, 1, 2]
    assert set(keys.column(exchange.ADMISSION).to_pylist()) == {int(Admission.ADMITTED)}


def test_a_task_of_which_nothing_is_taken_says_how_much_it_left_out(tmp_path: Path) -> None:
    """Its receipt counts, its files are empty."""
    task = ReadTask(str(tmp_path), 2, LAYOUT, None, False, False, places=OffsetPlaces(RANGES))
    (row,) = read_function(task)(iter([batch([("c", 0, 1), ("c", 0, 2)])]))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    assert (receipt.rows, receipt.left_out) == (0, 2)
    keys = exchange.mapped(exchange.keys_file(str(tmp_path), receipt.name))
    assert [keys.get_batch(shard).num_rows for shard in range(2)] == [0, 0]
