"""Options of the clients for all requests to a source's brokers."""

from __future__ import annotations

import logging

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from deduper.config.kafka.options import connection_options, librdkafka_options, reading_options
from deduper.config.kafka.sections import KafkaSource


def source_options(source: KafkaSource) -> dict[str, str]:
    """The options to reach a source's brokers and to log in."""
    return librdkafka_options(source.bootstrap_servers, connection_options(source.options))


def consumer_options(source: KafkaSource) -> dict[str, str]:
    """The options to read a source's records with."""
    isolation = "read_uncommitted" if source_isolation(source) == IsolationLevel.READ_UNCOMMITTED else "read_committed"
    group = {} if source.group is None else {"group.id": source.group}
    return source_options(source) | reading_options(source.options) | group | {"isolation.level": isolation}


def source_admin(source: KafkaSource) -> AdminClient:
    """An admin client of a source's brokers."""
    return AdminClient(dict(source_options(source)), logger=QUIET)


def source_isolation(source: KafkaSource) -> IsolationLevel:
    """Whether a source reads the records of open transactions too."""
    reads_all = source.options.get("kafka.isolation.level") == "read_uncommitted"
    return IsolationLevel.READ_UNCOMMITTED if reads_all else IsolationLevel.READ_COMMITTED


QUIET = logging.getLogger("deduper.kafka.client")
"""Takes librdkafka's lines about lost connections; those that matter come as errors too, which the caller reports."""
QUIET.setLevel(logging.CRITICAL)
