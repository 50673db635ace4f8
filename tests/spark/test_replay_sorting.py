"""The shuffle of a replay by Spark: the rows of a replay that is sorted in the driver, with values of every type."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from deduper.config.sections import PORTS
from deduper.kafka.client import QUIET
from deduper.replay.run import replay
from deduper.replay.settings import Asked
from tests.deduper.kafka.mock_cluster import MockCluster
from tests.deduper.replay.topics import TopicJob, stand_in
from tests.spark.harness import Job, read_rows

SCHEMA = (
    "id string, ts timestamp, price decimal(12,2), n tinyint, bytes binary, day date, tags array<string>, "
    "seen map<string,bigint>, at struct<x: double, y: timestamp>"
)
FILES = {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS}


def rows_of_replay(job: Job, name: str) -> list[dict[str, Any]]:
    """The rows of all ports of a replay in many windows, but for what the cut into windows decides."""
    out = job.directory / name
    report = replay(job.config, Asked(out), session=job.session, slice_bytes=9000, window_bytes=1)
    assert report.is_over
    assert report.windows > 2
    rows = [row for port in PORTS for row in read_rows(out / port)]
    for row in rows:
        del row["_dedup"]["window"]
        if row["_dedup"]["first_seen"] is not None:
            del row["_dedup"]["first_seen"]["window"], row["_dedup"]["reason"]
    return sorted(rows, key=lambda row: (row["_dedup"]["source"], row["_dedup"]["position"]))


def test_spark_sorts_as_the_driver_does(new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with nested values, nulls and errors, cut by tasks into slices: the same ports, values and first copies."""
    expiry = {"by": "event_time", "field": "ts", "period": "1h", "span": "10m", "lookup": "all_live"}
    job = new_job(source={"schema": SCHEMA}, key="id", expiry=expiry)
    draw = random.Random(2)
    for _ in range(7):
        lines = []
        for _ in range(60):
            minute = draw.randrange(600)
            time = f"2024-01-06T{minute // 60:02}:{minute % 60:02}:00Z"
            record = {
                "id": str(draw.randrange(90)),
                "ts": time,
                "price": draw.randrange(10**6) / 100,
                "n": draw.randrange(140),
            }
            record |= {
                "bytes": "AAEC",
                "day": "2024-02-29",
                "tags": ["a", None],
                "seen": {"é": 1},
                "at": {"x": 0.5, "y": time},
            }
            lines.append(json.dumps({name: record[name] for name in record if draw.random() < 0.97}))
        job.add_file(lines)

    here = rows_of_replay(job, "here")
    monkeypatch.setattr("deduper.replay.shuffle.is_small", lambda _: False)
    by_spark = rows_of_replay(job, "by-spark")
    assert len(here) == 7 * 60
    assert {row["_dedup"]["verdict"] for row in here} == {"unique", "duplicate", "error"}
    assert by_spark == here


@pytest.mark.night
def test_spark_sorts_a_topic_as_the_driver_does(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges of three partitions, fetched by the workers from a mock of a cluster: the same rows and first copies."""
    monkeypatch.setattr("deduper.replay.topics.RANGE_OFFSETS", 60)
    topics = stand_in(monkeypatch, are_fetched_here=False)
    cluster = MockCluster(partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap}, logger=QUIET)  # type: ignore[call-overload]
    draw = random.Random(3)
    cluster.new_topic("in")
    for _ in range(600):
        partition, t = draw.choices(range(3), (10, 1, 1))[0], draw.randrange(2000)
        record = {"k": str(draw.randrange(200)), "t": t} if t % 17 else {"k": None}
        value = json.dumps(record).encode()
        producer.produce("in", value, partition=partition, timestamp=1_700_000_000_000 + t)
        topics.add(partition, value)
    producer.flush(10)
    expiry = {"by": "ordered", "field": "t", "period": 300, "span": 30, "lookup": "all_live"}
    source = {"bootstrap_servers": cluster.bootstrap}
    job = TopicJob(tmp_path, session, {"expiry": expiry, "source": source, "sinks": FILES})
    here = rows_of_replay(job, "here")
    monkeypatch.setattr("deduper.replay.shuffle.is_small", lambda _: False)
    by_spark = rows_of_replay(job, "by-spark")
    assert len(here) == 600
    assert {row["_dedup"]["verdict"] for row in here} == {"unique", "duplicate", "error"}
    assert by_spark == here
