"""Records a second from broker to broker, and the time from producing a record to reading it, next to Spark's own.

    python -m tests.bench.bench_kafka_job [--records 600000] [--batch 100000] [--repetitions 2] [--only NAME …]
                                          [--skip-throughput] [--skip-latency] [--json FILE]

One broker, one Spark session (`local[2]`), everything on one machine; two shards, two partitions a topic.

*Throughput*: a topic is filled once with `--records` records of about 170 bytes, a fifth of them repeats within the
last 20,000. Every contender reads it from its beginning in batches of `--batch`, with an empty state, in turns,
`--repetitions` times. A batch's rate is its records by its `triggerExecution`, which is Spark's own measure from
planning to checkpoint and holds the sending for all contenders (of deduper, the wait for the sending of the batch
before); the first two batches of a run warm it up and do not count. Given are minimum, median and maximum over all that
count.

*Latency*: a process sends at a steady rate; another reads the output with read_committed, and takes the difference to
the moment that the sender has written into the record. The first `--warm` seconds do not count. `unique` alone is read.

Every contender's output is read back and counted at the end of its first run: unique records must be as many as there
are keys, except for the pipeline without dedup.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.service.job import run
from deduper.sources.open import session_settings
from deduper.spark import kafka_jars
from deduper.spark.session import start_session
from deduper.units import parse_duration
from deduper.window.progress import BatchProgress
from tests.bench.kafka_load import MALFORMED_EVERY, SCHEMA, records
from tests.bench.spark_clock import (
    _CHANGELOG,
    _PROVIDERS,
    _SPARK_PROVIDER,
    Durations,
    remove_tables,
    with_settings,
)
from tests.services.jars import connector_folder
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import end_offsets

PARTITIONS = SHARDS = 2
WARM_BATCHES = 2
EVENTS_BEGIN_S = 1_767_225_600.0
_ROOT = Path(__file__).parent.parent.parent


@dataclass
class Scene:
    """What all contenders share."""

    broker: Broker
    session: SparkSession
    directory: Path
    batch: int
    runs: int = 0
    note: str = ""
    phases: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def new_topic(self, name: str) -> str:
        """An empty topic with a name of its own."""
        self.runs += 1
        return self.broker.create_topic(f"{name}-{self.runs}", PARTITIONS)

    def work(self) -> Path:
        """A new directory."""
        self.runs += 1
        made = self.directory / f"work-{self.runs}"
        made.mkdir()
        return made


class TriggerParts(Durations):
    """Of every batch that did something, Spark's own account of its trigger, in ms by part."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[dict[str, int]] = []

    def onQueryProgress(self, event: Any) -> None:
        """Keep it."""
        super().onQueryProgress(event)
        if event.progress.durationMs.get("addBatch"):
            self.parts.append(dict(event.progress.durationMs))

    def medians(self) -> dict[str, float]:
        """Of the batches after those that warm up."""
        kept = self.parts[WARM_BATCHES:]
        names = kept[-1] if kept else {}
        return {name: statistics.median(each.get(name, 0) for each in kept) for name in names}


Start = Callable[[Scene, str, str, str], AbstractContextManager[Callable[[], None]]]
"""From a scene, a source topic, a topic for unique records and a trigger (`available_now` or a duration): gives what
runs it to its end."""


