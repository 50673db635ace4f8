"""Prints what range aggregates cost, here and elsewhere: `tests/bench/bench_range_aggregate.py`.

Workload: `--rows` events and as many ranges (1 million), bigint ids, times in µs, `sum(points)` of the ranges that
cover an event; lengths are exponential, so that `--covering` ranges cover an event on the average. All of it is drawn
by seed 7 and written as Parquet files, one a core, before anything is measured. Contenders, each in a process of its
own, from these files to a sum over all answers, which must be equal:

- `files`: `deduper range-aggregate` without Spark; it writes the answers as Parquet, which are read for the sum;
- `ours`: `range_aggregate` with one index that every worker has; `parts`: the same rows shuffled into parts;
- `window`: Spark's `sum(delta) OVER (PARTITION BY id ORDER BY t, kind)` over the union of events, starts and ends;
  `join`: Spark's join with a filter, only up to 100,000 rows unless it is named by `--only`;
- `numpy`: one process, one thread: sorted starts and ends, running sums and two binary searches for each event;
- `duckdb-window`: the SQL of `window`; `duckdb-asof`, `polars-asof`: ASOF joins with running sums. Only if the
  packages can be imported.

All contenders live at once and take turns, so that other load on the machine hits all of them. For each: seconds and
CPU seconds of all its processes, the median of `--runs` turns (3) after `--warm` turns that are not counted (1), with
the least and the greatest; the most memory (PSS) of all its processes in turns that are not counted, for the sampling
takes time (with `--warm 0`: in all turns), Spark's JVM included, whose heap grows to its limit first; MB that Spark
shuffled in a turn. Beside `window`: how many times less time and CPU time the others take, the median of the rounds and
the quotient of the least ones. Each turn is a line of the error output. A turn longer than `--limit` seconds ends its
contender. `--write` measures Spark's answers written as Parquet instead of summed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.ranges.batch.frames import range_aggregate
from deduper.ranges.batch.job import run
from deduper.ranges.batch.settings import RangeJob
from deduper.spark.session import end_session, start_session

SEED = 7
DAY_US = 86_400_000_000
CORES = os.cpu_count() or 1
_CHECK = "coalesce(points, 0L) * (1 + pmod(event, 1009))"
_MOST_JOINED = 100_000
_SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the table."""

    rows: int
    ids: int
    covering: int

    def write(self, folder: Path) -> None:
        """Events and ranges as Parquet, one file a core."""
        draw = np.random.default_rng(SEED)
        mean = self.covering * self.ids * DAY_US / self.rows
        start = draw.integers(0, DAY_US, self.rows)
        ranges = {
            "id": draw.integers(0, self.ids, self.rows),
            "start": start,
            "end": start + draw.exponential(mean, self.rows).astype(np.int64),
            "points": draw.integers(1, 100, self.rows),
        }
        events = {
            "event": np.arange(self.rows),
            "id": draw.integers(0, self.ids, self.rows),
            "at": draw.integers(0, DAY_US, self.rows),
        }
        for name, columns in (("events", events), ("ranges", ranges)):
            (folder / name).mkdir(parents=True)
            table = pa.table(columns)
            for part in range(CORES):
                begin, end = (self.rows * at // CORES for at in (part, part + 1))
                pq.write_table(table.slice(begin, end - begin), folder / name / f"{part}.parquet")


OfSpark = Callable[[SparkSession, Path], DataFrame]
OfFiles = Callable[[Path], int]


def ours(index_bytes: int) -> OfSpark:
    def answer(session: SparkSession, folder: Path) -> DataFrame:
        events, ranges = (session.read.parquet(str(folder / name)) for name in ("events", "ranges"))
        return range_aggregate(
            events,
            ranges,
            on="id",
            time="at",
            start="start",
            end="end",
            aggs={"points": "sum(points)"},
            index_bytes=index_bytes,
        ).rows

    return answer


def _views(session: SparkSession, folder: Path) -> None:
    for name in ("events", "ranges"):
        session.read.parquet(str(folder / name)).createOrReplaceTempView(name)


_WINDOW = """
    SELECT event, points FROM (
        SELECT kind, event, sum(delta) OVER (
            PARTITION BY id ORDER BY t, kind ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) points FROM (
            SELECT id, start t, 0 kind, points delta, null event FROM ranges
            UNION ALL SELECT id, "at", 1, 0, event FROM events
            UNION ALL SELECT id, "end", 2, -points, null FROM ranges
        )
    ) WHERE kind = 1"""


def window(session: SparkSession, folder: Path) -> DataFrame:
    _views(session, folder)
    return session.sql(_WINDOW.replace('"', "`"))


def join(session: SparkSession, folder: Path) -> DataFrame:
    _views(session, folder)
    return session.sql("""
        SELECT event, sum(points) points FROM events JOIN ranges
        ON events.id = ranges.id AND start <= at AND at <= `end` GROUP BY event""")


def numpy_sum(folder: Path) -> int:
    """The checked sum by one process on one thread."""
    pa.set_cpu_count(1)
    columns = [pq.read_table(folder / name, use_threads=False) for name in ("events", "ranges")]
    event, event_id, at = (columns[0][name].to_numpy() for name in ("event", "id", "at"))
    range_id, start, end, points = (columns[1][name].to_numpy() for name in ("id", "start", "end", "points"))
    width = int(max(at.max(), end.max())) + 1

    def sums_before(times: NDArray[Any], sought: NDArray[Any], side: Any) -> NDArray[Any]:
        marks = range_id * width + times
        order = np.argsort(marks)
        running = np.concatenate(([0], np.cumsum(points[order])))
        found: NDArray[Any] = running[np.searchsorted(marks[order], sought, side=side)]
        return found

    sought = event_id * width + at
    answers = sums_before(start, sought, "right") - sums_before(end, sought, "left")
    return int((answers * (1 + event % 1009)).sum())


def files_sum(folder: Path) -> int:
    """The checked sum of what the command writes."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    config = folder / "points.yaml"
    config.write_text(
        f"events: {{path: {folder / 'events'}, format: parquet}}\n"
        f"ranges: {{path: {folder / 'ranges'}, format: parquet}}\n"
        "on: id\ntime: at\nstart: start\nend: end\naggregates: {points: sum(points)}\n"
        f"output: {{path: {folder / 'out'}, format: parquet}}\n"
    )
    run(RangeJob.load(config, environment={}), on_progress=lambda _: None)
    return _sum_of(folder / "out")


def _duckdb(folder: Path) -> Any:
    import duckdb

    connection = duckdb.connect(config={"threads": CORES})
    for name in ("events", "ranges"):
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM '{folder / name}/*.parquet'")
    return connection


_CHECKED = "SELECT sum(coalesce(points, 0) * (1 + event % 1009))::BIGINT FROM"


def duckdb_window_sum(folder: Path) -> int:
    return int(_duckdb(folder).execute(f"{_CHECKED} ({_WINDOW})").fetchone()[0])


def duckdb_asof_sum(folder: Path) -> int:
    def running(point: str) -> str:
        return f'SELECT id, "{point}" t, sum(points) OVER (PARTITION BY id ORDER BY "{point}") total FROM ranges'

    return int(
        _duckdb(folder)
        .execute(f"""{_CHECKED} (
            SELECT event, coalesce(s.total, 0) - coalesce(e.total, 0) points FROM events
            ASOF LEFT JOIN ({running("start")}) s ON events.id = s.id AND events."at" >= s.t
            ASOF LEFT JOIN ({running("end")}) e ON events.id = e.id AND events."at" > e.t)""")
        .fetchone()[0]
    )


def polars_asof_sum(folder: Path) -> int:
    import polars as pl

    events, ranges = (pl.read_parquet(folder / name / "*.parquet") for name in ("events", "ranges"))
    found = events.sort("at")
    for point, total, exact in (("start", "begun", True), ("end", "ended", False)):
        running = ranges.sort(point).select("id", point, pl.col("points").cum_sum().over("id").alias(total))
        found = found.join_asof(
            running, left_on="at", right_on=point, by="id", allow_exact_matches=exact, check_sortedness=False
        )
    points = pl.col("begun").fill_null(0) - pl.col("ended").fill_null(0)
    return int(found.select((points * (1 + pl.col("event") % 1009)).sum()).item())


SPARKS: dict[str, OfSpark] = {
    "ours": ours(1 << 40),
    "parts": ours(0),
    "window": window,
    "join": join,
}
OTHERS: dict[str, OfFiles] = {
    "files": files_sum,
    "numpy": numpy_sum,
    "duckdb-window": duckdb_window_sum,
    "duckdb-asof": duckdb_asof_sum,
    "polars-asof": polars_asof_sum,
}


def is_there(name: str) -> bool:
    package = name.split("-")[0]
    return package not in ("duckdb", "polars") or importlib.util.find_spec(package) is not None


def summed(answered: DataFrame) -> int:
    row = answered.agg(F.expr(f"sum({_CHECK})")).first()
    assert row is not None
    return int(row[0])


def written(answered: DataFrame, folder: Path) -> int:
    shutil.rmtree(folder / "out", ignore_errors=True)
    answered.write.parquet(str(folder / "out"))
    return _sum_of(folder / "out")


def _sum_of(folder: Path) -> int:
    table = ds.dataset(folder).to_table(columns=["event", "points"])
    points = table["points"].fill_null(0).to_numpy()
    return int((points * (1 + table["event"].to_numpy() % 1009)).sum())


def processes(root: psutil.Process) -> Iterator[psutil.Process]:
    """A process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        yield root
        yield from root.children(recursive=True)


def cpu_seconds() -> float:
    """Of this process and all below it that live: Spark's JVM and workers live as long as the session."""
    total = 0.0
    for process in processes(psutil.Process()):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def one(options: argparse.Namespace) -> None:
    """Measure one contender in this process: a turn for each line that is read, and a line of JSON for it."""
    folder = Path(options.data)
    session: Any = None
    if options.one in SPARKS:
        settings = {"spark.master": f"local[{CORES}]", "spark.sql.shuffle.partitions": 2 * CORES}
        session = start_session("bench", settings)
    shuffled = 0
    for _ in sys.stdin:
        began, used = time.perf_counter(), cpu_seconds()
        if session is None:
            answer = OTHERS[options.one](folder)
        else:
            answered = SPARKS[options.one](session, folder)
            answer = written(answered, folder) if options.write else summed(answered)
        found = {"answer": answer, "seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used}
        if session is not None:
            before, shuffled = (
                shuffled,
                session.sparkContext._jsc.sc().statusStore().executorList(True).apply(0).totalShuffleWrite(),
            )
            found["shuffled"] = shuffled - before
        print(json.dumps(found), flush=True)
    if session is not None:
        end_session(session)


class Contender:
    """A contender in a process of its own; `turns` has what it found when its turn was counted."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--one", name, "--data", str(folder)]
        self.name = name
        self.turns: list[dict[str, Any]] = []
        self.answer: int | None = None
        self.most_memory = 0
        self.is_late = False
        self._limit = options.limit
        self._child = subprocess.Popen(
            [*command, *(["--write"] if options.write else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, *, counts: bool, looks: bool) -> None:
        """Take a turn."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("turn\n")
        self._child.stdin.flush()
        until = time.monotonic() + self._limit
        while not select.select([self._child.stdout], [], [], _SAMPLE_S if looks else self._limit)[0]:
            if time.monotonic() >= until:
                self.is_late = True
                self._kill()
                return
            self._look()
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._child.wait()}")
        found = json.loads(line)
        assert self.answer in (None, found["answer"]), (self.name, self.answer, found)
        self.answer = found["answer"]
        if counts:
            self.turns.append(found)
        print(f"    {self.name} {found['seconds']:.2f} {found['cpu']:.2f}", file=sys.stderr, flush=True)

    def _look(self) -> None:
        total = 0
        for process in processes(psutil.Process(self._child.pid)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        self.most_memory = max(self.most_memory, total)

    def _kill(self) -> None:
        for process in list(processes(psutil.Process(self._child.pid))):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def end(self) -> None:
        """End the process."""
        self._child.communicate()

    def line(self, window: Contender | None) -> str:
        """Its line of the table, compared with Spark's window."""
        if self.is_late:
            return f"  {self.name:<14}  more than {self._limit:,} seconds"
        cells = [f"  {self.name:<14}"]
        for what in ("seconds", "cpu"):
            times = sorted(turn[what] for turn in self.turns)
            cells.append(f"{what} {statistics.median(times):7.2f} ({times[0]:.2f} to {times[-1]:.2f})")
            if window is not None and window is not self and not window.is_late:
                theirs = [turn[what] for turn in window.turns]
                by_round = [other / turn[what] for other, turn in zip(theirs, self.turns, strict=True)]
                cells.append(f"window/this {statistics.median(by_round):.1f}, by least {min(theirs) / times[0]:.1f}")
        cells.append(f"memory {self.most_memory / 1e6:,.0f} MB")
        if "shuffled" in self.turns[0]:
            cells.append(f"shuffled {self.turns[-1]['shuffled'] / 1e6:,.1f} MB")
        return "  ".join(cells)


def compared(names: list[str], folder: Path, options: argparse.Namespace) -> None:
    """Let contenders take turns, and print their lines."""
    contenders = [Contender(name, folder, options) for name in names]
    for number in range(options.warm + options.runs):
        counts = number >= options.warm
        for contender in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
            if not contender.is_late:
                contender.turn(counts=counts, looks=not counts or not options.warm)
    window = next((each for each in contenders if each.name == "window"), None)
    for contender in contenders:
        contender.end()
        print(contender.line(window), flush=True)
    answers = {each.answer for each in contenders if not each.is_late}
    assert len(answers) < 2, {each.name: each.answer for each in contenders}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--ids", type=int, nargs="+", default=[100])
    parser.add_argument("--covering", type=int, nargs="+", default=[50])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--limit", type=int, default=3600)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[*OTHERS, *SPARKS], default=None)
    parser.add_argument("--dir", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    print(f"python {platform.python_version()}, {CORES} cores, seed {SEED}", flush=True)
    for rows in options.rows:
        for ids in options.ids:
            for covering in options.covering:
                load = os.getloadavg()[0]
                print(f"{rows:,} events and ranges, {ids:,} ids, {covering:,} covering, load {load:.0f}", flush=True)
                names = [name for name in (*OTHERS, *SPARKS) if name != "join" or rows <= _MOST_JOINED]
                with tempfile.TemporaryDirectory(dir=options.dir) as name:
                    Workload(rows, ids, covering).write(Path(name))
                    compared([each for each in options.only or names if is_there(each)], Path(name), options)


if __name__ == "__main__":
    main()
