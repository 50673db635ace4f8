"""A user's query with `Deduper` beside the same query with Spark's dedup and without any, in turns.

    python -m tests.bench.bench_query --format parquet --rows 500000 --batches 7 --rounds 2

Payloads never repeat, 5 % of the keys do; two files a batch. `unique` goes to Parquet in all of them, and the
Deduper's other three ports too. `--format kafka` is from topic to topic: two partitions of JSON, read by Spark, and
`unique` goes to a topic, by the Deduper's transactions or by Spark's sink, at least once.

Each contender runs in a process of its own, with a session as a user has one. It prints the median of Spark's
`triggerExecution` over the batches but the first two, in ms, and the ratio to the Deduper's; of 30 batches or more also
the medians of those from the fifth to the fourteenth and of the last ten. `--rows 1000` is for small batches.
`--memory` prints what a driver holds before each tenth of them, in MiB: the process of Python, and what is live in the
JVM's heap. `--rows 20 --batches 10000 --contenders deduper,none`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from deduper import Deduper, EventTime, TopicSink
from tests.bench.__main__ import own_broker
from tests.bench.contenders import CONTENDERS
from tests.bench.ends import topic_stream
from tests.bench.topics import Topics

SCHEMA = "user string, id bigint, ts timestamp, payload string"
NAMES = ("deduper", "none", "watermark-rocksdb-tuned", "watermark-rocksdb-tuned-changelog", "watermark-hdfs")
_FILES = 2
_WARM = 2
_REPEATED = 0.05


def tables(rows: int, batches: int) -> Iterator[pa.Table]:
    """Two a batch; times go on by a second a batch, so nothing expires."""
    rng = np.random.default_rng(7)
    known = 0
    for number in range(_FILES * batches):
        count = rows // _FILES
        again = int(count * _REPEATED) if known else 0
        ids = np.concatenate([np.arange(known, known + count - again), rng.integers(0, max(1, known), again)])
        known += count - again
        rng.shuffle(ids)
        micros = 1_790_000_000_000_000 + number * 500_000 + np.arange(count)
        yield pa.table(
            {
                "user": pa.array([f"user-{one % 100_003}" for one in ids.tolist()]),
                "id": pa.array(ids),
                "ts": pa.array(micros, pa.timestamp("us", "UTC")),
                "payload": pa.array([word.hex() for word in np.frombuffer(rng.bytes(50 * count), "S50").tolist()]),
            }
        )


def make_input(folder: Path, kind: str, rows: int, batches: int) -> None:
    """A file a table."""
    folder.mkdir(parents=True)
    for number, table in enumerate(tables(rows, batches)):
        path = folder / f"{number:05}.{kind}"
        if kind == "parquet":
            parquet.write_table(table, path)
        else:
            with path.open("wb") as lines:
                lines.writelines(line + b"\n" for line in _lines(table))
        os.utime(path, (1_700_000_000 + number,) * 2)


def _lines(table: pa.Table) -> Iterator[bytes]:
    return (json.dumps({**row, "ts": row["ts"].isoformat()}).encode() for row in table.to_pylist())


def send(topics: Topics, rows: int, batches: int) -> str:
    """The topic that has them."""
    topic = topics.create("in", _FILES)
    for table in tables(rows, batches):
        topics.send(topic, [b""] * table.num_rows, _lines(table))
    return topic


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a query reads and where its unique rows go."""

    kind: str
    work: Path
    rows: int
    brokers: str = ""
    topics: tuple[str, str] = ("", "")

    def stream(self, session: SparkSession) -> DataFrame:
        """What a query reads, so many rows a batch."""
        if self.kind == "kafka":
            return topic_stream(session, self.brokers, self.topics[0], SCHEMA, self.rows).select("record.*")
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", _FILES)
        return stream.format(self.kind).load(str(self.work.parent / "in"))

    def write(self, rows: DataFrame, _: int) -> None:
        """As Spark writes them."""
        if self.kind == "kafka":
            values = rows.selectExpr("to_json(struct(*)) AS value").write.format("kafka")
            values.option("kafka.bootstrap.servers", self.brokers).option("topic", self.topics[1]).save()
        else:
            rows.write.mode("append").parquet(f"{self.work}/unique")

    def port(self) -> TopicSink | Path:
        """As the Deduper does."""
        return TopicSink(self.topics[1], self.brokers) if self.kind == "kafka" else self.work / "unique"

    def unique(self, session: SparkSession) -> int:
        """How many are there."""
        if self.kind == "kafka":
            reader = session.read.format("kafka").option("kafka.bootstrap.servers", self.brokers)
            return (
                reader.option("kafka.isolation.level", "read_committed")
                .option("subscribe", self.topics[1])
                .load()
                .count()
            )
        return session.read.parquet(f"{self.work}/unique").count()


