"""The places of a DataFrame's rows by the columns that name them, batch after batch of one partition."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.columns import parse_columns
from deduper.config.query import QuerySource, query_config
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import Admission
from deduper.errors import UsageError
from deduper.sources.declared_columns import arrow_types, declared
from deduper.sources.frame_places import FramePlaces, FrameRows
from deduper.tasks import found_partitions
from deduper.tasks.found_partitions import FoundPartition, FoundPartitions, in_window
from deduper.tasks.layout import (
    ADMISSION,
    EXPIRY,
    HEADERS,
    HI,
    KEY,
    ORDER,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    VALUE,
    parsed,
)


def records(rows: list[tuple[str | None, int | None]], partition: int) -> pa.RecordBatch:
    """Rows with the source and the number that they name."""
    return pa.RecordBatch.from_pydict(
        {
            "_hi": pa.array(range(len(rows)), pa.int64()),
            TOPIC: pa.array([name for name, _ in rows], pa.string()),
            PARTITION: pa.array([partition] * len(rows), pa.int32()),
            ORDER: pa.array([number for _, number in rows], pa.int64()),
        }
    )


def placed(places: FramePlaces, rows: list[tuple[str | None, int | None]], partition: int = 3) -> list[tuple[int, int]]:
    """Ordinal and position of each."""
    found = places.placed(records(rows, partition))
    assert found.schema.names == ["_hi", ORDER]
    return [(order >> POSITION_BITS, order & (1 << POSITION_BITS) - 1) for order in found.column(ORDER).to_pylist()]


def test_sources_are_numbered_as_they_come() -> None:
    """From 0 on, whatever the partition; their numbers come in any order, and more than once."""
    places = FramePlaces()
    rows: list[tuple[str | None, int | None]] = [("b", 5), ("a", 9), ("b", 2), ("c", 0), ("b", 5)]
    assert placed(places, rows) == [(0, 5), (1, 9), (0, 2), (2, 0), (0, 5)]
    assert placed(places, [("c", 1), ("b", 3)]) == [(2, 1), (0, 3)]
    assert places.sequence == 3
    assert places.partitions() == (FoundPartition("b", 6), FoundPartition("a", 10), FoundPartition("c", 2))


def test_a_row_that_names_no_place_has_its_number() -> None:
    """In the partition of the DataFrame, all rows counted: no row is lost, and no two of these have one place."""
    places = FramePlaces()
    rows: list[tuple[str | None, int | None]] = [("a", 0), (None, 7), ("a", None), ("a", -1), ("a", 1 << POSITION_BITS)]
    assert placed(places, rows) == [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert placed(places, [(None, None)]) == [(1, 5)]
    assert places.partitions() == (FoundPartition("a", 1), FoundPartition(3, 6))


def test_edges() -> None:
    """A batch without rows; only nulls; a name without letters."""
    places = FramePlaces()
    assert placed(places, []) == []
    assert places.partitions() == ()
    assert placed(places, [(None, None), ("", 4)]) == [(1, 0), (0, 4)]
    assert places.partitions() == (FoundPartition("", 5), FoundPartition(3, 1))


def test_a_window_has_each_source_once() -> None:
    """Twenty sources in sixteen partitions are twenty; rows that name none are those of their partition."""
    tasks = []
    for partition in range(16):
        places = FramePlaces()
        placed(places, [(f"s{(partition + at) % 20}", partition) for at in range(20)], partition)
        tasks.append(places)
    placed(tasks[3], [(None, 0)])
    placed(tasks[5], [(None, 0)], 5)
    window = FoundPartitions.of([one.partitions() for one in tasks])
    assert list(window.ends) == [*(f"s{number}" for number in range(20)), 3, 5]
    assert window.ends["s4"] == 16
    for number, of_task in enumerate(window.ordinals):
        found = in_window(np.array([at << POSITION_BITS | 7 for at in range(20)]), of_task)
        assert found.tolist() == [((number + at) % 20) << POSITION_BITS | 7 for at in range(20)]
    assert [of_task.size for of_task in window.ordinals] == [20, 20, 20, 21, 20, 21, *[20] * 10]


def test_without_names_nothing_is_numbered() -> None:
    """Places that are the window's already stay as they are."""
    assert FoundPartitions.of([(), ()]) == FoundPartitions({}, ())


