"""CPU seconds of a window of a range stream with many and with few open ranges: what the state takes.

    python tests/bench/bench_range_stream.py --open 1000 1000000 --events 100000 --new 1000 --windows 20

    python tests/bench/bench_range_stream.py --beside --open 1000000 --windows 12

With `--beside` a job (`deduper run`) deduplicates the same events from Parquet to Parquet, and the stream follows its
port: after each window of the job it takes that window, with `--new` new ranges. Rows/s and CPU seconds of both.

Rows are drawn from a seed: ids of `--ids`, ranges that are open at all times and longer than the run, events that move
on by a second a window. The first windows bring the ranges and are not measured. Each line is one run in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.ranges.stream.runner import StreamRunner, owned_store
from deduper.service.job import run as run_job
from deduper.window.progress import BatchProgress
from tests.bench.cpu import cpu_us
from tests.deduper.ranges.stream.stream_scene import Port, Scene
from tests.spark.harness import PORTS, Job

_BASE_US = 1_767_225_600_000_000
_EVENT_COLUMNS = "id long, at timestamp, event long, page string"
_WARM = 3
"""Windows that are not measured beside a job: the JVM and the tables are cold."""
_INSTANT = pa.timestamp("us", "UTC")


def _publish(port: Port, rows: pa.Table) -> None:
    name = f"{port.store[:8]}-{port.windows:012d}-0000.parquet"
    pq.write_table(rows, port.folder / name)
    port.mark(port.windows)
    port.windows += 1


def _ranges(draw: np.random.Generator, rows: int, ids: int, first: int, late: float = 1.0) -> pa.Table:
    """Ranges that are open in the run; a share begins before all events, and the others behind them."""
    start = _BASE_US - draw.integers(0, 3_600_000_000, rows)
    end = _BASE_US + draw.integers(3_600_000_000, 7_200_000_000, rows)
    is_early = draw.random(rows) >= late
    start, end = np.where(is_early, end, start), np.where(is_early, end + 3_600_000_000, end)
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
        while runner.plan():  # all ranges, and few events
            runner.run()
        for window in range(1, arguments.windows + 1):
            _publish(
                scene.ranges,
                _ranges(draw, arguments.new, arguments.ids, held + window * arguments.new, arguments.late_share),
            )
            _publish(scene.events, _events(draw, arguments.events, arguments.ids, window))
        while runner.plan():
            began = time.process_time()
            _, counts = runner.run()
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


def beside(arguments: argparse.Namespace, held: int, folder: Path) -> dict[str, object]:
    """One run of a job, and of a stream that follows it window by window."""
    scene = Scene(
        folder,
        {
            "late_ranges": arguments.late,
            "aggregates": dict(arguments.aggregates),
            "period": "1h",
            "max_windows": 1,
            "events": "job/unique",
        },
    )
    draw = np.random.default_rng(arguments.seed)
    step = max(1, held // 10)
    for first in range(0, held, step):
        _publish(scene.ranges, _ranges(draw, min(step, held - first), arguments.ids, first))
    (folder / "job/in").mkdir(parents=True)
    for window in range(arguments.windows + 1):
        file = folder / f"job/in/{window:06d}.parquet"
        pq.write_table(_events(draw, arguments.events if window else 1000, arguments.ids, window), file)
        os.utime(file, (_BASE_US / 1e6 + window,) * 2)
    job = Job(
        folder / "job",
        None,
        {
            "source": {"file_format": "parquet", "schema": _EVENT_COLUMNS, "max_files_per_batch": 1},
            "key": "event",
            "expiry": {"by": "event_time", "field": "at", "period": "1h", "span": "10m"},
            "store": {"url": "rocksdb:state", "shards": os.cpu_count()},
            "sinks": {port: {"format": "parquet", "path": port} for port in PORTS},
        },
    )
    turns: list[dict[str, float]] = []
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: time.time_ns() // 1000) as owned:
        runner = StreamRunner(scene.job, owned, lambda: time.time_ns() // 1000)
        marks = {"cpu": 0}

        def follow(progress: BatchProgress) -> None:
            job_cpu = sum(cpu_us().values()) - marks["cpu"]
            if progress.window:
                first = held + progress.window * arguments.new
                _publish(scene.ranges, _ranges(draw, arguments.new, arguments.ids, first, arguments.late_share))
                began, cpu = time.perf_counter(), time.process_time()
                counts = runner.run()[1] if runner.plan() else {}
                assert counts["events.answered"] == progress.rows == arguments.events
                turns.append(
                    {
                        "job_s": progress.seconds,
                        "job_cpu_s": job_cpu / 1e6,
                        "stream_s": time.perf_counter() - began,
                        "stream_cpu_s": time.process_time() - cpu,
                        "corrections": counts.get("corrections", 0),
                    }
                )
            while not progress.window and runner.plan() and runner.run():  # all ranges, and few events
                pass
            marks["cpu"] = sum(cpu_us().values())

        run_job(job.config, once=True, max_windows=None, take_over=False, on_progress=follow)
        held_now = sum(level.rows.num_rows for level in runner.state.ranges)
    measured = turns[_WARM:]
    median = {name: float(np.median([turn[name] for turn in measured])) for name in measured[0]}
    return {
        "open": held_now,
        "windows": len(measured),
        "load": round(os.getloadavg()[0], 1),
        **{name: round(value, 3) for name, value in median.items()},
        "job_rows_per_s": round(arguments.events / median["job_s"]),
        "stream_rows_per_s": round(arguments.events / median["stream_s"]),
        "rate_ratio": round(float(np.median([one["job_s"] / one["stream_s"] for one in measured])), 2),
        "cpu_ratio": round(float(np.median([one["job_cpu_s"] / one["stream_cpu_s"] for one in measured])), 2),
        "mean_rate_ratio": round(sum(one["job_s"] for one in measured) / sum(one["stream_s"] for one in measured), 2),
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
    parser.add_argument("--late-share", type=float, default=1.0, help="of new ranges, those that cover earlier events")
    parser.add_argument("--aggregates", type=json.loads, default={"points": "sum(points)"})
    parser.add_argument("--beside", action="store_true", help="beside a job that deduplicates the same events")
    arguments = parser.parse_args()
    for held in arguments.open:
        with tempfile.TemporaryDirectory() as folder:
            one = beside if arguments.beside else measure
            print(json.dumps(one(arguments, held, Path(folder) / "stream")), flush=True)


if __name__ == "__main__":
    main()
