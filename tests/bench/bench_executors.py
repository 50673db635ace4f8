"""The CPU of small windows by process, on one machine's executors and in one process.

    python -m tests.bench.bench_executors [--masters "local[2];local-cluster[2,1,1024]"] [--windows 50] [--rows 1000]
        [--java "-XX:TieredStopAtLevel=1"]

Seconds are those that the kernel counts for user and system, of each process between two windows: after half as many
warm ones, and after the last. Processes that ended in between are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil

_KINDS = ("driver, Python", "driver, JVM", "executors, JVM", "Python workers")


def _kind(process: psutil.Process, me: int) -> str:
    if process.pid == me:
        return _KINDS[0]
    if process.name() == "java":
        return _KINDS[2] if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) else _KINDS[1]
    return _KINDS[3]


def _cpu() -> dict[int, tuple[str, float]]:
    """The kind and the CPU seconds of this process and of all below it."""
    me = psutil.Process()
    found = {}
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
            found[process.pid] = _kind(process, me.pid), times.user + times.system
        except psutil.Error:
            continue
    return found


def _one(master: str, directory: Path, windows: int, rows: int, java: str) -> None:
    """Run a job, and print its CPU by kind as JSON, in ms a window. `java`: options of all its JVMs."""
    from deduper.config.load import load_config
    from deduper.service.job import run, wall_clock_us

    warm = windows // 2
    (directory / "in").mkdir()
    for number in range(warm + windows):
        lines = [json.dumps({"k": f"{number}-{row}" if row % 5 else f"copy-{row}", "t": number}) for row in range(rows)]
        path = directory / "in" / f"{number:05d}.json"
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        os.utime(path, (1_700_000_000 + number,) * 2)
    sinks = "".join(f"  {port}: {{format: parquet, path: out/{port}}}\n" for port in ("unique", "duplicate", "error"))
    config = directory / "job.yaml"
    config.write_text(
        'name: bench\nsource: {format: files, path: in, file_format: json, schema: "k string, t long", '
        "max_files_per_batch: 1}\nkey: k\nexpiry: {by: never}\nstore: {url: file:state, shards: 4, tables: tables}\n"
        f'sinks:\n{sinks}  expired: {{format: none}}\nspark: {{spark.master: "{master}", spark.driver.memory: 1g, '
        f"spark.local.dir: {directory}, spark.driver.extraJavaOptions: {json.dumps(java)}, "
        f"spark.executor.extraJavaOptions: {json.dumps(java)}}}\n",
        encoding="utf-8",
    )
    seen: list[dict[int, tuple[str, float]]] = []
    count = 0

    def note(_: object) -> None:
        nonlocal count
        count += 1
        if count in (warm, warm + windows):
            seen.append(_cpu())

    run(load_config(config), once=True, max_batches=None, take_over=False, on_progress=note, clock=wall_clock_us)
    first, last = seen
    spent: Counter[str] = Counter()
    for process, (kind, seconds) in last.items():
        spent[kind] += 1000 * (seconds - first.get(process, ("", 0.0))[1]) / windows
    print(json.dumps({kind: spent[kind] for kind in _KINDS}), flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", default="local[2];local-cluster[2,1,1024]", help="divided by semicolons")
    parser.add_argument("--windows", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--java", default="", help="options of the JVMs of driver and executors")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory() as folder:
            _one(given.one, Path(folder), given.windows, given.rows, given.java)
        return
    print(f"CPU ms a window of {given.rows} rows; load {os.getloadavg()[0]:.1f}\n")
    print("| | " + " | ".join((*_KINDS, "all")) + " |\n|---|" + "---|" * (len(_KINDS) + 1))
    for master in given.masters.split(";"):
        words = ["--one", master, "--windows", str(given.windows), "--rows", str(given.rows)]
        words += [f"--java={given.java}"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.bench_executors", *words], check=True, stdout=subprocess.PIPE, text=True
        )
        spent = json.loads(done.stdout.splitlines()[-1])
        figures = [f"{value:.0f}" for value in (*spent.values(), sum(spent.values()))]
        print(f"| `{master}` | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    main()
