"""The rules between settings that are about Kafka; see `config_checks`. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deduper.config import ExpiryConfig, KafkaSink, KafkaSource, SinksConfig, SourceConfig
from deduper.config_finding import Finding
from deduper.kafka_errors import KafkaOptionsError
from deduper.kafka_options import connection_options, librdkafka_options


def client_options(source: SourceConfig) -> Iterator[Finding]:
    """The clients beside Spark's own must be let in too."""
    if isinstance(source, KafkaSource):
        path = ("source", "options")
        yield from _refused(path, source.bootstrap_servers, connection_options(source.options))
        yield from _pem_to_java(path, source.options)


def port_options(source: SourceConfig, sinks: SinksConfig) -> Iterator[Finding]:
    """What a port has from the source is told there."""
    told = source.options if isinstance(source, KafkaSource) else {}
    for port, sink in sinks.items():
        if not isinstance(sink, KafkaSink):
            continue
        path = ("sinks", port, "options")
        own = {name: value for name, value in sink.options.items() if told.get(name) != value}
        if sink.delivery == "exactly_once":
            yield from _refused(path, sink.bootstrap_servers, own)
        else:
            yield from _pem_to_java(path, own)


def _refused(path: tuple[str, ...], servers: str, options: Mapping[str, str]) -> Iterator[Finding]:
    try:
        librdkafka_options(servers, options)
    except KafkaOptionsError as error:
        yield Finding((*path, error.option) if error.option else path, error.what, error.write, at_key=True)


def _pem_to_java(path: tuple[str, ...], options: Mapping[str, str]) -> Iterator[Finding]:
    """librdkafka goes by the file's name, Java takes everything for JKS that is not called something else."""
    for store in ("truststore", "keystore"):
        name = f"kafka.ssl.{store}.location"
        if options.get(name, "").lower().endswith((".pem", ".crt")) and f"kafka.ssl.{store}.type" not in options:
            write = f"write `kafka.ssl.{store}.type: PEM` too"
            yield Finding((*path, name), "is a PEM file, which Java would take for a JKS key store", write)


def ports_have_records(source: SourceConfig, sinks: SinksConfig) -> Iterator[Finding]:
    """A topic gets the records as they were read: key, value, headers, timestamp. Files have none of them."""
    if isinstance(source, KafkaSource):
        return
    for port, sink in sinks.items():
        if isinstance(sink, KafkaSink):
            yield Finding(
                ("sinks", port, "format"),
                "sends on the records of a Kafka source, and this source is files",
                f"write `{port}: {{format: parquet, path: out/{port}}}`, or read from Kafka",
            )


def ports_send_elsewhere(source: SourceConfig, sinks: SinksConfig) -> Iterator[Finding]:
    """A job that reads what it wrote never ends."""
    if not isinstance(source, KafkaSource):
        return
    brokers = _brokers(source.bootstrap_servers)
    for port, sink in sinks.items():
        if not isinstance(sink, KafkaSink) or not source.reads(sink.topic):
            continue
        if not sink.bootstrap_servers or brokers & _brokers(sink.bootstrap_servers):
            which = f"`{sink.topic}` is a topic of the source"
            if source.topic_pattern is not None:
                which = f"`{sink.topic}` matches source.topic_pattern"
            what = f"{which}: the job would read its own output"
            yield Finding(("sinks", port, "topic"), what, "send to another topic")


def _brokers(servers: str) -> set[str]:
    """host:port of each, this machine under one name."""
    lowered = (server.lower() for server in servers.split(","))
    return {server.replace("127.0.0.1:", "localhost:").replace("[::1]:", "localhost:") for server in lowered}


def tombstones_have_keys(
    source: SourceConfig, key: tuple[str, ...], null_keys: str, expiry: ExpiryConfig
) -> Iterator[Finding]:
    """A tombstone has no value: whatever must not be null has to come from elsewhere in the record."""
    if not isinstance(source, KafkaSource) or source.tombstones == "error":
        return
    path = ("source", "tombstones")
    of_value = [column.name for column in source.value.parsed_columns]
    in_value = [name for name in key if name in of_value]
    if in_value and null_keys == "error":
        yield Finding(
            path,
            f"key column `{in_value[0]}` is in the value, which a tombstone lacks: each would be an error for its null",
            "take the key from the record (`record: {user: key}`), or write `null_keys: allow` or `tombstones: error`",
        )
    field = getattr(expiry, "field", None)
    if field in of_value:
        yield Finding(
            path,
            f"expiry.field `{field}` is in the value, which a tombstone lacks: each would be an error for its null",
            "take it from the record (`record: {arrived: timestamp}`), or write `tombstones: error`",
        )
