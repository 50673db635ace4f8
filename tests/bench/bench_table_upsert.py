"""Upserts against deltalake's merge: `python -m tests.bench.bench_table_upsert [ROUNDS ROWS DAYS BATCH]`.

A table of some days, about 200 bytes a row; each batch has a fourth of keys that the table has, of days drawn by a Zipf
law from the newest, and new keys for the rest (FACT of lake-loader, smaller). Both contenders begin with copies of one
table and get the same batches in memory; the turn is rotated each round. The first two rounds do not count. CPU seconds
are of this process with all its threads.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deduper.table.change.upsert import upsert
from deduper.table.settings import load_config

_UPDATED = 0.25
_SEED = 11
_NOT_COUNTED = 2
_CONFIG = "source: {{path: in}}\ntable: {{path: {path}}}\nkey: [id]\npartition_by: day\n"


def rows_of(ids: np.ndarray, days: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Rows with a payload that does not compress well."""
    payload = pa.array([f"{a:016x}{b:016x}" * 5 for a, b in rng.integers(0, 1 << 62, (len(ids), 2))])
    return pa.table(
        {
            "id": pa.array(ids),
            "day": pa.array(days.astype(np.int32)).cast(pa.date32()),
            "amount": pa.array(rng.random(len(ids))),
            "payload": payload,
        }
    )


def first_table(rows: int, days: int) -> pa.Table:
    """Ids 0 to `rows`, dealt to days."""
    ids = np.arange(rows)
    return rows_of(ids, ids % days, np.random.default_rng(_SEED))


def batches(rounds: int, rows: int, days: int, batch: int) -> Iterator[pa.Table]:
    """One batch a round."""
    rng = np.random.default_rng(_SEED + 1)
    for number in range(rounds):
        old = int(batch * _UPDATED)
        ages = np.minimum(rng.zipf(1.3, batch) - 1, min(90, days) - 1)
        day = days - 1 - ages
        ids = np.empty(batch, np.int64)
        ids[:old] = rng.integers(0, rows // days, old) * days + day[:old]
        ids[old:] = rows + number * batch + np.arange(batch - old)
        unique = np.unique(ids, return_index=True)[1]
        yield rows_of(ids[unique], day[unique], rng)


def merge(folder: str, batch: pa.Table) -> None:
    """The partition column in the predicate."""
    DeltaTable(folder).merge(
        batch, "s.day = t.day AND s.id = t.id", source_alias="s", target_alias="t"
    ).when_matched_update_all().when_not_matched_insert_all().execute()


def ours(folder: str, batch: pa.Table) -> None:
    """An upsert."""
    config = Path(f"{folder}.yaml")
    config.write_text(_CONFIG.format(path=folder), encoding="utf-8")
    upsert(batch, load_config(config))


CONTENDERS: dict[str, Callable[[str, pa.Table], None]] = {"deduper table upsert": ours, "deltalake merge": merge}


def main() -> None:
    """Prints a table."""
    given = [int(word) for word in sys.argv[1:]]
    rounds, rows, days, batch = (*given, *(10, 1_000_000, 40, 20_000)[len(given) :])
    wall: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    cpu: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    folder = Path(tempfile.mkdtemp(prefix="bench-upsert-"))
    try:
        places = {name: str(folder / name.replace(" ", "-")) for name in CONTENDERS}
        first = first_table(rows, days)
        for place in places.values():
            write_deltalake(place, first, partition_by=["day"])
        for number, one in enumerate(batches(rounds, rows, days, batch)):
            names = list(CONTENDERS)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                begin, began = time.perf_counter(), time.process_time()
                CONTENDERS[name](places[name], one)
                wall[name].append(time.perf_counter() - begin)
                cpu[name].append(time.process_time() - began)
        found = [
            DeltaTable(place).to_pyarrow_dataset().to_table(columns=["id", "day", "amount"]).sort_by("id")
            for place in places.values()
        ]
        sizes = {
            name: sum(DeltaTable(place).get_add_actions()["size_bytes"].to_pylist()) for name, place in places.items()
        }
    finally:
        shutil.rmtree(folder)
    load = os.getloadavg()[0]
    print(f"{rows:,} rows of {days} days, {rounds} batches of {batch:,}, seed {_SEED}, load {load:.1f}\n")
    print("| | median s | least | greatest | median CPU s | MB |\n|---|---|---|---|---|---|")
    for name in CONTENDERS:
        counted = wall[name][_NOT_COUNTED:]
        of_cpu = statistics.median(cpu[name][_NOT_COUNTED:])
        print(
            f"| {name} | {statistics.median(counted):.2f} | {min(counted):.2f} | {max(counted):.2f} | {of_cpu:.2f} "
            f"| {sizes[name] / 1e6:.0f} |"
        )
    assert found[0].equals(found[1])


if __name__ == "__main__":
    main()
