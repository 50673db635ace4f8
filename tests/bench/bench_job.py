"""Rows per second of the job, of the same pipeline without dedup, and of Spark's own dedup, in one run.

    python -m tests.bench.bench_job [--keys 5000000] [--batch 500000] [--measured 6] [--shards N] [--only NAME …]

Workload: Parquet files; a string key, an event time that moves on, a payload of 100 bytes; a fifth of the measured rows
repeat a key of the same hour. Every contender first reads `--keys` rows with distinct keys, then the measured batches;
given is the median of the measured batches' `triggerExecution`, which is what Spark itself reports for a batch, from
planning to checkpoint. All have as many shards (shuffle partitions) as there are cores unless told otherwise, and write
Parquet; the contenders of Spark write its plain, unsynced file sink.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from bucket_store.commit_log import CommitLog
from deduper.config import PORTS, Config
from deduper.job import run
from deduper.progress import BatchProgress
from deduper.spark_session import start_session
from deduper.table_places import table_settings

_FILES_A_BATCH = 4
_SCHEMA = "k string, ts timestamp, payload string"
_START_US = 1_767_225_600_000_000
_BATCH_SPAN_US = 600_000_000
_REPEATS = 0.2


class Durations(StreamingQueryListener):
    """`triggerExecution` of every batch that did something, in ms."""

    def __init__(self) -> None:
        self.milliseconds: list[int] = []

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.durationMs.get("addBatch"):
            self.milliseconds.append(event.progress.durationMs["triggerExecution"])

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def make_input(directory: Path, keys: int, batch: int, measured: int) -> int:
    """Files of the workload; gives the number of batches. The same bytes for the same arguments."""
    random = np.random.default_rng(1)
    batches = -(-keys // batch) + measured
    payload = np.frombuffer(random.bytes(100 * 4096), np.uint8) % 26 + 97
    texts = [payload[at * 100 : at * 100 + 100].tobytes().decode() for at in range(4096)]
    next_key = 0
    for number in range(batches):
        rows = batch // _FILES_A_BATCH
        is_measured = number >= batches - measured
        for part in range(_FILES_A_BATCH):
            fresh = np.arange(next_key, next_key + rows)
            next_key += rows
            ids = fresh
            if is_measured:
                ids = np.where(random.random(rows) < _REPEATS, fresh - rows, fresh)
            table = pa.table(
                {
                    "k": pa.array([f"user-{value:012d}-{value * 7919 % 1_000_003}" for value in ids.tolist()]),
                    # A function of the key: a repeat has the event time of its first copy.
                    "ts": pa.array(_START_US + ids * _BATCH_SPAN_US // batch, pa.timestamp("us", "UTC")),
                    "payload": pa.array([texts[value] for value in random.integers(0, 4096, rows).tolist()]),
                }
            )
            path = directory / f"{number:05d}-{part}.parquet"
            pyarrow.parquet.write_table(table, path)
            moment = 1_700_000_000 + number * _FILES_A_BATCH + part
            os.utime(path, (moment, moment))
    return batches


def run_ours(session: SparkSession, source: Path, work: Path, shards: int, **settings: Any) -> None:
    """The job, with what it writes in `work`."""
    progress: list[BatchProgress] = []
    sections: dict[str, Any] = {
        "name": "bench",
        "source": {
            "format": "files",
            "path": str(source),
            "file_format": "parquet",
            "schema": _SCHEMA,
            "max_files_per_batch": _FILES_A_BATCH,
        },
        "key": "k",
        "expiry": {"by": "event_time", "field": "ts", "period": "24h", "span": "1h", "max_ahead_of_now": "off"},
        "store": {"url": "rocksdb:state", "shards": shards},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
    }
    for name, value in settings.items():
        sections[name] = {**sections[name], **value}
    config = Config.model_validate(sections, context={"base_dir": work})
    run(config, once=True, max_batches=None, take_over=False, on_progress=progress.append, session=session)
    last = progress[-1]
    print("    phases of the last batch:", {name: round(seconds, 3) for name, seconds in last.phases.items()})
    store_bytes = sum(path.stat().st_size for path in (work / "state").rglob("*") if path.is_file())
    table_files = [path for directory in tables_of(config) for path in directory.rglob("*.table")]
    table_bytes = sum(path.stat().st_size for path in table_files)
    remove_tables(config)
    uniques = sum(each.unique for each in progress)
    print(f"    {uniques:,} keys: store {store_bytes / uniques:.1f} B/key, tables {table_bytes / uniques:.1f} B/key")


def tables_of(config: Config) -> list[Path]:
    """Where the resident tables of a job's store lie, and no other's: all jobs of a machine share the folders above."""
    tables = table_settings(config)
    store_id = CommitLog.open(config.store.path).manifest.store_id
    return [Path(directory) / store_id for directory in sorted({tables.memory_dir, tables.disk_dir})]


def remove_tables(config: Config) -> None:
    """Remove the resident tables of a job's store."""
    for directory in tables_of(config):
        shutil.rmtree(directory, ignore_errors=True)


