"""What `fingerprint` costs: the same files judged with it on and off, in one process without Spark.

    nice -n 10 python -m tests.bench.bench_fingerprint [--windows 4] [--rows 15000] [--rounds 9] [--copies 0.3]

prints CPU microseconds a record, each the median over rounds taken in turns, and the bytes of a key in pieces and
in tables. Windows are small ones, which the driver's process reads, judges and writes: a payload of five columns and
about 100 bytes a line, of which `--copies` repeat a key. Rows named `error` and `unique` keep the text of every record.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from deduper.admin.open_store import open_store
from deduper.config.sections import PORTS
from tests.deduper.plain_job import PlainJob

SEED = 7
SCHEMA = "id string, ts long, amount double, page string, tags array<string>, note string"
_KINDS = [pa.string(), pa.int64(), pa.float64(), pa.string(), pa.list_(pa.string()), pa.string()]
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {"fingerprint": "all"},
    "error": {"fingerprint": "all", "on_conflict": "error"},
    "unique": {"fingerprint": "all", "on_conflict": "unique"},
}


def main() -> None:
    """Runs and prints both formats."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--copies", type=float, default=0.3)
    given = parser.parse_args()
    print(
        f"seed {SEED}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, pyarrow {pa.__version__}"
    )
    print(f"{given.windows} windows of {given.rows:,} records, {given.copies:.0%} copies, {given.rounds} rounds")
    print("format   setting  CPU us a record  times off  bytes a key: pieces  tables")
    for form in ("json", "parquet"):
        with tempfile.TemporaryDirectory() as folder:
            _run(Path(folder), form, given.windows, given.rows, given.rounds, given.copies)


def _run(folder: Path, form: str, windows: int, rows: int, rounds: int, copies: float) -> None:
    files = folder / "files"
    _make(files, form, windows, rows, copies)
    spent: dict[str, list[float]] = {name: [] for name in SETTINGS}
    bytes_of: dict[str, tuple[float, float]] = {}
    for number in range(rounds + 1):  # the first one warms
        for name, settings in SETTINGS.items():
            job = _job(folder / f"{name}-{number}", form, settings)
            shutil.copytree(files, job.root / "in", dirs_exist_ok=True)
            began = time.process_time()
            job.run()
            spent[name].append((time.process_time() - began) / (windows * rows) * 1e6)
            bytes_of[name] = _bytes(job)
            shutil.rmtree(job.root)
    off = median(spent["off"][1:])
    for name in SETTINGS:
        took, (pieces, tables) = median(spent[name][1:]), bytes_of[name]
        print(f"{form:<8} {name:<8} {took:15.2f} {took / off:10.3f} {pieces:20.1f} {tables:7.1f}")


def _job(root: Path, form: str, settings: dict[str, Any]) -> PlainJob:
    return PlainJob(
        root,
        {
            "source": {
                "format": "files",
                "path": "in",
                "file_format": form,
                "schema": SCHEMA,
                "max_files_per_batch": 1,
            },
            "key": "id",
            "expiry": {"by": "ordered", "field": "ts", "period": 10**12, "span": 10**12},
            "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
            "spark": {"spark.master": "local[1]"},
            **settings,
        },
    )


def _make(folder: Path, form: str, windows: int, rows: int, copies: float) -> None:
    folder.mkdir()
    rng = random.Random(SEED)
    keys = 0
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    for window in range(windows):
        records = []
        for _ in range(rows):
            key = rng.randrange(keys) if keys and rng.random() < copies else keys
            keys += key == keys
            tags = ["a", f"t{key % 7}"]
            records.append((f"user{key:012d}", key, key / 7, f"/page/{key % 997}", tags, "x" * (key % 40)))
        if form == "json":
            lines = (json.dumps(dict(zip(names, record, strict=True))) for record in records)
            (folder / f"{window:04d}.json").write_text("".join(f"{line}\n" for line in lines))
        else:
            columns = {
                name: pa.array(list(values), kind)
                for name, values, kind in zip(names, zip(*records, strict=True), _KINDS, strict=True)
            }
            parquet.write_table(pa.table(columns), folder / f"{window:04d}.parquet")


def _bytes(job: PlainJob) -> tuple[float, float]:
    """Bytes of a key in live pieces, and in tables (those of all windows but the last)."""
    state = open_store(str(job.config_file)).log.state
    pieces = [ref for of_shard in state.pieces.values() for ref in of_shard]
    before_last = sum(ref.entries for ref in pieces if ref.last_window < state.next_window - 1)
    memory = Path(job.memory)
    tables = sum(512 * path.stat().st_blocks for path in memory.rglob("*.table"))
    return sum(ref.length for ref in pieces) / sum(ref.entries for ref in pieces), tables / before_last


if __name__ == "__main__":
    main()
