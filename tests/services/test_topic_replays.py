"""Topics of a real broker in the order of time: the case of the issue replayed, and a job that is late."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deduper.replay.run import plan_replay, replay
from deduper.replay.settings import Asked
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob
from tests.services.kafka_traffic import Record, send
from tests.spark.harness import PORTS

pytestmark = [pytest.mark.services, pytest.mark.spark]

DAY0 = datetime(2024, 1, 6, tzinfo=UTC)
A_DAY = 1000
ALL = {"unique": 7600, "duplicate": 400, "expired": 0, "error": 0}


def _at(day: int, number: int) -> datetime:
    return DAY0 + timedelta(days=day, seconds=number * 86_400 / A_DAY)


def _collectors() -> list[Record]:
    """Two collectors, four days, one after the other; one partition of five has ten times the records of another."""
    draw = random.Random(7)
    made = []
    for collector in "AB":
        for day in range(4):
            for number in range(A_DAY):
                twin = "A" if collector == "B" and not number % 10 else collector
                at = _at(day, number)
                value = {"id": f"{twin}-{day}-{number}", "ts": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
                partition = draw.choices(range(5), (10, 1, 1, 1, 1))[0]
                stamp = int(at.timestamp() * 1000)
                made.append(Record(json.dumps(value).encode(), partition=partition, timestamp_ms=stamp))
    return made


def _job(broker: Broker, session: SparkSession, directory: Path, topic: str, field: str = "ts") -> KafkaJob:
    sections: dict[str, Any] = {
        "source": {
            "format": "kafka",
            "bootstrap_servers": broker.bootstrap,
            "topics": [topic],
            "value": {"format": "json", "schema": "id string, ts timestamp"},
            "record": {"at": "timestamp"},
            "group": "off",
        },
        "key": "id",
        "expiry": {"by": "event_time", "field": field, "period": "24h", "lookup": "all_live"},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
    }
    return KafkaJob(directory, session, sections)


@pytest.mark.parametrize("is_small", [True, pytest.param(False, marks=pytest.mark.night)])
def test_an_uneven_topic_is_replayed_and_followed(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_small: bool,
) -> None:
    """7,600 unique, 400 duplicates, none expired; then the job takes what has come since, once, by the old keys."""
    monkeypatch.setattr("deduper.replay.topics.RANGE_OFFSETS", 2000)
    monkeypatch.setattr("deduper.replay.shuffle.is_small", lambda _: is_small)
    topic = new_topic("in", partitions=6)  # one without records
    send(broker.plain(), topic, _collectors())
    job = _job(broker, session, tmp_path, topic)
    planned = plan_replay(job.config, Asked(None))
    assert (planned.partitions, planned.offsets) == (5, 8000)
    report = replay(job.config, Asked(None), session=job.session, slice_bytes=100_000, window_bytes=300_000)
    assert report.is_over
    assert report.judged == ALL
    assert report.windows > 1
    assert report.offsets_since == 0

    at = _at(4, 0).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = [{"id": "B-3-999", "ts": at}, {"id": "new", "ts": at}]
    send(broker.plain(), topic, [Record(json.dumps(one).encode(), partition=5) for one in since])
    summary = job.run()
    assert (summary.unique, summary.duplicate, summary.expired, summary.error) == (1, 1, 0, 0)


def test_the_brokers_know_where_a_range_begins(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--from` by time stamps plans less and gives what the records' own times give."""
    monkeypatch.setattr("deduper.replay.topics.RANGE_OFFSETS", 200)
    topic = new_topic("in", partitions=5)
    send(broker.plain(), topic, _collectors()[: 4 * A_DAY])
    found = []
    for field in ("at", "ts"):
        job = _job(broker, session, tmp_path, topic, field)
        report = replay(
            job.config,
            Asked(tmp_path / field, start="2024-01-08T00:00:00Z", end="2024-01-09T00:00:00Z"),
            session=job.session,
        )
        found.append((report.judged, report.offsets))
    (by_stamp, few), (by_records, many) = found
    assert by_stamp == by_records == {"unique": A_DAY, "duplicate": 0, "expired": 0, "error": 0}
    assert few < many == 4 * A_DAY


@pytest.mark.night
@pytest.mark.parametrize("order", [{}, {"order": "time", "slack": "1h"}], ids=["arrival", "time"])
def test_a_job_that_catches_up_keeps_partitions_together(
    order: dict[str, str], broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Four partitions of four days, and one of the last day as full as they: nothing expires with `order: time`."""
    topic = new_topic("in", partitions=5)
    records = []
    for partition in range(5):
        for number in range(400):
            day, at = (3, number / 400) if partition == 4 else (number // 100, number % 100 / 100)
            when = DAY0 + timedelta(days=day + at)
            value = {"id": f"{partition}-{number}", "ts": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
            stamp = int(when.timestamp() * 1000)
            records.append(Record(json.dumps(value).encode(), partition=partition, timestamp_ms=stamp))
    send(broker.plain(), topic, records)
    job = _job(broker, session, tmp_path, topic)
    job.settings["source"].update({"max_offsets_per_batch": 200, **order})
    summary = job.run()
    assert summary.unique + summary.expired == 2000
    assert bool(summary.expired) == (not order)
