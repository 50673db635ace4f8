"""What tests of the job on Kafka share: its configuration, and records whose verdicts can be foretold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from deduper.config.model import Config
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Record
from tests.spark.harness import Job


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


class KafkaJob(Job):
    """A job whose source is a topic."""

    @property
    def config(self) -> Config:
        """The configuration, checked again."""
        sections: dict[str, Any] = {
            "name": "test",
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": "rocksdb:state", "shards": 2},
            **self.settings,
        }
        sections["source"] = {name: value for name, value in sections["source"].items() if value is not None}
        return Config.model_validate(sections, context={"base_dir": self.directory})


def config_file(directory: Path, sections: dict[str, Any]) -> Path:
    """The config file of a job."""
    file = directory / "job.yaml"
    named = {"name": "test", "key": "k", "store": {"url": "file:state", "shards": 2}, **sections}
    named["source"] = {name: value for name, value in named["source"].items() if value is not None}
    with file.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(named, stream)
    return file


def records(count: int, first: int = 0) -> list[Record]:
    """Keys that come again, late ones, errors; every record with a number in a header."""
    made = []
    for number in range(first, first + count):
        key, t = f"k{number % 30}", number // 4  # forty records to a bucket
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
