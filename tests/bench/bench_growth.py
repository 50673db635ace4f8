"""What windows cost while the keys grow: a real job over new keys, its longest window beside the median.

    python -m tests.bench.bench_growth [--windows 60] [--rows 1000000] [--memory 6GiB] [--directory DIR]

Each window is one Parquet file, of which a twentieth repeats earlier keys; every key stays live. The first ten windows
are not counted: Spark starts in them, and their tables are small.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from deduper.config.sections import PORTS

_FIRST_S = 1_700_000_000
_WINDOW_S = 900
_SPREAD = np.int64(-7046029254386353131)
_UNCOUNTED = 10


def make_input(directory: Path, windows: int, rows: int) -> None:
    """A file a window."""
    draw, repeats = np.random.default_rng(7), rows // 20
    for number in range(windows):
        ids = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
        if number:
            ids[draw.integers(0, rows, repeats)] = draw.integers(0, number * rows, repeats)
        seconds = _FIRST_S + number * _WINDOW_S + draw.integers(0, _WINDOW_S, rows)
        times = pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC"))
        path = directory / f"{number:04}.parquet"
        parquet.write_table(pa.table({"user": ids * _SPREAD, "ts": times}), path)
        os.utime(path, (_FIRST_S + number,) * 2)


def run_job(directory: Path, memory: str) -> list[dict[str, object]]:
    """Its windows, as `run --json` reports them."""
    ports = ", ".join(f"{port}: {{format: parquet, path: out/{port}}}" for port in PORTS)
    (directory / "job.yaml").write_text(
        'source: {format: files, path: in/, file_format: parquet, schema: "user long, ts timestamp",\n'
        "         max_files_per_batch: 1}\n"
        "key: user\n"
        "expiry: {by: event_time, field: ts, period: 30d, span: 12h, lookup: all_live}\n"
        f'store: {{url: "rocksdb:state", shards: 2, memory: {memory}}}\n'
        f"sinks: {{{ports}}}\n"
    )
    command = [sys.executable, "-m", "deduper", "run", str(directory / "job.yaml"), "--once", "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    events = [json.loads(line) for line in printed.splitlines()]
    return [event for event in events if event.get("event") == "window"]


def main(arguments: list[str]) -> None:
    """Print the seconds of all windows, and the longest of them."""
    parser = argparse.ArgumentParser("python -m tests.bench.bench_growth", description=__doc__)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="6GiB")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        (directory / "in").mkdir()
        make_input(directory / "in", options.windows, options.rows)
        windows = run_job(directory, options.memory)
    seconds = [float(str(window["seconds"])) for window in windows]
    counted = seconds[_UNCOUNTED:]
    print(*seconds)
    print(f"load {os.getloadavg()[0]:.1f}; {sum(int(str(window['unique'])) for window in windows):,} keys")
    print(
        f"windows from {_UNCOUNTED} on: median {statistics.median(counted):.2f} s, longest {max(counted):.2f} s, "
        f"{max(counted) / statistics.median(counted):.1f} times the median; all windows {sum(seconds):.1f} s"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