def run_spark(session: SparkSession, source: Path, work: Path, transform: Callable[[DataFrame], DataFrame]) -> None:
    """A plain query from the same files to Spark's Parquet sink."""
    rows = session.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", _FILES_A_BATCH).parquet(str(source))
    query = (
        transform(rows)
        .writeStream.format("parquet")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def exchanged(rows: DataFrame) -> DataFrame:
    """The same pipeline without dedup: the exchange by key alone."""
    return rows.repartition(F.col("k"))


def within_watermark(rows: DataFrame) -> DataFrame:
    """Spark's own."""
    return rows.withWatermark("ts", "24 hours").dropDuplicatesWithinWatermark(["k"])


_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_SPARK_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def with_settings(session: SparkSession, settings: dict[str, str], action: Callable[[], None]) -> None:
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        action()
    finally:
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)


def contenders(session: SparkSession, source: Path, shards: int) -> dict[str, Callable[[Path], None]]:
    """By name, what takes a working directory and runs to the end of the input."""
    hdfs = {_SPARK_PROVIDER: _PROVIDERS + "HDFSBackedStateStoreProvider"}
    rocks = {_SPARK_PROVIDER: _PROVIDERS + "RocksDBStateStoreProvider", _CHANGELOG: "true"}

    def spark(transform: Callable[[DataFrame], DataFrame], settings: dict[str, str]) -> Callable[[Path], None]:
        return lambda work: with_settings(session, settings, lambda: run_spark(session, source, work, transform))

    def ours(**settings: Any) -> Callable[[Path], None]:
        return lambda work: run_ours(session, source, work, shards, **settings)

    return {
        "pass-through": spark(exchanged, {}),
        "deduper": ours(),
        "deduper, clock: batch": ours(expiry={"clock": "batch"}),
        "deduper, first_seen: false": ours(store={"first_seen": False}),
        "deduper, file:": ours(store={"url": "file:state"}),
        "within watermark, HDFS-backed": spark(within_watermark, hdfs),
        "within watermark, RocksDB": spark(within_watermark, rocks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--batch", type=int, default=500_000)
    parser.add_argument("--measured", type=int, default=6)
    parser.add_argument("--shards", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="deduper-bench-"))
    source = root / "in"
    source.mkdir()
    batches = make_input(source, arguments.keys, arguments.batch, arguments.measured)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{batches} batches of {arguments.batch:,} rows, the last {arguments.measured} measured; load {load}")
    base = Config.model_validate(
        {
            "name": "bench",
            "source": {"format": "files", "path": "in", "file_format": "parquet", "schema": _SCHEMA},
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": "rocksdb:state", "shards": arguments.shards},
            "sinks": {port: {"format": "none"} for port in PORTS},
            "spark": {"spark.master": "local[2]", "spark.driver.memory": "8g"},
        },
        context={"base_dir": root},
    )
    session = start_session(base)
    results: dict[str, dict[str, float]] = {}
    try:
        for name, contender in contenders(session, source, arguments.shards).items():
            if arguments.only and name not in arguments.only:
                continue
            durations = Durations()
            session.streams.addListener(durations)
            work = root / "work"
            work.mkdir()
            began = time.perf_counter()
            contender(work)
            seconds = time.perf_counter() - began
            # Listeners are told by a queue of Spark's.
            while len(durations.milliseconds) < batches and time.perf_counter() < began + seconds + 10:
                time.sleep(0.1)
            session.streams.removeListener(durations)
            shutil.rmtree(work)
            rates = sorted(arguments.batch / (each / 1000) for each in durations.milliseconds[-arguments.measured :])
            results[name] = {"min": rates[0], "median": statistics.median(rates), "max": rates[-1], "seconds": seconds}
            print(
                f"{name:32} {results[name]['median']:>10,.0f} rows/s  ({rates[0]:,.0f} to {rates[-1]:,.0f});"
                f" {seconds:.0f} s in all; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    finally:
        session.stop()
        shutil.rmtree(root)
    if "deduper" in results:
        for name, result in results.items():
            print(f"deduper / {name}: {results['deduper']['median'] / result['median']:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
