"""Files of Spark's old calendar, and INT96: rows keep the dates and times that their writer meant."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deduper.table.batch import FileBatch
from deduper.table.errors import TableUsageError
from deduper.table.operations.changes import delete, load, upsert
from deduper.table.operations.questions import read
from deduper.table.settings import LoadedLoad, load_config
from deduper.table.stored_times import StoredTimes, stored_schema
from deduper.tasks.readers.parquet import opened_parquet
from tests.deduper.table.scene import Place

VERSION, SCHEMA = "org.apache.spark.version", "org.apache.spark.sql.parquet.row.metadata"
OLD = {VERSION: "3.5.1", "org.apache.spark.legacyDateTime": ""}
OLD_INT96 = {VERSION: "3.5.1", "org.apache.spark.legacyINT96": ""}
DAY_US = 86_400_000_000
OLD_DAYS, DAYS = [-719_164, -354_280, 0], [-719_162, -354_285, 0]
"""0001-01-01, 1000-01-01 and 1970-01-01, as Spark writes them in mode LEGACY, and as they are."""
SWITCHES = {
    -719_164: 2,
    -682_945: 1,
    -646_420: 0,
    -609_895: -1,
    -536_845: -2,
    -500_320: -3,
    -463_795: -4,
    -390_745: -5,
    -354_220: -6,
    -317_695: -7,
    -244_645: -8,
    -208_120: -9,
    -171_595: -10,
    -141_427: 0,
}
"""Spark's own table for UTC (julian-gregorian-rebase-micros.json): from each day on, values are so many days later."""


def _dates(days: list[int | None]) -> pa.Array:
    return pa.array(days, pa.int32()).cast(pa.date32())


