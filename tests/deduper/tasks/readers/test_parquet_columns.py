"""Columns of Parquet files as declared ones: their names, layers, calendars and texts."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import ColumnType
from deduper.tasks.readers.file_parts import UnreadableFile
from deduper.tasks.readers.parquet import opened_parquet
from deduper.tasks.readers.parquet_values import ValueFault

_UTC = pa.timestamp("us", "UTC")
_VERSION = "org.apache.spark.version"
_XY = pa.struct([("x", pa.int32()), ("y", pa.string())])


def read(path: Path, table: pa.Table, name: str, declared: pa.DataType, **options: Any) -> tuple[list[Any], list[int]]:
    """A column as this type, and the faults of its values."""
    with parquet.ParquetWriter(path, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key.decode(): text for key, text in (table.schema.metadata or {}).items()})
    column = DeclaredColumn(name, ColumnType("struct", "as declared"), declared)
    with opened_parquet(str(path)) as opened:
        (stored,) = opened.columns([column])
        if stored is None:
            return [None] * table.num_rows, []
        (batch,) = opened.batches([stored.name])
        values, faults = stored.read(batch.column(stored.name), declared)
    assert values.type.equals(declared, check_metadata=True)
    values.validate(full=True)
    found: list[Any] = values.to_pylist()
    return found, [] if faults is None else faults.tolist()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A place for a file."""
    return tmp_path / "a.parquet"


@pytest.mark.parametrize(
    ("stored", "declared"),
    [("k", "K"), ("A.b", "a.B"), ("`x` \"y\" 'z'", "`X` \"y\" 'z'"), ("Ümlaut", "ümlaut"), ("", "")],
)
def test_a_name_is_one_in_any_case(file: Path, stored: str, declared: str) -> None:
    """Whatever letters and signs it has; a column that is absent is null."""
    table = pa.table({"a": [{"b": 7}], stored: ["v"]})
    assert read(file, table, declared, pa.string()) == (["v"], [])
    assert read(file, table, "other", pa.string()) == ([None], [])


def test_a_name_that_two_columns_have(file: Path) -> None:
    """None of them is taken, unless another name is asked for."""
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["K", "k", "t"])
    assert read(file, table, "t", pa.int64()) == ([3], [])
    with pytest.raises(UnreadableFile, match=r"^column k: more than one could be meant: K, k$"):
        read(file, table, "k", pa.int64())


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (pa.array(["1"]), "the file has string$"),
        (pa.array([[1]]), "the file has list<element: int64>$"),
        (pa.array([{"X": 1, "x": 2}]), r"the file has struct<.*> \(more than one could be meant: X, x\)$"),
        (pa.array([{"y": 1}]), "the file has struct<y: int64>$"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "the file has map<string, int64"),
    ],
)
def test_a_type_without_values_of_the_declared_one(file: Path, stored: pa.Array, why: str) -> None:
    """Refuses the file, with column and both types, also where it is a field."""
    with pytest.raises(UnreadableFile, match=f"^column s is declared as declared, {why}"):
        read(file, pa.table({"s": stored}), "s", _XY, store_schema=False)


def test_structs_have_their_fields_by_name(file: Path) -> None:
    """In another order, in another case, more or fewer of them."""
    fields = pa.struct([("more", pa.list_(pa.int8())), ("Y", pa.string()), ("X", pa.int64())])
    values = [{"more": [1], "Y": "a", "X": 5}, None, {"more": None, "Y": None, "X": None}]
    table = pa.table({"s": pa.array(values, fields)})
    assert read(file, table, "s", _XY) == ([{"x": 5, "y": "a"}, None, {"x": None, "y": None}], [])
    assert read(file, table, "s", pa.struct([("z", pa.int8())])) == ([{"z": None}, None, {"z": None}], [])


