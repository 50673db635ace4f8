"""Staged rows as records: all of a slot's, in order, as they are, and nothing in silence."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bucket_store.places.local import local_place
from deduper.errors import IntegrityError
from deduper.sinks import staged_records
from deduper.sinks.staged_records import records_of_slot
from tests.bucket_store.places.memory_names import MemoryNames, memory_place

STAGED = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_ms", pa.int64()),
        ("slot", pa.int32()),
    ]
)
BYTES = st.none() | st.binary(max_size=6)


def rows_with(headers: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows with such headers."""
    columns = {
        "key": BYTES,
        "value": BYTES,
        "headers": headers,
        "timestamp_ms": st.none() | st.integers(-2, 1 << 45),
        "slot": st.integers(0, 2),
    }
    return st.lists(st.fixed_dictionaries(columns), max_size=40)


def _named(names: list[str]) -> st.SearchStrategy[Any]:
    """The same headers in all rows, with values that repeat or do not."""
    values = st.sampled_from([b"unique", b"17", None]) | st.binary(max_size=6) | st.just(b"same")
    one = [st.fixed_dictionaries({"key": st.just(name), "value": values}) for name in names]
    return st.tuples(*one).map(list)


ANY_HEADERS = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": BYTES}), max_size=3)
ROWS = rows_with(ANY_HEADERS) | st.lists(st.text(max_size=3), max_size=4).flatmap(
    lambda names: rows_with(_named(names))
)


def staged(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    """A staged file."""
    parquet.write_table(pa.Table.from_pylist(rows, STAGED), path, **options)
    return path


def row(slot: int = 0, value: bytes = b"v") -> dict[str, Any]:
    """A row of which only slot and value matter."""
    return {"key": None, "value": value, "headers": [], "timestamp_ms": 5, "slot": slot}


@pytest.mark.slow
@given(ROWS, st.integers(1, 9), st.booleans())
def test_all_rows_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, group: int, dictionary: bool
) -> None:
    """Every slot its rows, in order; nulls, empty values, repeated headers included; however the file is laid out."""
    file = staged(
        tmp_path_factory.mktemp("staged") / "rows.parquet", rows, row_group_size=group, use_dictionary=dictionary
    )
    for slot in range(3):
        found = [
            record for batch in records_of_slot(local_place(file), slot, {0, 1, 2}) for record in batch.to_pylist()
        ]
        assert found == [
            {
                **{name: one[name] for name in ("key", "value", "headers")},
                "timestamp_ms": 0 if one["timestamp_ms"] in {None, -1, -2} else max(1, one["timestamp_ms"]),
            }
            for one in rows
            if one["slot"] == slot
        ]


def test_a_row_that_nobody_would_send(tmp_path: Path) -> None:
    """A slot the commit record does not have for this file: the reader of the file reports it."""
    for rows in ([row(0), row(3)], [row(3), row(3)]):
        file = staged(tmp_path / "rows.parquet", rows)
        with pytest.raises(IntegrityError, match=r"rows of slot \[3\]"):
            list(records_of_slot(local_place(file), 0, {0, 1}))


def test_other_slots_row_groups_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their statistics: a file of many slots is not decoded once for each."""
    file = staged(tmp_path / "rows.parquet", [row(0)] * 10 + [row(1)] * 10, row_group_size=10)
    seen = []
    read = staged_records._of_slot
    monkeypatch.setattr(staged_records, "_of_slot", lambda batch, *rest: seen.append(len(batch)) or read(batch, *rest))
    assert sum(batch.num_rows for batch in records_of_slot(local_place(file), 1, {0, 1})) == 10
    assert seen == [10]


def test_damage_is_no_shorter_file(tmp_path: Path) -> None:
    """Cut short or with a flipped bit in its data: an integrity error, never fewer or other rows."""
    rows = [row(0, bytes([number % 251]) * 50) for number in range(500)]
    file = staged(tmp_path / "rows.parquet", rows, write_page_checksum=True, use_dictionary=False, compression=None)
    data = file.read_bytes()
    place = data.index(bytes([7]) * 50) + 20
    for broken in (data[:-9], data[: len(data) // 2], b"", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
        file.write_bytes(broken)
        elsewhere = memory_place() / "rows.parquet"
        elsewhere.create(broken)
        for where in (local_place(file), elsewhere):
            with pytest.raises(IntegrityError, match="damaged"):
                list(records_of_slot(where, 0, {0}))


def test_rows_are_read_on_any_storage(tmp_path: Path) -> None:
    """The same, and an outage is no damage."""
    file = staged(tmp_path / "rows.parquet", [row(n % 2, b"%d" % n) for n in range(50)], row_group_size=7)
    names = MemoryNames()
    elsewhere = memory_place(names) / "rows.parquet"
    elsewhere.create(file.read_bytes())
    for slot in range(2):
        here, there = (
            [one for batch in records_of_slot(place, slot, {0, 1}) for one in batch.to_pylist()]
            for place in (local_place(file), elsewhere)
        )
        assert len(here) == 25
        assert here == there

    def away(path: object) -> bytes:
        raise TimeoutError("no answer")

    names.read = away  # type: ignore[assignment, method-assign]
    with pytest.raises(TimeoutError):
        list(records_of_slot(elsewhere, 0, {0, 1}))


def test_another_file(tmp_path: Path) -> None:
    """Parquet without the columns of a Kafka port is named as such; an absent one is absent."""
    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"key": [b"k"], "slot": [0]}), file)
    with pytest.raises(IntegrityError, match="without headers, timestamp_ms, value"):
        list(records_of_slot(local_place(file), 0, {0}))
    with pytest.raises(FileNotFoundError):
        list(records_of_slot(local_place(tmp_path / "absent.parquet"), 0, {0}))


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """Large values come a few at a time, whatever the size of the row group."""
    value_bytes = 1 << 20
    file = staged(
        tmp_path / "rows.parquet", [row(0, bytes([n]) * value_bytes) for n in range(64)], use_dictionary=False
    )
    tracemalloc.start()
    try:
        assert sum(batch.num_rows for batch in records_of_slot(local_place(file), 0, {0})) == 64
        assert tracemalloc.get_traced_memory()[1] < 40 * value_bytes
    finally:
        tracemalloc.stop()