def _written(path: Path, table: pa.Table, notes: dict[str, str], *, is_int96: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, use_deprecated_int96_timestamps=is_int96, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(notes)
    return path


def _meant(file: Path) -> pa.Table:
    batch = FileBatch([file])
    return pa.Table.from_batches(batch.batches(batch.schema.names), batch.schema)


def _days(column: pa.ChunkedArray) -> list[int | None]:
    found: list[int | None] = column.cast(pa.int32()).to_pylist()
    return found


def test_days_move_as_in_sparks_table(tmp_path: Path) -> None:
    """Each day around each switch has the day that Spark's own table gives."""
    days = sorted(day + step for day in SWITCHES for step in (-1, 0, 1) if day + step >= min(SWITCHES))
    moved = [day + next(by for switch, by in reversed(SWITCHES.items()) if switch <= day) for day in days]
    assert _days(_meant(_written(tmp_path / "a", pa.table({"d": _dates([*days])}), OLD))["d"]) == moved


@pytest.mark.parametrize(
    ("notes", "is_old"),
    [
        (OLD, True),
        ({VERSION: "2.4.8"}, True),
        ({VERSION: "3.0.0"}, False),
        ({VERSION: "3.5.1"}, False),
        ({"org.apache.spark.legacyDateTime": ""}, False),
        (OLD_INT96, False),
        ({}, False),
    ],
)
def test_notes_say_which_calendar_dates_are_of(tmp_path: Path, notes: dict[str, str], is_old: bool) -> None:
    """A file is of the old calendar as Spark decides it: by the note beside a version, or a version before 3.0."""
    file = _written(tmp_path / "a", pa.table({"d": _dates([*OLD_DAYS, None])}), notes)
    assert _days(_meant(file)["d"]) == [*(DAYS if is_old else OLD_DAYS), None]


def _nested(days: list[int]) -> dict[str, pa.Array]:
    dates = _dates([*days])
    times = pa.array([day * DAY_US + 1 for day in days]).cast(pa.timestamp("us", "UTC"))
    offsets = pa.array([0, 1, 1, 3], pa.int32())
    struct = pa.StructArray.from_arrays([dates, times, pa.array(["a", "b", "c"])], names=["d", "t", "s"])
    return {
        "one": struct,
        "many": pa.ListArray.from_arrays(offsets, struct),
        "map": pa.MapArray.from_arrays(offsets, pa.array(["a", "b", "c"]), dates),
        "plain": pa.array([1, 2, 3]),
    }


def test_nested_dates_and_times_move(tmp_path: Path) -> None:
    """Structs, lists and maps are corrected too, and a slice of rows has its own values."""
    file = _written(tmp_path / "a", pa.table(_nested(OLD_DAYS)), OLD)
    wanted = pa.table(_nested(DAYS)).to_pylist()
    assert _meant(file).to_pylist() == wanted
    with opened_parquet(str(file)) as opened:
        [rows] = opened.batches(["one", "many", "map", "plain"])
        assert StoredTimes(opened, file).records(rows.slice(1)).to_pylist() == wanted[1:]


def test_int96_is_an_instant(place: Place, tmp_path: Path) -> None:
    """INT96 makes a column `timestamp`, nested too, and fits a table that has it."""
    times = pa.array([0, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"k": [1, 2], "t": times, "s": pa.StructArray.from_arrays([times], names=["t"])})
    file = _written(tmp_path / "in" / "a", rows, {}, is_int96=True)
    assert stored_schema(file).field("t").type == pa.timestamp("us", "UTC")
    assert _meant(file).to_pylist() == rows.to_pylist()
    for more in (FileBatch([file]), rows, FileBatch([file])):
        load(more, place.root, key=["k"], table_format=place.format)
    if place.format == "delta":
        table = DeltaTable(str(place.root))
        assert [field.type.type for field in table.schema().fields[:2]] == ["long", "timestamp"]  # type: ignore[union-attr]
        assert not table.protocol().reader_features
    else:  # a file of the table itself
        _written(place.root / "b.parquet", rows.set_column(0, "k", pa.array([3, 4])), {}, is_int96=True)
        assert load(FileBatch([file]), place.root, key=["k"], table_format=place.format).found == 2


@pytest.mark.parametrize(
    ("notes", "is_old"),
    [(OLD_INT96, True), ({VERSION: "3.0.3"}, True), ({VERSION: "3.1.0"}, False), (OLD, False), ({}, False)],
)
def test_int96_has_a_calendar_of_its_own(tmp_path: Path, notes: dict[str, str], is_old: bool) -> None:
    """INT96 is of the old calendar by its own note, or before Spark 3.1."""
    times = pa.array([OLD_DAYS[1] * DAY_US + 7], pa.int64()).cast(pa.timestamp("us", "UTC"))
    file = _written(tmp_path / "a", pa.table({"t": times}), notes, is_int96=True)
    wanted = (DAYS if is_old else OLD_DAYS)[1] * DAY_US + 7
    assert _meant(file)["t"].cast(pa.int64()).to_pylist() == [wanted]


def test_times_without_a_zone_do_not_move(tmp_path: Path) -> None:
    """`timestamp_ntz` came after the calendar changed."""
    times = pa.array([OLD_DAYS[0] * DAY_US], pa.int64()).cast(pa.timestamp("us"))
    assert _meant(_written(tmp_path / "a", pa.table({"t": times}), OLD))["t"].cast(pa.int64()).to_pylist() == [
        OLD_DAYS[0] * DAY_US
    ]


def test_old_times_of_other_zones_are_refused(place: Place, tmp_path: Path) -> None:
    """Before 1900 their offsets are not known: the file is named, and no table begins; later times are loaded."""
    notes = {**OLD, "org.apache.spark.timeZone": "America/Los_Angeles"}
    for us, is_right in ((-2_208_988_800_000_001, False), (-2_208_988_800_000_000, True)):
        times = pa.array([us], pa.int64()).cast(pa.timestamp("us", "UTC"))
        file = _written(tmp_path / "in" / "a", pa.table({"k": [1], "t": times, "d": _dates([0])}), notes)
        if is_right:
            assert load(FileBatch([file]), place.root, key=["k"], table_format=place.format).inserted == 1
            continue
        with pytest.raises(TableUsageError, match=r"`t` has a time before 1900 .* America/Los_Angeles"):
            load(FileBatch([file]), place.root, key=["k"], table_format=place.format)
        assert not list(place.root.glob("*.parquet"))
        assert not list(place.root.glob("_delta_log"))


@pytest.mark.parametrize("time", [datetime(2400, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, 1, tzinfo=UTC)])
def test_int96_of_any_writer_is_read(tmp_path: Path, time: datetime) -> None:
    """Far ahead, and before 1970 with nanoseconds of the day below zero, as some writers have them."""
    times = pa.array([time], pa.timestamp("us", "UTC"))
    assert _meant(_written(tmp_path / "a", pa.table({"t": times}), {}, is_int96=True))["t"].to_pylist() == [time]


def _settings(folder: Path, form: str, index: str = "exact") -> LoadedLoad:
    file = folder / "load.yaml"
    text = f"source: {{path: in}}\ntable: {{path: table, format: {form}}}\nkey: [k, d]\nindex: {index}\n"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def _foreign(place: Place, rows: pa.Table, notes: dict[str, str]) -> None:
    """A file that Spark has written is all of the table."""
    if place.format == "parquet":
        _written(place.root / "part-0.parquet", rows, notes)
        return
    load(rows, place.root, key=["k", "d"], table_format="delta")
    [file] = DeltaTable(str(place.root)).file_uris()
    _written(Path(file), rows, notes)
    log = place.root / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["size"] = Path(file).stat().st_size
    log.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    "index", ["exact", pytest.param("bloom", marks=pytest.mark.slow), pytest.param("simple", marks=pytest.mark.slow)]
)
def test_a_rewrite_keeps_the_dates_of_other_rows(place: Place, tmp_path: Path, index: str) -> None:
    """Rows of a rewritten file have the dates that they had, in today's calendar, and keys are found by them."""
    rows = pa.table({"k": [1, 2, 3], "d": _dates([*OLD_DAYS]), "v": ["a", "b", "c"]})
    _foreign(place, rows, {**OLD, SCHEMA: json.dumps({"fields": [{"name": name} for name in "kdv"]})})
    config = _settings(tmp_path, place.format, index)
    assert _days(read(pa.table({"k": [2], "d": _dates([DAYS[1]])}), config)["d"]) == [DAYS[1]]
    upserted = upsert(pa.table({"k": [2, 3], "d": _dates([DAYS[1], 5]), "v": ["B", "C"]}), config)
    assert (upserted.updated, upserted.inserted) == (1, 1)
    delete(pa.table({"k": [3], "d": _dates([0])}), config)
    files = [path for path in place.root.glob("part-*.parquet") if path.name.count("-") > 1 or "part-0" in path.name]
    found: list[dict[str, Any]] = (
        read(pa.table({"k": [1, 2, 3], "d": _dates([*DAYS[:2], 5])}), config).sort_by("k").to_pylist()
    )
    epoch = np.datetime64("1970-01-01")
    assert [(row["k"], int((np.datetime64(row["d"]) - epoch).astype(int)), row["v"]) for row in found] == [
        *[(1, DAYS[0], "a"), (2, DAYS[1], "B"), (3, 5, "C")]
    ]
    live = [Path(file) for file in DeltaTable(str(place.root)).file_uris()] if place.format == "delta" else files
    [rewritten] = [file for file in live if "-of-" in file.name]
    notes = pq.read_metadata(rewritten).metadata
    assert notes[VERSION.encode()] == b"3.5.1"
    assert SCHEMA.encode() in notes
    assert b"org.apache.spark.legacyDateTime" not in notes