def ours(**sections: Any) -> Start:
    """The job."""

    @contextmanager
    def started(scene: Scene, source: str, unique: str, trigger: str) -> Any:
        work = scene.work()
        delivery = sections.get("delivery", "exactly_once")
        topics = dict.fromkeys(PORTS, "")
        for port in PORTS:
            topics[port] = unique if port == "unique" else scene.new_topic(port)
        sinks: dict[str, Any] = {
            port: {"format": "kafka", "topic": topic, "delivery": delivery} for port, topic in topics.items()
        }
        if sections.get("unique_only"):
            sinks |= {port: {"format": "none"} for port in PORTS if port != "unique"}
        config = Config.model_validate(
            {
                "name": f"bench-{scene.runs}",
                "source": {
                    "format": "kafka",
                    "bootstrap_servers": scene.broker.bootstrap,
                    "topics": [source],
                    "value": {"format": "json", "schema": SCHEMA},
                    "starting_offsets": "earliest" if trigger == "available_now" else "latest",
                    "max_offsets_per_batch": scene.batch,
                },
                "key": "k",
                "expiry": {
                    "by": "event_time",
                    "field": "ts",
                    "period": "24h",
                    "span": "1h",
                    "lookup": "all_live",
                    "max_ahead_of_now": "off",
                },
                "store": {"url": "rocksdb:state", "shards": SHARDS},
                "sinks": sinks,
                "trigger": trigger,
            },
            context={"base_dir": work},
        )
        progress: list[BatchProgress] = []

        def wait() -> None:
            # In this thread, because the job takes signals: who wants it to stop sends one.
            run(
                config,
                once=trigger == "available_now",
                max_batches=None,
                take_over=False,
                on_progress=progress.append,
                session=scene.session,
            )
            label = sections.get("label", delivery) + scene.note
            scene.phases.setdefault(label, []).extend(
                {"rows": each.rows, "seconds": each.seconds, **each.phases} for each in progress[WARM_BATCHES:]
            )

        yield wait
        remove_tables(config)
        shutil.rmtree(work)

    return started


def sparks(transform: Callable[[DataFrame], DataFrame], settings: dict[str, str] | None = None) -> Start:
    """A plain query from Spark's source to Spark's sink."""

    @contextmanager
    def started(scene: Scene, source: str, unique: str, trigger: str) -> Any:
        work = scene.work()
        drains = trigger == "available_now"
        rows = (
            scene.session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", scene.broker.bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", source)
            .option("startingOffsets", "earliest" if drains else "latest")
            .option("maxOffsetsPerTrigger", scene.batch)
            .load()
            .select("key", "value", F.from_json(F.col("value").cast("string"), SCHEMA).alias("record"))
            .select("key", "value", F.col("record.k").alias("k"), F.col("record.ts").alias("ts"))
        )
        writer = (
            transform(rows)
            .select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", scene.broker.bootstrap)
            .option("topic", unique)
            .option("checkpointLocation", str(work / "checkpoint"))
        )

        def timed() -> DataStreamWriter:
            if drains:
                return writer.trigger(availableNow=True)
            return writer.trigger(processingTime=f"{parse_duration(trigger) // 1000} milliseconds")

        def wait() -> None:
            stopped = threading.Event()
            before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
            try:
                query = timed().start()
                while not query.awaitTermination(0.25):  # type: ignore[arg-type]
                    if stopped.is_set():
                        query.stop()
                        return
            finally:
                signal.signal(signal.SIGTERM, before)

        def within_settings() -> None:
            with_settings(scene.session, settings or {}, wait)

        yield within_settings
        shutil.rmtree(work, ignore_errors=True)

    return started


def exchanged(rows: DataFrame) -> DataFrame:
    """No dedup, the same exchange."""
    return rows.repartition(SHARDS, F.col("k"))


def within_watermark(rows: DataFrame) -> DataFrame:
    """Spark's own dedup."""
    return rows.withWatermark("ts", "24 hours").dropDuplicatesWithinWatermark(["k"])


_HDFS = {_SPARK_PROVIDER: _PROVIDERS + "HDFSBackedStateStoreProvider"}
_ROCKS = {_SPARK_PROVIDER: _PROVIDERS + "RocksDBStateStoreProvider", _CHANGELOG: "true"}

CONTENDERS: dict[str, Start] = {
    "deduper, exactly_once, four topics": ours(label="exactly_once"),
    "deduper, exactly_once, unique alone": ours(unique_only=True, label="unique alone"),
    "deduper, at_least_once, four topics": ours(delivery="at_least_once", label="at_least_once"),
    "without dedup, Spark's sink": sparks(exchanged),
    "within watermark, HDFS-backed, Spark's sink": sparks(within_watermark, _HDFS),
    "within watermark, RocksDB, Spark's sink": sparks(within_watermark, _ROCKS),
}
LATENCY: tuple[tuple[str, Start, tuple[str, ...]], ...] = (
    ("deduper, exactly_once, four topics", CONTENDERS["deduper, exactly_once, four topics"], ("100ms", "1s")),
    ("within watermark, RocksDB, Spark's sink", CONTENDERS["within watermark, RocksDB, Spark's sink"], ("100ms", "1s")),
)


