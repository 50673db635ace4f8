"""The real job from topic to topics on a real broker."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deduper import kafka_jars
from deduper.spark_session import start_session
from tests.services.jars import connector_jars
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Record, committed_offsets, read, send
from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.services, pytest.mark.spark]


def settings(broker: Broker, source: str, topics: dict[str, str], **more: Any) -> dict[str, Any]:
    """The sections of a job from one topic to one for each port."""
    sections: dict[str, Any] = {
        "source": {
            "format": "kafka",
            "bootstrap_servers": broker.bootstrap,
            "topics": [source],
            "value": {"format": "json", "schema": "k string, t long"},
            "path": None,
            "file_format": None,
            "schema": None,
        },
        "expiry": {"by": "ordered", "field": "t", "period": 100, "span": 10},
        "sinks": {port: {"format": "kafka", "topic": topic} for port, topic in topics.items()},
    }
    for name, value in more.items():
        sections[name] = {**sections.get(name, {}), **value} if isinstance(value, dict) else value
    return sections


@pytest.fixture(scope="session")
def session(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all jobs of this module, with Spark's connector."""
    os.environ[kafka_jars.VARIABLE] = str(connector_jars()[0].parent)
    topics = dict.fromkeys(PORTS, "nothing")
    more = settings(broker, "none", topics, spark={"spark.master": "local[2,4]", "spark.driver.memory": "1g"})
    started = start_session(KafkaJob(tmp_path_factory.mktemp("session"), None, more).config)
    yield started
    started.stop()


class KafkaJob(Job):
    """A job whose source is a topic."""

    @property
    def config(self) -> Any:
        from deduper.config import Config

        sections: dict[str, Any] = {
            "name": "test",
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": "rocksdb:state", "shards": 2},
            **self.settings,
        }
        sections["source"] = {name: value for name, value in sections["source"].items() if value is not None}
        return Config.model_validate(sections, context={"base_dir": self.directory})


@pytest.fixture
def topics(new_topic: Callable[..., str]) -> dict[str, str]:
    """A topic for each port."""
    return {port: new_topic(port, partitions=2) for port in PORTS}


def records(count: int, first: int = 0) -> list[Record]:
    """Keys that come again, late ones, errors; every record with a number in a header."""
    made = []
    for number in range(first, first + count):
        key, t = f"k{number % 40}", number // 4
        value: bytes | None = json.dumps({"k": key, "t": t - 500 if number % 23 == 0 else t}).encode()
        if number % 31 == 0:
            value = b"{torn"
        elif number % 37 == 0:
            value = None
        made.append(
            Record(
                value, key=key.encode(), headers=(("n", str(number).encode()),), timestamp_ms=1_700_000_000_000 + number
            )
        )
    return made


def header(record: Record, name: str) -> str | None:
    """The last header of this name."""
    found = [value for key, value in record.headers if key == name]
    return found[-1].decode() if found and found[-1] is not None else None


def test_every_record_leaves_by_one_topic_as_it_came(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """Key, value, headers and timestamp are kept; verdict, reason, window and origin are told."""
    source = new_topic("in", partitions=3)
    sent = send(broker.plain(), source, records(500))
    job = KafkaJob(tmp_path, session, settings(broker, source, topics))
    summary = job.run()
    assert summary.rows == 500
    seen: Counter[str] = Counter()
    by_number = {header(record, "n"): record for record in sent}
    for port, topic in topics.items():
        for record in read(broker.plain(), topic):
            number = header(record, "n")
            assert number is not None
            seen[number] += 1
            original = by_number[number]
            assert (record.key, record.value, record.timestamp_ms) == (
                original.key,
                original.value,
                original.timestamp_ms,
            )
            assert header(record, "dedup-verdict") == port
            assert header(record, "dedup-origin") == f"{source}-{original.partition}@{original.offset}"
            assert (header(record, "dedup-first-seen") is not None) == (port == "duplicate")
    assert set(seen.values()) == {1}
    assert len(seen) == 500
    assert committed_offsets(broker, "test", source) == {
        number: sum(record.partition == number for record in sent) for number in range(3)
    }
    assert job.run().rows == 0
    send(broker.plain(), source, records(60, first=500))
    assert job.run().rows == 60
    total = sum(len(read(broker.plain(), topic)) for topic in topics.values())
    assert total == 560
