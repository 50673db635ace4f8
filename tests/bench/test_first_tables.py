"""First tables of the benchmark of tables: made once, whole or not at all; copies are tables of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.bench.bench_table_workloads import CONTENDERS, FirstTables, Lane
from tests.bench.table_workloads import SHAPES, Workload

SHAPE = replace(SHAPES["fact"], rows=3000, days=5, batch=100)
PLAIN = next(one for one in CONTENDERS if one.engine == "deltalake")


def workload() -> Workload:
    """A small one."""
    return Workload(SHAPE, SHAPE.rows, SHAPE.batch)


def test_a_first_table_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies link to its files, have a log of their own, and the batches are the same as when it was made."""
    first, second = workload(), workload()
    lane = Lane(PLAIN, tmp_path / "a")
    FirstTables(tmp_path / "kept", first).copies([lane], None)
    (kept,) = (tmp_path / "kept").iterdir()
    one = next((kept / "delta").rglob("*.parquet"))
    assert (lane.table / one.relative_to(kept / "delta")).samefile(one)
    monkeypatch.setattr(Workload, "first_table", lambda _: pytest.fail("it is there"))
    other = Lane(PLAIN, tmp_path / "b")
    FirstTables(tmp_path / "kept", second).copies([other], None)
    assert first.next_batch()[0].equals(second.next_batch()[0])
    write_deltalake(str(lane.table), DeltaTable(str(lane.table)).to_pyarrow_table().slice(0, 7), mode="append")
    counts = [DeltaTable(str(table)).to_pyarrow_dataset().count_rows() for table in (lane.table, other.table)]
    assert counts == [SHAPE.rows + 7, SHAPE.rows]
    assert workload().problem(DeltaTable(str(kept / "delta")).to_pyarrow_dataset().to_batches()) is None


def test_a_making_that_ends_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left is not taken for a table."""
    whole = Workload.first_table

    def ends(given: Workload) -> Iterator[pa.Table]:
        yield next(iter(whole(given))).slice(0, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(Workload, "first_table", ends)
    lane = Lane(PLAIN, tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        FirstTables(tmp_path / "kept", workload()).copies([lane], None)
    monkeypatch.undo()
    FirstTables(tmp_path / "kept", workload()).copies([lane], None)
    assert DeltaTable(str(lane.table)).to_pyarrow_dataset().count_rows() == SHAPE.rows