def fill(broker: Broker, topic: str, count: int) -> int:
    """Send the workload; gives the number of its keys among well-formed records."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "partitioner": "murmur2_random",
        }
    )
    keys: set[str] = set()
    for number, (key, value) in enumerate(records(0, count, repeats=0.2, late=0.0, seed=1, at_s=EVENTS_BEGIN_S)):
        if number % MALFORMED_EVERY != MALFORMED_EVERY - 1:
            keys.add(key)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)
    assert sum(end_offsets(broker, topic).values()) == count
    return len(keys)


def committed_records(broker: Broker, topic: str) -> int:
    """How many records a read_committed reader finds."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "seen.npz"
        follower = _follower(broker, [topic], result)
        before, steady = -1, 0
        # It tells nothing meanwhile: wait until the topic stands still, then give it time to read to the end.
        while steady < 2:
            ends = sum(end_offsets(broker, topic).values())
            steady = steady + 1 if ends == before else 0
            before = ends
            time.sleep(1.0)
        time.sleep(max(2.0, before / 50_000))
        _ended(follower)
        with np.load(result) as seen:
            return len(seen["number"])


def measure_throughput(scene: Scene, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every contender in turns."""
    source = scene.new_topic("filled")
    keys = fill(scene.broker, source, arguments.records)
    # Spark rounds a batch's share of each partition: what is left over makes a small one more.
    batches = arguments.records // scene.batch
    print(f"{arguments.records:,} records, {keys:,} keys, {batches} batches; load {_load()}", flush=True)
    found: dict[str, Any] = {}
    for repetition in range(arguments.repetitions):
        for name, start in CONTENDERS.items():
            if arguments.only and name not in arguments.only:
                continue
            unique = scene.new_topic("unique")
            durations = TriggerParts()
            scene.session.streams.addListener(durations)
            began = time.perf_counter()
            with start(scene, source, unique, "available_now") as wait:
                wait()
                seconds = time.perf_counter() - began
                # Listeners are told by a queue of Spark's.
                until = time.perf_counter() + 10
                while len(durations.milliseconds) < batches and time.perf_counter() < until:
                    time.sleep(0.05)
            scene.session.streams.removeListener(durations)
            entry = found.setdefault(name, {"rates": [], "seconds": [], "load": []})
            entry["rates"] += [scene.batch / (each / 1000) for each in durations.milliseconds[WARM_BATCHES:batches]]
            entry["seconds"].append(round(seconds, 2))
            entry["load"].append(os.getloadavg()[0])
            entry["trigger_ms"] = durations.medians()
            if repetition == 0:
                entry["records_out"] = committed_records(scene.broker, unique)
                wanted = arguments.records if "without dedup" in name else keys
                # Spark's pipelines know no errors: what of a torn record can be read goes through their dedup.
                spare = arguments.records // MALFORMED_EVERY if "watermark" in name else 0
                assert abs(entry["records_out"] - wanted) <= spare, (name, entry["records_out"], wanted)
            scene.broker.delete_topic(unique)
            print(f"{name:46} {_spread(entry['rates'])}; {seconds:.0f} s; load {_load()}", flush=True)
    for entry in found.values():
        rates = sorted(entry["rates"])
        entry |= {"min": rates[0], "median": statistics.median(rates), "max": rates[-1]}
    return found


def measure_latency(scene: Scene, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every contender at every rate and trigger, one after another."""
    found = []
    for rate in arguments.rates:
        for name, start, triggers in LATENCY:
            for trigger in triggers:
                if arguments.only and name not in arguments.only:
                    continue
                scene.note = f", {rate:,.0f} records/s, trigger {trigger}"
                result = _latency_of(scene, start, trigger, rate, arguments)
                found.append({"contender": name, "trigger": trigger, "rate": rate, **result})
                shown = ", ".join(f"{part} {result[part]:,.0f} ms" for part in ("p50", "p95", "p99", "max"))
                print(
                    f"{name:46} {rate:>7,.0f}/s trigger {trigger:>5}: {shown}; {result['records']:,} records, "
                    f"{result['behind_s']:.1f} s behind at the end, "
                    f"load {_load()}",
                    flush=True,
                )
    return found


def _latency_of(scene: Scene, start: Start, trigger: str, rate: float, arguments: argparse.Namespace) -> dict[str, Any]:
    source, unique = scene.new_topic("live"), scene.new_topic("unique")
    result = scene.directory / f"seen-{scene.runs}.npz"
    seconds = arguments.warm + arguments.seconds
    follower = _follower(scene.broker, [unique], result)
    # The sender begins when the query has had time to: a query that starts at the latest offsets must be there first.
    sender = _process("send", scene.broker.bootstrap, source, "--rate", str(rate), "--seconds", str(seconds + 8))
    timer = threading.Timer(seconds + 8, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    stopping_ns = time.time_ns() + int((seconds + 8) * 1e9)
    spent = TriggerParts()
    scene.session.streams.addListener(spent)
    try:
        with start(scene, source, unique, trigger) as wait:
            wait()
    finally:
        scene.session.streams.removeListener(spent)
        timer.cancel()
        _ended(sender)
        _ended(follower)
    with np.load(result) as seen:
        sent_ns, seen_ns = seen["sent_ns"], seen["seen_ns"]
    last_ns = int(sent_ns.max(initial=0))
    # The end is left out too: what was sent when the query was told to stop.
    counted = (sent_ns > last_ns - (arguments.seconds + 2) * 10**9) & (sent_ns < last_ns - 2 * 10**9)
    milliseconds = (seen_ns - sent_ns)[counted] / 1e6
    if not len(milliseconds):
        raise SystemExit(f"nothing came out of {source} at {rate:,.0f} records/s with trigger {trigger}")
    parts = {f"p{part}": float(np.percentile(milliseconds, part)) for part in (50, 95, 99)}
    return {
        **parts,
        "max": float(milliseconds.max()),
        "records": int(counted.sum()),
        "per_second": float(counted.sum() / arguments.seconds),
        # Who cannot keep up has read nothing of the last seconds when it is stopped.
        "behind_s": max(0.0, (stopping_ns - last_ns) / 1e9),
        "trigger_ms": spent.medians(),
    }


def _follower(broker: Broker, topics: list[str], result: Path) -> subprocess.Popen[str]:
    follower = _process("follow", broker.bootstrap, *topics, "--result", str(result))
    assert follower.stdout is not None
    assert follower.stdout.readline() == "following\n"
    return follower


def _process(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.kafka_load", *words], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    )


def _ended(process: subprocess.Popen[str]) -> None:
    # It may be about to end by itself, and a signal in an interpreter's last moment is no request any more.
    with suppress(subprocess.TimeoutExpired):
        process.wait(2)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    if process.wait(120):
        raise SystemExit(f"{process.args} ended with {process.returncode}")


def _spread(rates: list[float]) -> str:
    ordered = sorted(rates)
    return f"{statistics.median(ordered):>9,.0f} records/s ({ordered[0]:,.0f} to {ordered[-1]:,.0f})"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def phases_table(phases: dict[str, list[dict[str, float]]]) -> list[str]:
    """Where the time of a window goes: medians of every phase, by kind of job."""
    lines = []
    for label, windows in phases.items():
        if not windows:
            continue
        names = [name for name in windows[0] if name not in ("rows", "seconds")]
        medians = {name: statistics.median(each.get(name, 0.0) for each in windows) for name in names}
        rows = statistics.median(each["rows"] for each in windows)
        shown = "  ".join(f"{name} {1000 * value:.0f}" for name, value in medians.items() if value >= 0.001)
        total = statistics.median(each["seconds"] for each in windows)
        lines.append(f"{label}: {len(windows)} windows of {rows:,.0f} rows, {1000 * total:.0f} ms: {shown}")
    return lines


def tables(result: dict[str, Any]) -> str:
    """The figures as Markdown, short."""
    lines = [f"{result['when']}, {result['machine']}; load {result['load_before'][0]:.1f} before.", ""]
    throughput = result.get("throughput", {})
    if throughput:
        base = throughput.get("deduper, exactly_once, four topics", {}).get("median")
        lines += ["| broker to broker | records/s, median | least to most | next to ours |", "|---|---|---|---|"]
        for name, entry in throughput.items():
            share = f"{entry['median'] / base:.2f}" if base else ""
            spread = f"{entry['min']:,.0f} to {entry['max']:,.0f}"
            lines.append(f"| {name} | {entry['median']:,.0f} | {spread} | {share} |")
        lines.append("")
    if result.get("latency"):
        lines += [
            "| produce to read, ms | records/s | trigger | p50 | p95 | p99 | most | seconds behind at the end |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for each in result["latency"]:
            figures = " | ".join(f"{each[part]:,.0f}" for part in ("p50", "p95", "p99", "max"))
            what = f"{each['contender']} | {each['rate']:,.0f} | {each['trigger']}"
            lines.append(f"| {what} | {figures} | {each['behind_s']:.1f} |")
        lines.append("")
    for name in ("phases", "latency_phases"):
        if result.get(name):
            lines += [f"Milliseconds of a window by phase, medians ({name}):", ""]
            lines += [f"    {line}" for line in phases_table(result[name])] + [""]
    return "\n".join(lines)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=800_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="*", default=[1000.0, 20_000.0])
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each latency run that count")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before them that do not")
    parser.add_argument("--only", nargs="*", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--skip-throughput", action="store_true")
    parser.add_argument("--skip-latency", action="store_true")
    parser.add_argument("--json", type=Path, help="where the raw figures go, and a short table beside it")
    return parser.parse_args(words)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    os.environ[kafka_jars.VARIABLE] = str(connector_folder())
    root = Path(tempfile.mkdtemp(prefix="deduper-bench-"))
    base = Config.model_validate(
        {
            "name": "bench",
            "source": {
                "format": "kafka",
                "bootstrap_servers": "127.0.0.1:1",
                "topics": ["none"],
                "value": {"format": "json", "schema": SCHEMA},
            },
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": "file:state", "shards": SHARDS},
            "sinks": {port: {"format": "none"} for port in PORTS},
            "spark": {
                "spark.master": "local[2]",
                "spark.driver.memory": "3g",
                "spark.sql.shuffle.partitions": SHARDS,  # for Spark's own contenders
            },
        },
        context={"base_dir": root},
    )
    result: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, broker and clients on it",
        "arguments": {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()
        },
        "load_before": os.getloadavg(),
    }
    with Broker(root / "broker", heap="768m", fast_start=False) as broker:
        session = start_session(base.name, session_settings(base))
        try:
            scene = Scene(broker, session, root, arguments.batch)
            if not arguments.skip_throughput:
                result["throughput"] = measure_throughput(scene, arguments)
                for line in phases_table(scene.phases):
                    print(line, flush=True)
                result["phases"] = scene.phases
            if not arguments.skip_latency:
                scene.phases = {}
                result["latency"] = measure_latency(scene, arguments)
                for line in phases_table(scene.phases):
                    print(line, flush=True)
                result["latency_phases"] = scene.phases
        finally:
            session.stop()
    shutil.rmtree(root, ignore_errors=True)
    result["load_after"] = os.getloadavg()
    return result


def main() -> None:
    """See the module."""
    arguments = parsed()
    result = measure(arguments)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        arguments.json.with_suffix(".md").write_text(tables(result))


@pytest.mark.bench
def test_records_go_from_broker_to_broker() -> None:
    """Everything is measured once, in small; what comes out is counted."""
    result = measure(parsed(["--records", "40000", "--batch", "10000", "--repetitions", "1", "--rates", "1000"]))
    assert set(result["throughput"]) == set(CONTENDERS)
    assert all(entry["p50"] > 0 for entry in result["latency"])


if __name__ == "__main__":
    main()