@pytest.mark.parametrize(
    "kind", [pa.list_, pa.large_list, lambda one: pa.list_(one, 2)], ids=["list", "large", "fixed"]
)
@pytest.mark.parametrize("compliant", [True, False])
def test_lists_are_ones_in_any_layout(file: Path, kind: Any, compliant: bool) -> None:
    """With long offsets, of one length, and with other names of layers; a value at fault takes its list along."""
    table = pa.table({"l": pa.array([[1, 2], None, [3, 2**40]], kind(pa.int64()))})
    found = read(file, table, "l", pa.list_(pa.int32()), use_compliant_nested_type=compliant)
    assert found == ([[1, 2], None, None], [ValueFault.NONE, ValueFault.NONE, ValueFault.MISFIT])


def test_maps_are_read_entry_by_entry(file: Path) -> None:
    """A key or a value at fault takes its map along."""
    entries = [[(b"a", 1)], [], None, [(b"\xff", 1)], [(b"b", 2**40)], [(b"c", None)]]
    table = pa.table({"m": pa.array(entries, pa.map_(pa.binary(), pa.int64()))})
    values, faults = read(file, table, "m", pa.map_(pa.string(), pa.int32()))
    assert values == [[("a", 1)], [], None, None, None, [("c", None)]]
    assert faults == [0, 0, 0, ValueFault.NOT_UTF8, ValueFault.MISFIT, 0]


def test_texts_in_layers_are_utf8(file: Path) -> None:
    """Also where the types are just as declared."""
    text = pa.array([b"ok", b"\xff"]).view(pa.string())
    table = pa.table({"s": pa.StructArray.from_arrays([pa.array([1, 2], pa.int32()), text], fields=list(_XY))})
    assert read(file, table, "s", _XY) == ([{"x": 1, "y": "ok"}, None], [ValueFault.NONE, ValueFault.NOT_UTF8])


_OLD_DAY, _DAY = -354_280, date(1000, 1, 1)
"""1000-01-01 in the old calendar."""


@pytest.mark.parametrize(
    ("notes", "is_old"), [({}, False), ({_VERSION: "2.4.8"}, True), ({_VERSION: "3.5.0"}, False)], ids=str
)
@pytest.mark.parametrize("unit", ["day", "ms", "us", "INT96"])
def test_days_of_the_old_calendar_keep_their_names(file: Path, notes: dict[str, str], is_old: bool, unit: str) -> None:
    """As Spark reads its own files, at any depth."""
    days = pa.array([_OLD_DAY, None], pa.int32()).view(pa.date32())
    at = datetime(1000, 1, 1, tzinfo=UTC)
    moved = 0 if is_old else _OLD_DAY - -354_285
    if unit == "day":
        values, kind, wanted = days, pa.date32(), _DAY
    else:
        values = days.cast(pa.timestamp("s")).cast(pa.timestamp("us" if unit == "INT96" else unit, "UTC"))
        kind, wanted = _UTC, at  # type: ignore[assignment]
    table = pa.table({"v": [[value] for value in values]}, pa.schema([("v", pa.list_(values.type))], notes))
    options = {"use_deprecated_int96_timestamps": unit == "INT96", "store_schema": False}
    found, faults = read(file, table, "v", pa.list_(kind), **options)
    assert faults == []
    assert found[1] == [None]
    assert (found[0][0] - wanted).days == moved


def test_times_of_the_old_calendar_in_another_zone(file: Path) -> None:
    """Refuse the file where their offsets are not known, with the column's name."""
    notes = {_VERSION: "3.5.1", "org.apache.spark.legacyDateTime": "", "org.apache.spark.timeZone": "Asia/Tokyo"}
    for us, is_right in ((-2_208_988_800_000_001, False), (-2_208_988_800_000_000, True)):
        values = pa.array([us], pa.int64()).view(_UTC)
        table = pa.table({"t": values}, pa.schema([("t", _UTC)], notes))
        if is_right:
            assert read(file, table, "t", _UTC) == (values.to_pylist(), [])
            continue
        parquet.write_table(table, file)
        with opened_parquet(str(file)) as opened:
            (stored,) = opened.columns([DeclaredColumn("t", ColumnType("timestamp", "timestamp"), _UTC)])
            assert stored is not None
            with pytest.raises(ValueError, match="column t has a time before 1900 in Spark's old calendar"):
                stored.read(values, _UTC)
