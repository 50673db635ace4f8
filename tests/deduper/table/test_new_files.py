"""New files: each partition has its rows in their order, and no reader skips a row by wrong bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from deduper.table.index.keys import Int64s
from deduper.table.operations import new_files
from deduper.table.operations.changes import delete, load, upsert
from deduper.table.operations.new_files import Written, write_new_files
from deduper.table.settings import TARGET_FILE_BYTES, load_config
from tests.deduper.table.scene import Place

SCHEMA = pa.schema([("day", pa.date32()), ("town", pa.string()), ("n", pa.int64())])
TOWNS = ("Bonn", "a b", "ä/=%", "c:d'", None)
BATCH = 1000


def _rows(batches: int, seed: int, days: int = 5) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
    random = np.random.default_rng(seed)
    for number in range(batches):
        day = pa.array(random.integers(0, days, BATCH).astype(np.int32)).cast(pa.date32())
        town = pa.array([TOWNS[place] for place in random.integers(0, len(TOWNS), BATCH)])
        n = pa.array(np.arange(BATCH) + number * BATCH)
        chosen = np.flatnonzero(random.random(BATCH) < random.choice([0.0, 0.5, 1.0], p=[0.1, 0.6, 0.3]))
        yield pa.RecordBatch.from_arrays([day, town, n], schema=SCHEMA), chosen


def _wanted(batches: int, seed: int, days: int = 5) -> list[pa.Table]:
    return [pa.Table.from_batches([records]).take(pa.array(rows)) for records, rows in _rows(batches, seed, days)]


def _groups(written: list[Written]) -> list[int]:
    footers = [one.footer for one in written]
    return [footer.row_group(place).num_rows for footer in footers for place in range(footer.num_row_groups)]


@pytest.mark.slow
@pytest.mark.parametrize("in_folders", [(), ("day",), ("day", "town")])
@pytest.mark.parametrize("limits", [{}, {"LEAST_ROW_GROUP": 300}, {"LEAST_ROW_GROUP": 300, "_OPEN_FILES": 2},
                                    {"_MOST_HELD": 900}, {"_LONG_RUN": 40}])  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_each_partition_has_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, limits: dict[str, int], in_folders: tuple[str, ...]
) -> None:
    """Its chosen rows and no others, in their order, in folders that mean the same as Arrow's; footers say the rows."""
    for name, value in limits.items():
        monkeypatch.setattr(new_files, name, value)
    written = write_new_files(_rows(9, seed), SCHEMA, in_folders, tmp_path / "new", TARGET_FILE_BYTES)
    wanted = pa.concat_tables(_wanted(9, seed))
    assert sum(one.footer.num_rows for one in written) == wanted.num_rows
    by = ds.partitioning(pa.schema([SCHEMA.field(name) for name in in_folders]), flavor="hive")
    if in_folders:
        ds.write_dataset(wanted, tmp_path / "arrow", format="parquet", partitioning=by)
    else:
        ds.write_dataset(wanted, tmp_path / "arrow", format="parquet")
    # Arrow's names have more signs as codes than Spark's, and mean the same.
    arrows = {path.parent for path in (tmp_path / "arrow").rglob("*.parquet")}
    of = {unquote(one.relative_to(tmp_path / "arrow").as_posix()): one for one in arrows}
    ours = {one.path.parent for one in written}
    assert {unquote(one.relative_to(tmp_path / "new").as_posix()) for one in ours} == set(of)
    for folder in ours:
        parts = sorted((path for path in folder.iterdir() if path.is_file()), key=lambda path: int(path.name))
        found = [n for part in parts for n in pq.ParquetFile(part).read()["n"].to_pylist()]
        of_arrow = [n for part in of[unquote(folder.relative_to(tmp_path / "new").as_posix())].glob("*.parquet")
                    for n in pq.ParquetFile(part).read()["n"].to_pylist()]  # fmt: skip
        assert sorted(found) == sorted(of_arrow)
        assert found == sorted(found), f"seed {seed}"


def test_row_groups_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All row groups of a file but the last have at least the fewest rows."""
    monkeypatch.setattr(new_files, "LEAST_ROW_GROUP", 700)
    written = write_new_files(_rows(20, 1, days=2), SCHEMA, ("day",), tmp_path, TARGET_FILE_BYTES)
    assert len(written) == 2
    for one in written:
        *groups, _ = _groups([one])
        assert groups
        assert min(groups) >= 700


@pytest.mark.parametrize("in_folders", [(), ("day",)])
def test_files_end_at_the_target(tmp_path: Path, in_folders: tuple[str, ...]) -> None:
    """Each but the last of a partition has the target's bytes, and no row group more; rows go on in their order."""
    target = 10_000
    written = write_new_files(_rows(60, 3, days=2), SCHEMA, in_folders, tmp_path, target)
    folders = [one.path.parent for one in written]
    assert folders == sorted(folders)
    for folder in set(folders):
        parts = [one for one in written if one.path.parent == folder]
        assert len(parts) > 3
        for part in parts[:-1]:
            *_, last = (part.footer.row_group(group) for group in range(part.footer.num_row_groups))
            size = part.path.stat().st_size
            assert target <= size
            assert size - last.total_byte_size - part.footer.serialized_size < target
        found = [n for part in parts for n in pq.ParquetFile(part.path).read()["n"].to_pylist()]
        assert found == sorted(found)
    assert sum(one.footer.num_rows for one in written) == sum(table.num_rows for table in _wanted(60, 3, 2))