def test_a_file_of_spark_2_is_rewritten_as_one_of_today(place: Place, tmp_path: Path) -> None:
    """Its version would move the dates a second time; notes that name other columns do not stay either."""
    rows = pa.table({"k": [1, 2, 3], "d": _dates([*OLD_DAYS])})
    _foreign(place, rows, {VERSION: "2.4.8", SCHEMA: json.dumps({"fields": [{"name": "k"}]})})
    delete(pa.table({"k": [3], "d": _dates([0])}), _settings(tmp_path, place.format))
    [rewritten] = place.root.glob("*-of-*.parquet")
    notes = pq.read_metadata(rewritten).metadata
    assert notes[VERSION.encode()] == b"3.1.0"
    assert SCHEMA.encode() not in notes
    assert _days(pq.read_table(rewritten)["d"]) == DAYS[:2]


def test_batches_in_both_calendars_have_the_same_keys(place: Place, tmp_path: Path) -> None:
    """A batch of the old calendar is found again by one of today's."""
    today = _written(tmp_path / "a", pa.table({"k": [1, 2, 3], "d": _dates([*DAYS])}), {})
    old = _written(tmp_path / "b", pa.table({"k": [1, 2, 3], "d": _dates([*OLD_DAYS])}), OLD)
    receipts = [
        load(FileBatch([file]), place.root, key=["k"], partition_by=["d"], table_format=place.format)
        for file in (today, old)
    ]
    assert [(one.inserted, one.found) for one in receipts] == [(3, 0), (0, 3)]
