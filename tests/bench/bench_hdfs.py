"""What a small window costs with store and ports in HDFS: its time, the NameNode's calls and edits, its new files.

    python -m tests.bench.bench_hdfs [--windows 50] [--rows 1000] [--shards 2] [--rounds 2] [--directory DIR]

It starts a NameNode and two DataNodes on this machine, two replicas, and runs one job in this process. Then it runs the
same in turns with one on this machine's disk, its store in RocksDB: their windows side by side. Counts are those of the
NameNode's JMX between two windows, so without the start and the end of the job; its heartbeat and what the job deletes
beside the windows are in them. New files by kind are those of the NameNode's audit log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from deduper.config.load import load_config
from deduper.service.job import run
from deduper.window.present_clock import wall_clock_us
from deduper.window.progress import BatchProgress
from tests.services.hdfs import Hdfs
from tests.spark.harness import PORTS

_WARM = 10
_JMX_CACHE_S = 11.0
_CREATED = re.compile(r"cmd=create\tsrc=(\S+)")
_KINDS = {
    "piece": re.compile(r"/state/pieces/"),
    "staged file": re.compile(r"/_staging/"),
    "record": re.compile(r"/state/log/"),
    "intent": re.compile(r"/state/intents/"),
    "mark of the store": re.compile(r"/state/\.published"),
    "mark of a port": re.compile(r"/out/\w+/\._published"),
    "profile, heartbeat, clock": re.compile(r"/state/\."),
}
_BESIDE = ("intent", "mark of the store", "mark of a port", "profile, heartbeat, clock")


def _config(directory: Path, home: str, shards: int) -> Path:
    """`home`: the URL of a folder in HDFS, or empty: the directory itself."""
    ports, store = (f"{home}/out", f"{home}/state") if home else ("out", "rocksdb:state")
    sinks = "".join(f'  {port}: {{format: parquet, path: "{ports}/{port}"}}\n' for port in PORTS)
    path = directory / "job.yaml"
    path.write_text(
        'name: bench\nsource: {format: files, path: in, file_format: json, schema: "k string, t long", '
        "max_files_per_batch: 1}\nkey: k\nexpiry: {by: event_time, field: t, period: 1h, span: 10m, unit: s}\n"
        f'store: {{url: "{store}", shards: {shards}, tables: tables}}\nsinks:\n{sinks}'
        'spark: {spark.master: "local[2]", spark.driver.memory: 1g}\n',
        encoding="utf-8",
    )
    return path


def _fill(directory: Path, windows: int, rows: int) -> None:
    """A file a window: a fifth of its keys are copies, one line is no record."""
    (directory / "in").mkdir()
    for number in range(windows):
        keys = [f"{number}-{row}" if row % 5 else f"copy-{row}" for row in range(rows - 1)]
        lines = [*(json.dumps({"k": key, "t": 10 * number}) for key in keys), "{torn"]
        path = directory / "in" / f"{number:05d}.json"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.utime(path, (1_700_000_000 + number,) * 2)


class _Counts:
    """What the NameNode counts, once its JMX is not of before."""

    def __init__(self, hdfs: Hdfs) -> None:
        time.sleep(_JMX_CACHE_S)
        self.calls = Counter(hdfs.operations())
        self.files = int(hdfs.bean("NameNodeActivity").get("FilesCreated", 0))
        self.log_bytes = hdfs.namenode.log.stat().st_size
        self.at = time.monotonic()


def measure(hdfs: Hdfs, directory: Path, windows: int, rows: int, shards: int) -> str:
    """The tables."""
    counts: list[_Counts] = []

    def count(done: int) -> None:
        if done in (_WARM, _WARM + windows):
            counts.append(_Counts(hdfs))

    # The window after a count waits for that count.
    measured = _run(directory, _new_home(hdfs), windows, rows, shards, count)[1:]
    before, after = counts
    return "\n\n".join([_times(measured), _calls(before, after, windows, hdfs)])


def side_by_side(hdfs: Hdfs, directory: Path, windows: int, rows: int, shards: int) -> str:
    """A turn of each home."""
    lines = []
    for name, home in (("HDFS", _new_home(hdfs)), ("RocksDB", "")):
        folder = directory / f"turn-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        lines.append(f"{name}: {_times(_run(folder, home, windows, rows, shards, lambda _: None))}")
    return "\n".join(lines)


def _new_home(hdfs: Hdfs) -> str:
    return f"{hdfs.url}/{uuid.uuid4().hex[:8]}"


def _run(
    directory: Path, home: str, windows: int, rows: int, shards: int, when_done: Callable[[int], None]
) -> list[BatchProgress]:
    """The windows of a job but the first ones. `when_done` gets the number of windows after each."""
    config = load_config(_config(directory, home, shards))
    _fill(directory, _WARM + windows, rows)
    seen: list[BatchProgress] = []

    def note(progress: BatchProgress) -> None:
        seen.append(progress)
        when_done(len(seen))

    run(config, once=True, max_windows=None, take_over=False, on_progress=note, clock=wall_clock_us)
    return seen[_WARM:]


def _times(windows: list[BatchProgress]) -> str:
    taken = [one.seconds * 1000 for one in windows]
    phases = {
        name: statistics.median(1000 * one.phases.get(name, 0.0) for one in windows) for name in windows[-1].phases
    }
    told = ", ".join(f"{name} {value:.0f}" for name, value in phases.items() if not name.startswith("task."))
    return (
        f"load {os.getloadavg()[0]:.1f}; {len(taken)} windows, ms: p50 {statistics.median(taken):.0f}, "
        f"p95 {statistics.quantiles(taken, n=20)[18]:.0f}, least {min(taken):.0f}, most {max(taken):.0f}\n"
        f"by phase, p50: {told}"
    )


def _calls(before: _Counts, after: _Counts, windows: int, hdfs: Hdfs) -> str:
    calls = after.calls - before.calls
    edits = calls.pop("transactions")
    created: Counter[str] = Counter()
    with hdfs.namenode.log.open("rb") as log:
        log.seek(before.log_bytes)
        text = log.read(after.log_bytes - before.log_bytes).decode(errors="replace")
    for path in _CREATED.findall(text):
        created[next((kind for kind, named in _KINDS.items() if named.search(path)), path)] += 1
    # The formulas of docs/scaling.md, less deletions: nothing is as old as a period here.
    pieces, staged, ports = created["piece"] / windows, created["staged file"] / windows, len(PORTS)
    by_calls = 3 * pieces + 5 * staged + 4 * ports + 29
    by_edits = 5 * pieces + 7 * staged + 6 * ports + 20
    lines = [
        f"a window: {calls.total() / windows:.1f} calls, {edits / windows:.1f} edits, "
        f"{(after.files - before.files) / windows:.2f} new files (FilesCreated) in {after.at - before.at:.0f} s; "
        f"formulas with {pieces:.2f} pieces and {staged:.2f} files of {ports} ports: {by_calls:.1f}, {by_edits:.1f}",
        "",
        "| new file | a window | the window waits for it |",
        "|---|---|---|",
        *(
            f"| {kind} | {count / windows:.2f} | {'no' if kind in _BESIDE else 'yes'} |"
            for kind, count in created.most_common()
        ),
        "",
        "| call | a window |",
        "|---|---|",
        *(f"| {name} | {count / windows:.2f} |" for name, count in calls.most_common()),
    ]
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        directory = Path(folder)
        with Hdfs(directory / "hdfs", datanodes=2, early_close=True) as hdfs:
            os.environ["HADOOP_CONF_DIR"] = str(hdfs.conf)
            print(measure(hdfs, directory, given.windows, given.rows, given.shards), flush=True)
            for _ in range(given.rounds):
                print(side_by_side(hdfs, directory, given.windows, given.rows, given.shards), flush=True)


if __name__ == "__main__":
    main()
