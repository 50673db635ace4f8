"""A replay in the order of time beside the same read and write without dedup and beside a batch job of Spark, in turns.

    python -m tests.bench.bench_replay --records 20000000 --days 10 --layouts days,hours,heap,topic --rounds 2

Records are up to 2 h out of order, 15 % repeat an earlier one from a second to 30 h before, period 24 h. The layouts:

    days     one file a day, each sorted by time
    hours    a file an hour of each of 8 collectors, in disorder
    heap     files of equal size, records anywhere
    topic    eight partitions in the disorder in which the records came, JSON whatever `--format` says

The contenders, each in a process of its own: `replay`; `copy`: Spark reads and writes; `row_number`: a batch job
with a window over (key, day), the usual answer, which misses copies across midnight. Seconds and CPU seconds are those
from the start of the work, with a session that is there. `unique` is held against the rule itself. RSS is the driver's
highest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deduper.config.model import Config
from deduper.replay.run import replay
from deduper.replay.settings import Asked
from deduper.sources.open import session_settings
from deduper.spark.session import end_session, start_session
from tests.bench.__main__ import own_broker
from tests.bench.cpu import cpu_us
from tests.bench.ends import topic_section
from tests.bench.topics import Topics

NAMES = ("replay", "copy", "row_number")
LAYOUTS = ("days", "hours", "heap", "topic")
SCHEMA = "id bigint, ts timestamp, payload string"
_BEGIN_US = 1_700_006_400_000_000
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_COLLECTORS = 8
_BATCH = 1_000_000

Times = NDArray[np.int64]


def records(count: int, days: int) -> tuple[Times, Times]:
    """Keys and times of a log, as its records came: 15 % repeat the key of one a second to 30 h before."""
    rng = np.random.default_rng(11)
    came = np.sort(rng.integers(0, days * _DAY_US, count))
    keys = np.arange(count)
    again = np.flatnonzero(rng.random(count) < 0.15)
    before = came[again] - np.exp(rng.uniform(np.log(1e6), np.log(30 * _HOUR_US), again.size)).astype(np.int64)
    keys[again] = np.maximum(0, np.searchsorted(came, before) - 1)
    return keys, _BEGIN_US + came + rng.integers(0, 2 * _HOUR_US, count)


def unique(keys: Times, times: Times) -> int:
    """The unique records by the rule: sorted by time, a copy less than a period after its first one is a duplicate."""
    found, latest = 0, -1
    first: dict[int, int] = {}
    order = np.lexsort((np.arange(keys.size), times))
    for key, at in zip(keys[order].tolist(), times[order].tolist(), strict=True):
        known = first.get(key)
        if known is None or known <= latest - _DAY_US:
            first[key] = at
            found += 1
        latest = max(latest, at)
    return found


def write_layout(folder: Path, layout: str, kind: str, keys: Times, times: Times, days: int) -> None:
    """The files of a layout."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    day = (times - _BEGIN_US) // _DAY_US
    if layout == "days":
        order = np.argsort(times, kind="stable")
        groups = [order[day[order] == number] for number in range(int(day.max()) + 1)]
    elif layout == "hours":
        hour = np.arange(keys.size) * days * 24 // keys.size
        place = hour * _COLLECTORS + rng.integers(0, _COLLECTORS, keys.size)
        order = np.argsort(place, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(place[order])) + 1)
    else:
        groups = np.array_split(rng.permutation(keys.size), max(1, keys.size // _BATCH))
    for number, rows in enumerate(groups):
        path = folder / f"{number:06}.{kind}"
        payload = _payload(rng, rows.size)
        if kind == "parquet":
            columns = {"id": keys[rows], "ts": pa.array(times[rows], pa.timestamp("us", "UTC")), "payload": payload}
            parquet.write_table(pa.table(columns), path)
        else:
            with path.open("w") as lines:
                lines.writelines(f"{line}\n" for line in _lines(keys[rows], times[rows], payload))
        os.utime(path, (1_700_000_000 + number,) * 2)


def send(topics: Topics, keys: Times, times: Times) -> Topic:
    """The topic, to which the records go in the order in which they came, to each partition in turn."""
    topic = topics.create("log", _COLLECTORS)
    rng = np.random.default_rng(5)
    for at in range(0, keys.size, _BATCH):
        part = slice(at, at + _BATCH)
        payload = _payload(rng, keys[part].size)
        topics.send(topic, [b""] * len(payload), (line.encode() for line in _lines(keys[part], times[part], payload)))
    return Topic(topics.bootstrap, topic)


def _payload(rng: np.random.Generator, count: int) -> list[str]:
    return [word.hex() for word in np.frombuffer(rng.bytes(40 * count), "S40").tolist()]


def _lines(keys: Times, times: Times, payload: list[str]) -> Iterator[str]:
    texts = np.datetime_as_string(times.astype("datetime64[us]")).tolist()
    for one, text, more in zip(keys.tolist(), texts, payload, strict=True):
        yield f'{{"id":{one},"ts":"{text}Z","payload":"{more}"}}'


@dataclass(frozen=True, slots=True)
class Files:
    """A log in files."""

    folder: Path
    kind: str

    def section(self) -> dict[str, Any]:
        """The section `source` of the service's config."""
        return {"format": "files", "path": str(self.folder), "file_format": self.kind, "schema": SCHEMA}

    def rows(self, session: SparkSession) -> DataFrame:
        """Its records, read by Spark."""
        return session.read.schema(SCHEMA).format(self.kind).load(str(self.folder))


@dataclass(frozen=True, slots=True)
class Topic:
    """A log in a topic."""

    brokers: str
    name: str

    def section(self) -> dict[str, Any]:
        """The section `source` of the service's config."""
        return {**topic_section(self.brokers, self.name, SCHEMA, _BATCH), "starting_offsets": "earliest"}

    def rows(self, session: SparkSession) -> DataFrame:
        """Its records, read by Spark."""
        values = (
            session.read.format("kafka")
            .option("kafka.bootstrap.servers", self.brokers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", self.name)
            .load()
        )
        return values.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("record")).select("record.*")


def run(name: str, source: Files | Topic, work: Path) -> dict[str, Any]:
    """One contender: seconds, CPU seconds, unique records and the driver's memory."""
    config = Config.model_validate(
        {
            "name": "bench",
            "source": source.section(),
            "key": "id",
            "expiry": {"by": "event_time", "field": "ts", "period": "24h", "span": "1h", "lookup": "all_live"},
            "store": {"url": "rocksdb:state", "shards": os.cpu_count()},
            "sinks": {
                port: {"format": "parquet", "path": port} for port in ("unique", "duplicate", "expired", "error")
            },
            "spark": {"spark.master": "local[*]", "spark.driver.memory": "4g"},
        },
        context={"base_dir": work},
    )
    session = start_session("bench", session_settings(config))
    try:
        began, cpu = time.monotonic(), sum(cpu_us().values())
        found = _replayed(config, session, work) if name == "replay" else _by_spark(name, source.rows(session), work)
        took = {"seconds": time.monotonic() - began, "cpu_s": (sum(cpu_us().values()) - cpu) / 1e6}
    finally:
        end_session(session)
    return {**took, "unique": found, "rss_mb": _highest_kb() // 1024}


def _highest_kb() -> int:
    """Of this process alone: what `getrusage` tells begins with the memory of the process that has started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def _replayed(config: Config, session: SparkSession, work: Path) -> int:
    report = replay(config, Asked(work / "replayed"), session=session)
    assert report.is_over
    assert not report.judged["expired"]
    return report.judged["unique"]


def _by_spark(name: str, rows: DataFrame, work: Path) -> int:
    session = rows.sparkSession
    if name == "row_number":
        of_key = Window.partitionBy("id", F.date_trunc("day", "ts")).orderBy("ts")
        rows = rows.withColumn("n", F.row_number().over(of_key))
        rows = rows.withColumn("port", F.when(F.col("n") == 1, "unique").otherwise("duplicate")).drop("n")
        rows.write.partitionBy("port").parquet(str(work / "out"))
        return session.read.parquet(str(work / "out" / "port=unique")).count()
    rows.write.parquet(str(work / "out"))
    return session.read.parquet(str(work / "out")).count()


def main() -> None:
    """Run all contenders over all layouts in turns, or one of them here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("parquet", "json"), default="json")
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--contenders", default=",".join(NAMES))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--topic", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        name, layout = asked.one
        source = Topic(*asked.topic) if asked.topic else Files(asked.work / layout, asked.format)
        print(json.dumps(run(name, source, asked.work / "run")), flush=True)
        return
    work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    keys, times = records(asked.records, asked.days)
    wanted = unique(keys, times)
    print(f"{asked.records:,} records, {wanted:,} unique by the rule, seed 11, {os.cpu_count()} cores", flush=True)
    for layout in asked.layouts.split(","):
        if layout == "topic":
            with own_broker() as brokers, Topics(brokers) as topics:
                topic = send(topics, keys, times)
                _in_turns(asked, work, layout, wanted, ["--topic", topic.brokers, topic.name])
        else:
            write_layout(work / layout, layout, asked.format, keys, times, asked.days)
            _in_turns(asked, work, layout, wanted, [])
            shutil.rmtree(work / layout)


def _in_turns(asked: argparse.Namespace, work: Path, layout: str, wanted: int, more: list[str]) -> None:
    for _ in range(asked.rounds):
        for name in asked.contenders.split(","):
            shutil.rmtree(work / "run", ignore_errors=True)
            (work / "run").mkdir(parents=True)
            again = [sys.executable, "-m", "tests.bench.bench_replay", "--format", asked.format]
            words = [*again, "--work", str(work), "--one", name, layout, *more]
            told = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(told.splitlines()[-1])
            rates = f"{asked.records / found['cpu_s']:>9,.0f} a CPU s  {asked.records / found['seconds']:>9,.0f}/s"
            print(f"{layout:6} {name:11} {rates}  unique {found['unique']:,}  driver {found['rss_mb']} MB", flush=True)
            if name == "replay" and found["unique"] != wanted:
                sys.exit(f"{layout}: {found['unique']} unique, {wanted} by the rule")


if __name__ == "__main__":
    main()
