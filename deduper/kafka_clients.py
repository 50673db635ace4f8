"""How the clients are made by which a job asks its source's brokers, beside Spark, for what is no record."""

from __future__ import annotations

import logging

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from deduper.config_kafka import KafkaSource
from deduper.kafka_options import connection_options, librdkafka_options

QUIET = logging.getLogger("deduper.kafka.client")
"""Where librdkafka tells of every lost connection; what matters of it comes as errors, and is told by who asked."""
QUIET.setLevel(logging.CRITICAL)


def source_options(source: KafkaSource) -> dict[str, str]:
    """What a client needs to reach a source's brokers and to be let in."""
    return librdkafka_options(source.bootstrap_servers, connection_options(source.options))


def source_admin(source: KafkaSource) -> AdminClient:
    """A client that asks a source's brokers."""
    return AdminClient(dict(source_options(source)), logger=QUIET)


def source_isolation(source: KafkaSource) -> IsolationLevel:
    """What of a topic a source can read: records of open transactions too, or not yet."""
    reads_all = source.options.get("kafka.isolation.level") == "read_uncommitted"
    return IsolationLevel.READ_UNCOMMITTED if reads_all else IsolationLevel.READ_COMMITTED