def watched(
    write: Callable[[DataFrame, int], object], session: SparkSession, every: int
) -> Callable[[DataFrame, int], object]:
    """The same, and what the driver holds before every so many batches, on stderr."""

    def written(rows: DataFrame, batch: int) -> object:
        if batch % every == 0:
            gc.collect()
            java = session.sparkContext._jvm.java.lang
            java.System.gc()
            heap = java.Runtime.getRuntime().totalMemory() - java.Runtime.getRuntime().freeMemory()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
            print(f"batch {batch:6}: Python {resident / 2**20:5.0f} MiB, heap {heap / 2**20:5.0f} MiB", file=sys.stderr)
        return write(rows, batch)

    return written


def run(name: str, ends: Ends, tenth: int = 0) -> list[float]:
    """Milliseconds of every batch; `tenth`: show the memory before so many batches each, 0 for never."""
    work = ends.work
    settings = {} if name in ("deduper", "none") else CONTENDERS[name].settings
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "4g").config("spark.sql.shuffle.partitions", str(os.cpu_count()))
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "100" if tenth else "10000")
    for setting, value in settings.items():
        builder = builder.config(setting if setting.startswith("spark.") else f"spark.hadoop.{setting}", value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    stream = ends.stream(session)
    write: Callable[[DataFrame, int], object] = ends.write
    if name == "deduper":
        rule = EventTime("ts", period="24 hours", lookup="all_live", max_ahead_of_now="off")
        dedup = Deduper(f"rocksdb:{work}/state", key=["user", "id"], expiry=rule, memory="6GiB")
        others = {port: work / port for port in ("duplicate", "expired", "error")}
        write = dedup.into(unique=ends.port(), **others)
    elif name != "none":
        stream = stream.withWatermark("ts", "24 hours").dropDuplicatesWithinWatermark(["user", "id"])
    if tenth:
        write = watched(write, session, tenth)
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{work}/checkpoint")
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    if name == "deduper":
        dedup.close()
    took = [p["durationMs"]["triggerExecution"] for p in started.recentProgress if p["numInputRows"]]
    print(json.dumps({"ms": took, "unique": ends.unique(session)}), flush=True)
    return took


def main() -> None:
    """Run all contenders in turns, or one of them here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("parquet", "json", "kafka"), default="parquet")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--contenders", default=",".join(NAMES))
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--topics", nargs=3, default=("", "", ""), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        tenth = max(1, asked.batches // 10) if asked.memory else 0
        brokers, *topics = asked.topics
        run(asked.one, Ends(asked.format, asked.work / "run", asked.rows, brokers, (topics[0], topics[1])), tenth)
        return
    asked.work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    if asked.format == "kafka":
        with own_broker() as brokers, Topics(brokers) as there:
            source = send(there, asked.rows, asked.batches)
            in_turns(asked, lambda: ["--topics", brokers, source, there.create("unique", _FILES)])
    else:
        make_input(asked.work / "in", asked.format, asked.rows, asked.batches)
        in_turns(asked, list)
    shutil.rmtree(asked.work)


def in_turns(asked: argparse.Namespace, more: Callable[[], list[str]]) -> None:
    """All contenders, and the table. `more`: the words that one of them needs beside."""
    took: dict[str, list[float]] = {}
    unique = set()
    for _ in range(asked.rounds):
        for name in asked.contenders.split(","):
            shutil.rmtree(asked.work / "run", ignore_errors=True)
            again = [sys.executable, "-m", "tests.bench.bench_query", "--format", asked.format, "--one", name]
            again += ["--rows", str(asked.rows), "--batches", str(asked.batches)]
            again += [*(["--memory"] if asked.memory else []), *more()]
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            told = subprocess.run(
                [*again, "--work", str(asked.work)], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            answer = json.loads(told.stdout.splitlines()[-1])
            if asked.batches >= 30:
                early, late = median(answer["ms"][5:15]), median(answer["ms"][-10:])
                print(f"{name}: {early:.0f} ms, at the end {late:.0f} ms, {late / early:.2f}", flush=True)
            took.setdefault(name, []).extend(answer["ms"][_WARM:])
            if name != "none":
                unique.add(answer["unique"])
    assert len(unique) <= 1, unique
    print(f"{asked.format}, {asked.rows:,} rows a batch, load {os.getloadavg()[0]:.1f}; unique {unique}")
    ours = median(took["deduper"]) if "deduper" in took else 0
    for name, all_ms in took.items():
        middle = median(all_ms)
        ratio = f"{middle / ours:6.2f}" if ours else ""
        print(f"{name:36} {middle:8.0f} ms {ratio}   {min(all_ms):.0f} to {max(all_ms):.0f}")


if __name__ == "__main__":
    main()
