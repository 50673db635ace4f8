"""A valid configuration with Kafka at both ends, to be changed by tests, and how it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deduper.config.kafka.sections import KafkaSource
from deduper.config.load import load_config
from deduper.config.model import Config

BASE = """\
name: clicks
source:
  format: kafka
  bootstrap_servers: "b1:9092,b2:9092"
  topics: [clicks, taps]
  starting_offsets: earliest
  value:
    format: json
    schema: "id long, ts timestamp, tags array<string>"
  record: {user: key, trace: "header:trace-id", arrived: timestamp}
  tombstones: error
  options:
    kafka.security.protocol: SSL
key: [user, id]
expiry: {by: event_time, field: ts, period: 24h}
store: {url: "file:state"}
sinks:
  unique: {format: kafka, topic: unique}
  duplicate: {format: kafka, topic: duplicate}
  expired: {format: parquet, path: out/expired}
  error: {format: none}
"""
JSON_VALUE = BASE[BASE.index("    format: json") : BASE.index("  record:")]
SSL = "    kafka.security.protocol: SSL\n"
FROM_TOMBSTONES = BASE[BASE.index("  tombstones:") : BASE.index("store:")]
TO_TOMBSTONES = FROM_TOMBSTONES.replace("tombstones: error", "tombstones: judge").replace("field: ts", "field: arrived")
JAAS = "kafka.sasl.jaas.config"


def loaded(text: str, directory: Path, **given: Any) -> Config:
    """The configuration of this text."""
    file = directory / "job.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, **{"environment": {}, **given})


def kafka_source(config: Config) -> KafkaSource:
    """The source, which is Kafka's."""
    assert isinstance(config.source, KafkaSource)
    return config.source
