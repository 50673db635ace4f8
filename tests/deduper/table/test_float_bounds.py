"""Bounds of floating-point columns: no reader skips a file or a row group that has an asked row."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from deduper.table.operations.changes import delete, load, upsert
from deduper.table.settings import load_config
from tests.deduper.table.scene import Place

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
