"""Clients for all requests to a source's brokers but the records, which Spark reads."""

from __future__ import annotations

import logging

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from deduper.config.kafka import KafkaSource
from deduper.config.kafka_options import connection_options, librdkafka_options

QUIET = logging.getLogger("deduper.kafka.client")
"""Takes librdkafka's lines about lost connections; those that matter come as errors too, which the caller reports."""
QUIET.setLevel(logging.CRITICAL)


def source_options(source: KafkaSource) -> dict[str, str]:
    """The options to reach a source's brokers and to log in."""
    return librdkafka_options(source.bootstrap_servers, connection_options(source.options))


def source_admin(source: KafkaSource) -> AdminClient:
    """An admin client of a source's brokers."""
    return AdminClient(dict(source_options(source)), logger=QUIET)


def source_isolation(source: KafkaSource) -> IsolationLevel:
    """Whether a source reads the records of open transactions too."""
    reads_all = source.options.get("kafka.isolation.level") == "read_uncommitted"
    return IsolationLevel.READ_UNCOMMITTED if reads_all else IsolationLevel.READ_COMMITTED
