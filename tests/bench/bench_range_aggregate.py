"""Prints the seconds of range aggregates, of Spark's window and of NumPy: `tests/bench/bench_range_aggregate.py`.

Workload: `--rows` events and as many ranges (1 million), bigint ids, times in µs, `sum(points)` of the ranges that
cover an event; lengths are exponential, so that `--covering` ranges cover an event on the average. All of it is drawn
by seed 7 and written as Parquet files, one a core, before anything is measured. Contenders, each from these files to a
sum over all answers, which must be equal:

- `ours`: `range_aggregate` with one index that every worker has; `parts`: the same rows shuffled into parts;
- `window`: Spark's `sum(delta) OVER (PARTITION BY id ORDER BY t, kind)` over the union of events, starts and ends;
- `numpy`: one process, one thread: sorted starts and ends, running sums and two binary searches for each event.

The median of `--runs` runs (3) after one that is not counted, with the least and the greatest. `--write` measures the
answers written as Parquet instead of summed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.range_job.frames import range_aggregate
from deduper.spark.session import end_session, start_session

SEED = 7
DAY_US = 86_400_000_000
CORES = os.cpu_count() or 1
_CHECK = "coalesce(points, 0L) * (1 + pmod(event, 1009))"


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


Contender = Callable[[SparkSession, Path], DataFrame]


def ours(index_bytes: int) -> Contender:
    def answer(session: SparkSession, folder: Path) -> DataFrame:
        events, ranges = (session.read.parquet(str(folder / name)) for name in ("events", "ranges"))
        return range_aggregate(
            *(events, ranges),
            on="id",
            time="at",
            start="start",
            end="end",
            aggs={"points": "sum(points)"},
            index_bytes=index_bytes,
        ).rows

    return answer


def window(session: SparkSession, folder: Path) -> DataFrame:
    for name in ("events", "ranges"):
        session.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    return session.sql("""
        SELECT event, points FROM (
            SELECT kind, event, sum(delta) OVER (
                PARTITION BY id ORDER BY t, kind ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) points FROM (
                SELECT id, start t, 0 kind, points delta, null event FROM ranges
                UNION ALL SELECT id, at, 1, 0L, event FROM events
                UNION ALL SELECT id, end, 2, -points, null FROM ranges
            )
        ) WHERE kind = 1""")


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


def summed(answered: DataFrame) -> int:
    row = answered.agg(F.expr(f"sum({_CHECK})")).first()
    assert row is not None
    return int(row[0])


def written(answered: DataFrame, folder: Path) -> int:
    shutil.rmtree(folder / "out", ignore_errors=True)
    answered.write.parquet(str(folder / "out"))
    table = ds.dataset(folder / "out").to_table(columns=["event", "points"])
    points = table["points"].fill_null(0).to_numpy()
    return int((points * (1 + table["event"].to_numpy() % 1009)).sum())


def measured(action: Callable[[], int], runs: int) -> tuple[list[float], int]:
    """Seconds of the runs, and the answer."""
    answer, seconds = action(), []
    for _ in range(runs):
        began = time.perf_counter()
        again = action()
        seconds.append(time.perf_counter() - began)
        assert again == answer
    return sorted(seconds), answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, nargs="+", default=[100])
    parser.add_argument("--covering", type=int, nargs="+", default=[50])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="+", choices=["ours", "parts", "window", "numpy"], default=None)
    parser.add_argument("--dir", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    options = parser.parse_args()
    session = start_session("bench", {"spark.master": f"local[{CORES}]", "spark.sql.shuffle.partitions": 2 * CORES})
    print(
        f"python {platform.python_version()}, {CORES} cores, seed {SEED}, {options.rows:,} events and ranges",
        flush=True,
    )
    contenders: dict[str, Contender | None] = {
        "ours": ours(1 << 40),
        "parts": ours(0),
        "window": window,
        "numpy": None,
    }
    try:
        for ids in options.ids:
            for covering in options.covering:
                with tempfile.TemporaryDirectory(dir=options.dir) as name:
                    folder = Path(name)
                    Workload(options.rows, ids, covering).write(folder)
                    take = (lambda rows, at=folder: written(rows, at)) if options.write else summed
                    line, answers = [f"ids {ids:>7,}  covering {covering:>5,} "], set()
                    for which in options.only or contenders:
                        of_spark = contenders[which]
                        action = (
                            (lambda at=folder: numpy_sum(at))
                            if of_spark is None
                            else (lambda of=of_spark, at=folder, take=take: take(of(session, at)))
                        )
                        seconds, answer = measured(action, options.runs)
                        answers.add(answer)
                        median = statistics.median(seconds)
                        line.append(f"{which} {median:.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})")
                    assert len(answers) == 1, answers
                    print("  ".join(line), flush=True)
    finally:
        end_session(session)


if __name__ == "__main__":
    main()
