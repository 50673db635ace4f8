"""CPU seconds of a window of a range stream with many and with few open ranges: what the state takes.

    python tests/bench/bench_range_stream.py --open 1000 1000000 --events 100000 --new 1000 --windows 20

Rows are drawn from a seed: ids of `--ids`, ranges that are open at all times and longer than the run, events that move
on by a second a window. The first windows bring the ranges and are not measured. Each line is one run in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.range_stream.runner import StreamRunner, owned_store
from tests.deduper.range_stream.stream_scene import Port, Scene

_BASE_US = 1_767_225_600_000_000
_INSTANT = pa.timestamp("us", "UTC")


def _publish(port: Port, rows: pa.Table) -> None:
    name = f"{port.store[:8]}-{port.windows:012d}-0000.parquet"
    pq.write_table(rows, port.folder / name)
    port.mark(port.windows)
    port.windows += 1


def _ranges(draw: np.random.Generator, rows: int, ids: int, first: int) -> pa.Table:
    start = _BASE_US - draw.integers(0, 3_600_000_000, rows)
    end = _BASE_US + draw.integers(3_600_000_000, 7_200_000_000, rows)
    return pa.table(
        {
            "id": pa.array(draw.integers(0, ids, rows)),
            "start": pa.array(start).cast(_INSTANT),
            "end": pa.array(end).cast(_INSTANT),
            "points": pa.array(draw.integers(1, 1000, rows)),
            "campaign": pa.array(np.arange(first, first + rows)),
            "op": pa.array(["new"] * rows),
        }
    )


def _events(draw: np.random.Generator, rows: int, ids: int, window: int) -> pa.Table:
    at = _BASE_US + window * 1_000_000 + draw.integers(0, 1_000_000, rows)
    return pa.table(
        {
            "id": pa.array(draw.integers(0, ids, rows)),
            "at": pa.array(at).cast(_INSTANT),
            "event": pa.array(np.arange(rows) + window * rows),
            "page": pa.array([f"/page/{number % 997}" for number in range(rows)]),
        }
    )


def measure(arguments: argparse.Namespace, held: int, folder: Path) -> dict[str, object]:
    """One run."""
    scene = Scene(folder, {"late_ranges": arguments.late, "aggregates": dict(arguments.aggregates), "period": "1h"})
    draw = np.random.default_rng(arguments.seed)
    step = max(1, held // 10)
    for first in range(0, held, step):
        _publish(scene.ranges, _ranges(draw, min(step, held - first), arguments.ids, first))
    _publish(scene.events, _events(draw, 1000, arguments.ids, 0))
    scene.settings["max_windows"] = 1
    cpu: list[float] = []
    with contextlib.ExitStack() as stack:
        owned = stack.enter_context(
            owned_store(scene.job, take_over=False, wall_clock_us=lambda: time.time_ns() // 1000)
        )
        runner = StreamRunner(scene.job, owned, lambda: time.time_ns() // 1000)
        while runner.run() is not None:  # all ranges, and few events
            pass
        for window in range(1, arguments.windows + 1):
            _publish(scene.ranges, _ranges(draw, arguments.new, arguments.ids, held + window * arguments.new))
            _publish(scene.events, _events(draw, arguments.events, arguments.ids, window))
        while True:
            began = time.process_time()
            counts = runner.run()
            if counts is None:
                break
            if counts.get("events", 0) == arguments.events:
                cpu.append(time.process_time() - began)
        rows = [level.rows.num_rows for level in runner.state.ranges]
        began = time.process_time()
        StreamRunner(scene.job, owned, lambda: time.time_ns() // 1000)
        start = time.process_time() - began
    return {
        "open": held,
        "levels": rows,
        "windows": len(cpu),
        "cpu_median_s": round(float(np.median(cpu)), 3),
        "cpu_mean_s": round(float(np.mean(cpu)), 3),
        "cpu_max_s": round(max(cpu), 3),
        "start_cpu_s": round(start, 3),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--new", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--ids", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--late", choices=["port", "correct"], default="port")
    parser.add_argument("--aggregates", type=json.loads, default={"points": "sum(points)"})
    arguments = parser.parse_args()
    for held in arguments.open:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(arguments, held, Path(folder) / "stream")), flush=True)


if __name__ == "__main__":
    main()