def test_few_wide_rows_make_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are held by their bytes too, so that their width is no matter of memory."""
    monkeypatch.setattr(new_files, "_MOST_GROUP_BYTES", 100_000)
    rows = 64
    records = pa.record_batch({"n": range(rows), "v": ["v" * 10_000] * rows})
    (one,) = write_new_files([(records, np.arange(rows))] * 3, records.schema, (), tmp_path, TARGET_FILE_BYTES)
    assert _groups([one]) == [rows] * 3


def test_without_rows_there_are_no_files(tmp_path: Path) -> None:
    """Neither without record batches nor without chosen rows."""
    records, _ = next(_rows(1, 0))
    assert not write_new_files([], SCHEMA, ("day",), tmp_path, TARGET_FILE_BYTES)
    rows = [(records, np.zeros(0, np.int64))]
    assert not write_new_files(rows, SCHEMA, ("day",), tmp_path, TARGET_FILE_BYTES)


def test_an_error_of_the_rows_passes_through(tmp_path: Path) -> None:
    """With row groups under way too, and files are closed."""

    def rows() -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        yield from _rows(3, 2)
        raise ValueError("the source is gone")

    with pytest.raises(ValueError, match="the source is gone"):
        write_new_files(rows(), SCHEMA, ("day",), tmp_path, TARGET_FILE_BYTES)


NAN, INF = math.nan, math.inf
COLUMNS = [[1.0, 2.0, None], [1.0, NAN, 2.0], [NAN, NAN, None], [1.0, INF, None], [-INF, 1.0, NAN], [None] * 3]


def _rank(value: float) -> tuple[bool, float]:
    """As Spark and DataFusion order numbers: NaN is the greatest."""
    return (True, 0.0) if math.isnan(value) else (False, value)


QUESTIONS: dict[str, Callable[[float], bool]] = {
    "x > 100": lambda x: _rank(x) > (False, 100.0),
    "NOT (x <= 2)": lambda x: _rank(x) > (False, 2.0),
    "x = 'NaN'::double": math.isnan,
    "x = 'Infinity'::double": lambda x: x == INF,
    "x < 1.5": lambda x: _rank(x) < (False, 1.5),
    "x < -1e9": lambda x: x < -1e9,
    "x >= 1": lambda x: _rank(x) >= (False, 1.0),
    "x <> 1": lambda x: x != 1,
    "x IS NOT NULL": lambda x: True,
}


def _statistics(root: Path) -> list[dict[str, Any]]:
    logs = sorted(root.glob("_delta_log/*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    return [json.loads(action["add"]["stats"]) for action in actions if "add" in action]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [COLUMNS[:2], COLUMNS[2:4], COLUMNS[4:], COLUMNS])
def test_readers_find_each_row(columns: list[list[float | None]], tmp_path: Path) -> None:
    """Files with and without NaN and infinities in one table, asked by DataFusion and by Arrow's dataset."""
    values: dict[int, float | None] = {}
    for number, column in enumerate(columns):
        of_file = dict(enumerate(column, 10 * number))
        rows = pa.table({"k": list(of_file), "x": pa.array(of_file.values(), pa.float64())})
        load(rows, tmp_path / "t", key=["k"])
        values |= of_file
    table = DeltaTable(str(tmp_path / "t"))
    for question, holds in QUESTIONS.items():
        found = pa.table(QueryBuilder().register("t", table).execute(f"SELECT k FROM t WHERE {question}"))
        wanted = [key for key, x in values.items() if x is not None and holds(x)]
        assert sorted(found["k"].to_pylist()) == wanted, question
    x = pc.field("x")
    in_memory = pa.table({"k": list(values), "x": pa.array(values.values(), pa.float64())})
    dataset = table.to_pyarrow_dataset()
    for expression in (x > 100, ~(x <= 2), x.is_nan(), x < 1.5, x < -1e9, x >= 1, x != 1, x.is_valid(), x.is_null()):
        found = dataset.to_table(filter=expression)
        assert sorted(found["k"].to_pylist()) == in_memory.filter(expression)["k"].to_pylist(), expression


def test_bounds_are_those_of_the_numbers(place: Place) -> None:
    """Of finite numbers the log has bounds and nulls; footers have none of them, nested ones neither, and of others."""
    nested = pa.array([{"f": 1.0, "n": 1}] * 4)
    x = pa.array([1.5, None, -2.0, 0.25], pa.float32())
    rows = pa.table({"k": [1, 2, 3, 4], "x": x, "z": pa.nulls(4, pa.float64()), "s": nested})
    load(rows, place.root, key=["k"], table_format=place.format)
    [file] = place.root.glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    found = {group.column(at).path_in_schema: group.column(at).statistics for at in range(group.num_columns)}
    assert {path for path, one in found.items() if one is not None} == {"k", "s.n"}
    if place.format == "delta":
        [statistics] = _statistics(place.root)
        assert statistics["minValues"] == {"k": 1, "x": -2.0}
        assert statistics["maxValues"] == {"k": 4, "x": 1.5}
        assert statistics["nullCount"] == {"k": 0, "x": 1, "z": 4}


@pytest.mark.slow
def test_a_file_with_nan_has_its_number_of_rows_alone(tmp_path: Path) -> None:
    """A rewritten one too."""
    place = Place(tmp_path, "delta")
    file = tmp_path / "load.yaml"
    file.write_text("source: {path: in}\ntable: {path: table}\nkey: k\n", encoding="utf-8")
    load(pa.table({"k": [1, 2], "x": [NAN, 1.0]}), place.root, key=["k"])
    delete(pa.table({"k": [2]}), load_config(file))
    delete(pa.table({"k": [1]}), load_config(file))
    load(pa.table({"k": [3, 4], "x": [1.0, 2.0]}), place.root, key=["k"])
    upsert(pa.table({"k": [4], "x": [INF]}), load_config(file))
    upsert(pa.table({"k": [4], "x": [0.0]}), load_config(file))
    assert [len(one) for one in _statistics(place.root)] == [1, 1, 4, 1, 4]
