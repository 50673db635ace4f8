"""Index, `filter` and one batch by the size of the table: `python -m tests.bench.bench_table_index [MILLIONS ...]`.

Tables of 1, 10 and 100 million rows (or as given) of EVENTS without their text, so the time of a load has as little as
possible that does not depend on the index: by day (1,095), and `global`: without partitions, all keys in one part of
the index. Of each: the building of the index; `filter_exists` of 1 million keys, half of which the table has, drawn
from all days; loads of 500,000 rows, 5 % of them repeats. *Cold* is the first call of a process after the pages of the
index have left the cache, with the loading of the kernels; *warm* the median of three calls after it. Of five loads the
median of the last three counts; their peak memory is resident, with the pages of the index.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.bench.bench_table_workloads import Engine
from tests.bench.machine import drop_pages
from tests.bench.table_workloads import SHAPES, Workload, ids_of

_KEYS = 1_000_000
_LOADS = 5
_NOT_COUNTED = 2


def asked_keys(workload: Workload) -> pa.Table:
    """Keys, half of them of the first table."""
    random = np.random.default_rng(5)
    known = np.unique(random.integers(0, workload.rows, _KEYS // 2))
    new = workload.rows * 2 + np.arange(_KEYS - len(known))
    day = np.concatenate([workload.day_of(known), random.integers(0, workload.shape.days, len(new))])
    order = random.permutation(_KEYS)
    ids, day = ids_of(np.concatenate([known, new]))[order], day[order].astype(np.int32)
    return pa.table({"id": pa.array(ids), "day": pa.array(day).cast(pa.date32())})


def measure(rows: int, folder: Path, *, is_partitioned: bool) -> str:
    """A line of the table."""
    shape = replace(SHAPES["events"], is_partitioned=is_partitioned)
    workload = Workload(shape, rows, shape.batch, has_payload=False)
    table, batch, keys = folder / "table", folder / "batch.parquet", folder / "keys.parquet"
    by = "day" if is_partitioned else None
    for part in workload.first_table():
        write_deltalake(str(table), part, mode="append", partition_by=None if by is None else [by])
    pq.write_table(asked_keys(workload), keys)

    with Engine("ours", folder / "log") as engine:
        built = engine.ask(do="build", table=str(table), batch=str(keys), by=by)
    drop_pages(table / "_deduper")
    with Engine("ours", folder / "log") as engine:
        asked = [engine.ask(do="filter", table=str(table), batch=str(keys), by=by) for _ in range(4)]
        new = {one["found"]["new"] for one in asked}
        assert len(new) == 1, new
        loads = []
        for _ in range(_LOADS):
            records, known = workload.next_batch()
            pq.write_table(records, batch)
            loads.append(engine.ask(do="insert", table=str(table), batch=str(batch), by=by))
            assert loads[-1]["found"]["found"] == len(known)
    warm = statistics.median(one["seconds"] for one in asked[1:])
    counted = loads[_NOT_COUNTED:]
    return (
        f"| {rows:,} | {by or 'global'} | {built['seconds']:.1f} | {built['cpu_seconds']:.1f} | {built['peak_mb']:.0f} "
        f"| {built['found']['bytes'] / rows:.1f} | {asked[0]['seconds']:.2f} | {warm:.2f} "
        f"| {statistics.median(one['seconds'] for one in counted):.2f} "
        f"| {statistics.median(one['cpu_seconds'] for one in counted):.2f} "
        f"| {max(one['peak_mb'] for one in counted):.0f} |"
    )


def main() -> None:
    """Prints a table."""
    millions = [int(word) for word in sys.argv[1:]] or [1, 10, 100]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| rows | by | build s | CPU s | peak MB | B a key | filter cold s | warm s | load s | CPU s | peak MB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for million in millions:
        for is_partitioned in (True, False):
            folder = Path(tempfile.mkdtemp(prefix="bench-index-"))
            try:
                print(measure(million * 1_000_000, folder, is_partitioned=is_partitioned), flush=True)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
