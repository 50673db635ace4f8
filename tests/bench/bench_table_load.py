"""Loads against a plain append and deltalake's merge: `python -m tests.bench.bench_table_load [ROUNDS ROWS]`.

Events of about 200 bytes by day. Each batch is one new day; 5 % of its rows are rows of the day before once more. All
contenders get the same batches in memory and start with an empty Delta table; the turn is rotated each round. The first
two rounds, which compile kernels and fill caches, do not count. Seconds are of the wall clock.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deduper.table.load import load

_REPEATED = 0.05
_SEED = 7
_NOT_COUNTED = 2


def batches(rounds: int, rows: int) -> list[pa.Table]:
    """One batch a round."""
    rng = np.random.default_rng(_SEED)
    made: list[pa.Table] = []
    for day in range(rounds):
        ids = np.arange(rows) + day * rows
        payload = pa.array([f"{first:016x}{second:016x}" * 5 for first, second in rng.integers(0, 1 << 62, (rows, 2))])
        days = pa.array(np.full(rows, day, np.int32)).cast(pa.date32())
        batch = pa.table({"user": pa.array(ids % 1000), "id": pa.array(ids), "day": days, "payload": payload})
        if made:
            again = rng.choice(rows, int(rows * _REPEATED), replace=False)
            batch = pa.concat_tables([batch.slice(len(again)), made[-1].take(pa.array(np.sort(again)))])
        made.append(batch.combine_chunks())
    return made


def append(table: str, batch: pa.Table) -> None:
    """The floor."""
    write_deltalake(table, batch, mode="append", partition_by=["day"])


def merge(table: str, batch: pa.Table) -> None:
    """Insert only, with the partition column in the predicate."""
    if not DeltaTable.is_deltatable(table):
        append(table, batch)
        return
    DeltaTable(table).merge(
        batch, "s.day = t.day AND s.user = t.user AND s.id = t.id", source_alias="s", target_alias="t"
    ).when_not_matched_insert_all().execute()


def ours(table: str, batch: pa.Table) -> None:
    """A load."""
    load(batch, table, key=["user", "id"], partition_by=["day"])


CONTENDERS: dict[str, Callable[[str, pa.Table], None]] = {
    "append": append,
    "deduper table load": ours,
    "deltalake merge": merge,
}


def main() -> None:
    """Prints a table."""
    rounds, rows = (int(word) for word in (*sys.argv[1:], "16", "500000")[:2])
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    folder = Path(tempfile.mkdtemp(prefix="bench-table-"))
    try:
        for number, batch in enumerate(batches(rounds, rows)):
            names = list(CONTENDERS)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                begin = time.perf_counter()
                CONTENDERS[name](str(folder / name), batch)
                taken[name].append(time.perf_counter() - begin)
        counts = {name: DeltaTable(str(folder / name)).to_pyarrow_dataset().count_rows() for name in CONTENDERS}
    finally:
        shutil.rmtree(folder)
    floor = statistics.median(taken["append"][_NOT_COUNTED:])
    print(f"{rounds} rounds of {rows:,} rows, seed {_SEED}, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    print("| | median s | least | greatest | of an append | rows |\n|---|---|---|---|---|---|")
    for name, seconds in taken.items():
        counted = seconds[_NOT_COUNTED:]
        middle = statistics.median(counted)
        print(
            f"| {name} | {middle:.2f} | {min(counted):.2f} | {max(counted):.2f} | {middle / floor:.2f} "
            f"| {counts[name]:,} |"
        )
    wanted = rows + (rounds - 1) * (rows - int(rows * _REPEATED))
    assert counts["deduper table load"] == counts["deltalake merge"] == wanted, counts


if __name__ == "__main__":
    main()