def test_thousands_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are numbered; a column that differs from row to row is refused, by the task or by the window."""
    places = FramePlaces()
    assert placed(places, [(f"s{at}", 1) for at in range(3000)]) == [(at, 1) for at in range(3000)]
    assert len(FoundPartitions.of([places.partitions()]).ends) == 3000
    monkeypatch.setattr(found_partitions, "MOST_PARTITIONS", 3)
    with pytest.raises(UsageError, match="write none that differs from row to row"):
        placed(FramePlaces(), [(f"s{at}", 1) for at in range(4)])
    with pytest.raises(UsageError, match="more than 3 sources in one window"):
        FoundPartitions.of(
            [[FoundPartition("a", 1), FoundPartition("b", 1)], [FoundPartition(0, 1), FoundPartition(1, 1)]]
        )


def frame_rows(tmp_path: Path, ddl: str, expiry: dict[str, Any], **topics: dict[str, Any]) -> FrameRows:
    """What makes records of a DataFrame's rows, with the ports in files, but for `topics`."""
    columns = parse_columns(ddl)
    source = QuerySource(parsed_columns=columns, arrow=tuple(arrow_types(columns)))
    ports = ("unique", "duplicate", "expired", "error")
    sinks = {port: {"format": "parquet", "path": str(tmp_path / port)} for port in ports}
    settings = {"name": "q", "key": "k", "expiry": expiry, "store": {"url": f"rocksdb:{tmp_path}/store"}}
    return FrameRows(declared(query_config(settings, source, {**sinks, **topics}), bytes(16)))


def test_rows_are_records_by_the_rules_of_our_readers(tmp_path: Path) -> None:
    """A key that is none comes first, then an expiry key; Spark may hand over long texts and times of another zone."""
    expiry = {"by": "event_time", "field": "t", "period": "1h", "unit": "s", "span": "1h"}
    made = frame_rows(tmp_path, "k string, t bigint, at timestamp", expiry)
    times = [1, None, 1 << 62, 1, None, -(1 << 62)]
    keys = ["a", "b", "c", None, None, None]
    rows = pa.RecordBatch.from_pydict(
        {
            ORDER: pa.array(range(6), pa.int64()),
            parsed(0): pa.array(keys, pa.large_string()),
            parsed(1): pa.array(times, pa.int64()),
            parsed(2): pa.array([0] * 6, pa.timestamp("us", "Asia/Tokyo")),
        }
    )
    found = made.placed(rows)
    assert found.schema == made.declared.layout.schema
    assert [Admission(code).reason for code in found.column(ADMISSION).to_pylist()] == [
        *("", "null_expiry", "bad_expiry", "null_key", "null_key", "null_key")
    ]
    assert found.column(EXPIRY).to_pylist() == [1_000_000, None, None, 1_000_000, None, None]
    assert found.column(parsed(0)).to_pylist() == keys
    again = replace(made, places=FramePlaces()).placed(
        rows.append_column(TOPIC, pa.array(["s"] * 6)).append_column(PARTITION, pa.array([2] * 6, pa.int32()))
    )
    assert again.column(HI) == found.column(HI)


def test_what_is_sent_of_a_row_is_all_of_it_without_a_value(tmp_path: Path) -> None:
    """As JSON, its nulls left out. What the DataFrame has no column for is null."""
    topic = {"format": "kafka", "topic": "t", "bootstrap_servers": "h:1"}
    made = frame_rows(tmp_path, "k string, n bigint", {"by": "never"}, unique=topic)
    rows = pa.RecordBatch.from_pydict(
        {
            ORDER: pa.array([0, 1], pa.int64()),
            parsed(0): pa.array(["a", "b"]),
            parsed(1): pa.array([1, None], pa.int64()),
            KEY: pa.array([b"x", None], pa.binary()),
        }
    )
    found = made.placed(rows)
    sent = [found.column(name).to_pylist() for name in (KEY, VALUE, HEADERS, TIMESTAMP)]
    assert sent == [[b"x", None], [b'{"k":"a","n":1}', b'{"k":"b"}'], [None, None], [None, None]]
    given = made.placed(rows.append_column(VALUE, pa.array([b"v", None], pa.binary())))
    assert given.column(VALUE).to_pylist() == [b"v", None]


def test_no_rows_are_no_records(tmp_path: Path) -> None:
    """Of every type that a key may have."""
    made = frame_rows(
        tmp_path, "k decimal(38,3), t decimal(18,2)", {"by": "ordered", "field": "t", "period": 1, "span": 1}
    )
    rows = pa.RecordBatch.from_pydict(
        {
            ORDER: pa.array([0], pa.int64()),
            parsed(0): pa.array([Decimal("1.5")], pa.decimal128(38, 3)),
            parsed(1): pa.array([Decimal("2.25")], pa.decimal128(18, 2)),
        }
    )
    assert made.placed(rows).column(EXPIRY).to_pylist() == [225]
    assert made.placed(rows.slice(0, 0)).num_rows == 0
