"""Options of the clients for all requests to a source's brokers, but those of Spark's own client."""

from __future__ import annotations

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from deduper.config.kafka.options import KafkaOptionsError, connection_options, librdkafka_options
from deduper.config.kafka.sections import KafkaSource
from deduper.kafka.quiet import QUIET

_OF_CONSUMERS = {"check.crcs", "client.rack", "fetch.max.bytes", "max.partition.fetch.bytes"}
"""Options of consumers that both clients have."""
_OF_JAVA_ALONE = {
    *("default.api.timeout.ms", "heartbeat.interval.ms", "isolation.level", "max.poll.interval.ms", "max.poll.records"),
    *("fetch.max.wait.ms", "fetch.min.bytes", "request.timeout.ms", "session.timeout.ms"),
}
"""Options that change nothing of what a consumer reads; it has values of its own for those of fetches."""


def source_options(source: KafkaSource) -> dict[str, str]:
    """The options to reach a source's brokers and to log in."""
    return librdkafka_options(source.bootstrap_servers, connection_options(source.options))


def consumer_options(source: KafkaSource) -> dict[str, str]:
    """The options to read a source's records with.

    Raises:
        KafkaOptionsError: one of them only Java's client has.
    """
    connecting = connection_options(source.options)
    made = source_options(source)
    for name, value in source.options.items():
        bare = name.removeprefix("kafka.").removeprefix("librdkafka.")
        if name in connecting or bare in _OF_JAVA_ALONE:
            continue
        if name == f"kafka.{bare}" and bare not in _OF_CONSUMERS:
            raise KafkaOptionsError("is an option of Java's client alone", option=name)
        made[bare] = value
    isolation = "read_uncommitted" if source_isolation(source) == IsolationLevel.READ_UNCOMMITTED else "read_committed"
    group = {} if source.group is None else {"group.id": source.group}
    return made | group | {"isolation.level": isolation}


def source_admin(source: KafkaSource) -> AdminClient:
    """An admin client of a source's brokers."""
    return AdminClient(dict(source_options(source)), logger=QUIET)


def source_isolation(source: KafkaSource) -> IsolationLevel:
    """Whether a source reads the records of open transactions too."""
    reads_all = source.options.get("kafka.isolation.level") == "read_uncommitted"
    return IsolationLevel.READ_UNCOMMITTED if reads_all else IsolationLevel.READ_COMMITTED
