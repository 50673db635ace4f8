"""The CPU of windows by process, on one machine's executors and in one process.

    python -m tests.bench.bench_executors [--masters "local[2];local-cluster[2,1,1024]"] [--windows 50] [--warm 50]
        [--rows 1000] [--files 1] [--turns 1] [--java "-XX:TieredStopAtLevel=1"]

Seconds are those that the kernel counts for user and system, of each process between two windows: after the warm ones,
and after the last. Processes that ended in between are not counted. Of the JVMs those of the compiler's and the
collector's threads are named as well; a compiler thread that ended in between counts as other work.

A window has a file of JSON lines, or `--files` files of Parquet that share its rows. A fifth of the keys are copies, a
key expires after five windows, and a port of files takes each verdict but `expired`. Masters take turns. Rows a second
are those of the measured windows, and mean something on an idle machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet

_PROCESSES = ("driver, Python", "driver, JVM", "executors, JVM", "Python workers")
_THREADS = ("compiling", "collecting")
_TICKS = os.sysconf("SC_CLK_TCK")


def _kind(process: psutil.Process, me: int) -> str:
    if process.pid == me:
        return _PROCESSES[0]
    if process.name() == "java":
        return _PROCESSES[2] if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) else _PROCESSES[1]
    return _PROCESSES[3]


def _cpu() -> dict[tuple[int, str], float]:
    """The CPU seconds of this process and of all below it, by number and kind; of JVMs also those of some threads."""
    me = psutil.Process()
    found = {}
    for process in (me, *me.children(recursive=True)):
        try:
            times, kind = process.cpu_times(), _kind(process, me.pid)
            found[process.pid, kind] = times.user + times.system
            if "JVM" in kind:
                for thread, seconds in _threads(process.pid).items():
                    found[process.pid, f"{kind}: {thread}"] = seconds
        except (psutil.Error, OSError):
            continue
    return found


def _threads(process: int) -> Counter[str]:
    """The CPU seconds of a JVM's threads that compile, and that collect garbage."""
    spent: Counter[str] = Counter()
    for stat in Path(f"/proc/{process}/task").glob("*/stat"):
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        kind = {"C1": _THREADS[0], "C2": _THREADS[0], "GC": _THREADS[1], "G1": _THREADS[1], "VM": _THREADS[1]}
        if (of := kind.get(name[:2])) is not None:
            spent[of] += sum(map(int, rest.split()[11:13])) / _TICKS
    return spent


def _add_json(path: Path, window: int, rows: int) -> None:
    lines = [json.dumps({"k": f"{window}-{row}" if row % 5 else f"copy-{row}", "t": window}) for row in range(rows)]
    path.with_suffix(".json").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _add_parquet(path: Path, window: int, file: int, rows: int) -> None:
    keys = np.random.default_rng(window * 64 + file).integers(0, 1 << 62, rows)
    keys[::5] = np.arange(keys[::5].size) + file * rows
    table = pa.table({"k": keys, "t": np.full(rows, window)})
    parquet.write_table(table, path.with_suffix(".parquet"))


def _one(master: str, directory: Path, given: argparse.Namespace) -> None:
    """Run a job, and print its CPU by kind as JSON, in ms a window, and its rows a second."""
    from deduper.config.load import load_config
    from deduper.service.job import run
    from deduper.window.present_clock import wall_clock_us

    warm, windows, rows, files = given.warm, given.windows, given.rows, given.files
    (directory / "in").mkdir()
    for window in range(warm + windows):
        for file in range(files or 1):
            path = directory / "in" / f"{window:05d}-{file}"
            if files:
                _add_parquet(path, window, file, rows // files)
            else:
                _add_json(path, window, rows)
    for number, path in enumerate(sorted((directory / "in").iterdir())):
        os.utime(path, (1_700_000_000 + number,) * 2)
    sinks = "".join(f"  {port}: {{format: parquet, path: out/{port}}}\n" for port in ("unique", "duplicate", "error"))
    columns, kind = ("k long, t long", "parquet") if files else ("k string, t long", "json")
    java = json.dumps(given.java)
    config = directory / "job.yaml"
    config.write_text(
        f'name: bench\nsource: {{format: files, path: in, file_format: {kind}, schema: "{columns}", '
        f"max_files_per_batch: {files or 1}}}\nkey: k\n"
        "expiry: {by: ordered, field: t, period: 5, span: 1}\n"
        f"store: {{url: file:state, shards: 4, tables: tables}}\nsinks:\n{sinks}  expired: {{format: none}}\n"
        f'spark: {{spark.master: "{master}", spark.driver.memory: 1g, spark.local.dir: {directory}, '
        f"spark.driver.extraJavaOptions: {java}, spark.executor.extraJavaOptions: {java}}}\n",
        encoding="utf-8",
    )
    seen: list[tuple[float, dict[tuple[int, str], float]]] = []
    count = 0

    def note(_: object) -> None:
        nonlocal count
        count += 1
        if count in (warm, warm + windows):
            seen.append((time.monotonic(), _cpu()))

    run(load_config(config), once=True, max_windows=None, take_over=False, on_progress=note, clock=wall_clock_us)
    (began, first), (ended, last) = seen
    spent: Counter[str] = Counter()
    for (process, kind), seconds in last.items():
        spent[kind] += 1000 * (seconds - first.get((process, kind), 0.0)) / windows
    spent["rows/s"] = windows * rows / (ended - began)
    print(json.dumps(spent), flush=True)


def _line(spent: dict[str, float]) -> str:
    """A line of the table."""
    figures = []
    for kind in _PROCESSES:
        of_threads = [f"{spent.get(f'{kind}: {thread}', 0):.0f} {thread}" for thread in _THREADS]
        jvm = f" ({', '.join(of_threads)})" if "JVM" in kind and spent.get(kind) else ""
        figures.append(f"{spent.get(kind, 0):.0f}{jvm}")
    return " | ".join((*figures, f"{_all(spent):.0f}", f"{spent['rows/s']:,.0f}"))


def _all(spent: dict[str, float]) -> float:
    return sum(spent.get(kind, 0) for kind in _PROCESSES)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", default="local[2];local-cluster[2,1,1024]", help="divided by semicolons")
    parser.add_argument("--windows", type=int, default=50)
    parser.add_argument("--warm", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--files", type=int, default=0, help="of Parquet; 0: one of JSON")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--java", default="", help="options of the JVMs of driver and executors")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory() as folder:
            _one(given.one, Path(folder), given)
        return
    masters = given.masters.split(";")
    print(f"CPU ms a window of {given.rows} rows; load {os.getloadavg()[0]:.1f}\n")
    print("| | " + " | ".join((*_PROCESSES, "all", "rows/s")) + " |\n|---|" + "---|" * (len(_PROCESSES) + 2))
    alls: dict[str, list[float]] = {master: [] for master in masters}
    for _ in range(given.turns):
        for master in masters:
            words = [sys.executable, "-m", "tests.bench.bench_executors", *sys.argv[1:], "--one", master]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            spent = json.loads(done.stdout.splitlines()[-1])
            alls[master].append(_all(spent))
            print(f"| `{master}` | {_line(spent)} |", flush=True)
    means = {master: statistics.mean(of_turns) for master, of_turns in alls.items()}
    ratios = ", ".join(f"`{master}` {mean / means[masters[0]]:.2f}" for master, mean in means.items())
    print(f"\nCPU as a multiple of the first: {ratios}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
