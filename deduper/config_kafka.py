"""Kafka as a source and as a port: the two sections, as frozen values; see `config`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from deduper.config_types import Count, Duration, Section, SparkValue, refusal, shown
from deduper.ddl import Column, DdlError, parse_columns

RECORD_PARTS = {
    "key": "string",
    "key_binary": "binary",
    "timestamp": "timestamp",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}
"""What of a Kafka record, beside its value, can be a column, and the column's type; a header's is string."""

HEADER = "header:"

_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OURS = {
    "kafka.bootstrap.servers": "write `bootstrap_servers`",
    "kafka.group.id": "write `group`",
    "kafka.auto.offset.reset": "write `starting_offsets`",
    "kafka.enable.auto.commit": "write `group`: offsets are committed after each window",
    "kafka.key.deserializer": "remove it: keys are read as bytes",
    "kafka.value.deserializer": "remove it: values are read as bytes",
    "kafka.key.serializer": "remove it: keys are written as they were read",
    "kafka.value.serializer": "remove it: values are written as they were read",
    "kafka.transactional.id": "remove it: it is made of the job, the store, the port and the slot",
    "kafka.enable.idempotence": "remove it: `delivery: exactly_once` has it",
    "kafka.acks": "remove it: all replicas acknowledge",
}


def _read_servers(value: object) -> object:
    servers = value if isinstance(value, list | tuple) else str(value).split(",") if isinstance(value, str) else None
    if not servers:
        raise refusal(f"`{shown(value)}` names no broker", 'write `"host:9092"`, several with commas')
    trimmed = [str(server).strip() for server in servers]
    for server in trimmed:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[2]) < 65536:
            raise refusal(f"`{shown(server)}` is not host:port", 'write `"host:9092"`, several with commas')
    return ",".join(trimmed)


Servers = Annotated[str, BeforeValidator(_read_servers), WithJsonSchema({"type": "string", "x-kind": "host:port,…"})]


def _read_topic(value: object) -> object:
    if not isinstance(value, str) or not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise refusal(f"`{shown(value)}` is no topic", "use letters, digits, `.`, `_` and `-`, at most 249")
    return value


Topic = Annotated[str, BeforeValidator(_read_topic)]


def _checked_options(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    for name in value:
        if name in _OURS:
            raise refusal(f"`{name}` is set by the job", _OURS[name])
        if not str(name).startswith(("kafka.", "librdkafka.")):
            raise refusal(f"`{name}` is not a Kafka option", f"write it with its prefix: `kafka.{name}`")
    return value


Options = Annotated[dict[str, SparkValue], BeforeValidator(_checked_options)]


class KafkaValue(Section):
    """What the value of a record holds."""

    format: Literal["json", "csv", "text"] = Field(description="How a value is read: JSON, CSV or plain text")
    ddl: str = Field(
        default="",
        alias="schema",
        description="Columns as Spark DDL (json and csv); text has one, `value string`",
        examples=['"user string, id long, ts timestamp"'],
    )
    delimiter: str = Field(default=",", description="One character between the fields (csv only)")

    @model_validator(mode="after")
    def _has_columns(self) -> KafkaValue:
        if self.format == "text":
            if self.ddl:
                raise refusal("a text has one column, `value string`", "remove `schema`")
            return self
        if not self.ddl:
            raise refusal("`schema` is missing", 'write `schema: "user string, id long, ts timestamp"`')
        return self

    @field_validator("ddl")
    @classmethod
    def _parses(cls, value: str) -> str:
        if value:
            try:
                parse_columns(value)
            except DdlError as error:
                raise refusal(error.what, error.write, offset=error.offset) from None
        return value

    @property
    def columns(self) -> str:
        """The columns of a value as Spark DDL."""
        return self.ddl or "value string"

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """The columns of a value, in order."""
        return parse_columns(self.columns)


def _read_starting(value: object) -> object:
    if value in ("earliest", "latest"):
        return value
    if isinstance(value, Mapping) and set(value) == {"time"}:
        try:
            datetime.fromisoformat(str(value["time"]))
        except ValueError:
            raise refusal(f"`{shown(value['time'])}` is no time", "write `{time: 2025-03-01T00:00:00Z}`") from None
        return {"time": str(value["time"])}
    if isinstance(value, Mapping) and value and all(isinstance(partitions, Mapping) for partitions in value.values()):
        for topic, partitions in value.items():
            for partition, offset in partitions.items():
                if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
                    raise refusal(f"`{topic}`: `{partition}: {offset}` is no offset", 'write `{clicks: {"0": 12}}`')
        return {str(t): {str(p): o for p, o in partitions.items()} for t, partitions in value.items()}
    raise refusal(
        f"`{shown(value)}` is no place to start from",
        'write `earliest`, `latest`, `{time: 2025-03-01T00:00:00Z}` or `{clicks: {"0": 12}}`',
    )


Starting = Annotated[
    Literal["earliest", "latest"] | dict[str, Any],
    BeforeValidator(_read_starting),
    WithJsonSchema({"type": ["string", "object"], "x-kind": "earliest, latest, a time or offsets"}),
]


def _read_group(value: object) -> object:
    if value is False or value == "off":
        return None
    return value


class KafkaSource(Section):
    """Topics of a Kafka cluster."""

    format: Literal["kafka"]
    bootstrap_servers: Servers = Field(description="Brokers to begin with", examples=['"localhost:9092"'])
    topics: tuple[Topic, ...] = Field(default=(), description="Topics to read", examples=["[clicks]"])
    topic_pattern: str | None = Field(
        default=None, description="Or a regular expression of topics", examples=["clicks-.*"]
    )
    starting_offsets: Starting = Field(
        default="earliest", description="Where a new store starts; an old one goes on where it was"
    )
    max_offsets_per_batch: Count = Field(default=500_000, ge=1, description="Most offsets one window takes")
    value: KafkaValue = Field(description="What a value holds", examples=['{format: json, schema: "..."}'])
    record: dict[str, str] = Field(
        default_factory=dict,
        description="Columns from the rest of the record: key, key_binary, timestamp, topic, partition, offset, header:NAME",
        examples=["{user: key, arrived: timestamp}"],
    )
    tombstones: Literal["error", "judge"] = Field(
        default="error",
        description="A record without a value is an error, or is judged with all its value columns null",
    )
    data_loss: Literal["fail", "continue"] = Field(
        default="fail", description="When offsets are gone that were not judged: stop with exit 4, or report and go on"
    )
    group: Annotated[str | None, BeforeValidator(_read_group)] = Field(
        default="",
        description="Consumer group the offsets are committed to, for lag tools; default: the job's name; or off",
    )
    deadline: Duration = Field(default=600_000_000, description="How long a broker that does not answer is waited for")
    options: Options = Field(
        default_factory=dict,
        description="Options of Kafka's clients, such as SASL and TLS",
        examples=["{kafka.security.protocol: SSL}"],
    )

    @field_validator("topics", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("record")
    @classmethod
    def _known_parts(cls, value: dict[str, str]) -> dict[str, str]:
        for name, part in value.items():
            if part not in RECORD_PARTS and not (part.startswith(HEADER) and len(part) > len(HEADER)):
                known = ", ".join(RECORD_PARTS)
                raise refusal(f"`{name}: {shown(part)}` is no part of a record", f"write {known} or header:NAME")
            if name.lower().startswith("_"):
                raise refusal(f"column `{name}` begins with `_`", "rename the column; those names are taken")
        return value

    @model_validator(mode="after")
    def _topics_or_pattern(self) -> KafkaSource:
        if bool(self.topics) == bool(self.topic_pattern):
            raise refusal(
                "names no topic" if not self.topics else "has both topics and topic_pattern", "write one of them"
            )
        names = [column.name.lower() for column in self.value.parsed_columns]
        for name in self.record:
            if name.lower() in names:
                raise refusal(f"record column `{name}` is a column of the value too", "rename it")
        return self

    @property
    def record_columns(self) -> tuple[tuple[Column, str], ...]:
        """The columns from outside the value, each with the part of the record it is."""
        return tuple(
            (parse_columns(f"`{name}` {RECORD_PARTS.get(part, 'string')}")[0], part)
            for name, part in self.record.items()
        )

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """All columns: the value's, then the record's."""
        return (*self.value.parsed_columns, *(column for column, _ in self.record_columns))

    @property
    def columns(self) -> str:
        """All columns as Spark DDL."""
        record = [f"`{column.name}` {column.type.text}" for column, _ in self.record_columns]
        return ", ".join([self.value.columns, *record])

    def column(self, name: str) -> Column | None:
        """The column of exactly this name."""
        return next((column for column in self.parsed_columns if column.name == name), None)


class KafkaSink(Section):
    """A port whose rows are written to a Kafka topic, with the key, value, headers and timestamp they were read with."""

    format: Literal["kafka"]
    topic: Topic = Field(description="Topic the port's rows go to; it must exist", examples=["unique"])
    bootstrap_servers: Servers | None = Field(default=None, description="Brokers; default: the source's")
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="exactly_once: transactions; at_least_once: Spark's sink, which may repeat a window and keeps no timestamp",
    )
    preserve_order: bool = Field(default=False, description="Keep the order of each source partition")
    options: Options = Field(default_factory=dict, description="Options of Kafka's clients; default: the source's")
