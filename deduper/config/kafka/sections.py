"""Kafka as a source and as a port: the sections, as frozen values; see `config`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from deduper.columns import Column, ColumnType, parse_columns, quoted
from deduper.config.kafka.avro_schema import columns_of
from deduper.config.kafka.options import connection_options
from deduper.config.kafka.values import (
    DEDUP_HEADERS,
    AvroSchema,
    DedupHeaders,
    Group,
    Pattern,
    SchemaIds,
    Servers,
    SinkOptions,
    SourceOptions,
    Starting,
    Topic,
    Topics,
)
from deduper.config.values import (
    Count,
    Delimiter,
    Duration,
    Schema,
    Section,
    refusal,
    refuse_taken_name,
    require_fields,
    shown,
)

RECORD_PARTS = {
    "key": "string",
    "key_binary": "binary",
    "timestamp": "timestamp",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}
"""The parts of a Kafka record, beside its value, that can be columns, with their types; a header is a string."""

HEADER = "header:"

TEXT_COLUMNS = "value string"
"""The columns of a value that is plain text."""

_PARTS = f"{', '.join(RECORD_PARTS)} or {HEADER}NAME"


class KafkaValue(Section):
    """The format and columns of a record's value."""

    format: Literal["json", "csv", "common_log", "combined_log", "logfmt", "text", "avro"] = Field(
        description="Format of a value: one JSON object, one line of CSV, of a web server's log or of logfmt, plain "
        "text, or one Avro datum",
        examples=["json"],
    )
    ddl: Schema | None = Field(
        default=None,
        alias="schema",
        description=f"Columns as Spark DDL (json, csv and logs); text has one, `{TEXT_COLUMNS}`",
        examples=['"user string, id long, ts timestamp"'],
    )
    delimiter: Delimiter = Field(default=",", description="One character between the fields (csv only)")
    avro_schema: AvroSchema | None = Field(
        default=None,
        description="Schema that the values were written with, as JSON or the path of an .avsc file (avro only)",
        examples=["clicks.avsc"],
    )
    schema_ids: SchemaIds | None = Field(
        default=None,
        description="Values begin with the five bytes of Confluent's serializer, and have the schema of one of these "
        "numbers; `any`: the number is not looked at (avro only)",
        examples=["[17, 18]"],
    )

    @model_validator(mode="after")
    def _agrees(self) -> KafkaValue:
        if self.format in ("text", "avro") and self.ddl is not None:
            columns = f"has one column, `{TEXT_COLUMNS}`" if self.format == "text" else "has those of avro_schema"
            what = f"does not apply to {self.format}, which {columns}"
            raise refusal(what, "remove it, or write `format: json`", at=("schema",), at_key=True)
        if self.format not in ("text", "avro") and self.ddl is None:
            write = 'write `schema: "user string, id long, ts timestamp"`'
            raise refusal("is missing", f"{write}, or `format: text`", at=("schema",))
        if self.format == "avro" and self.avro_schema is None:
            raise refusal("is missing", "write the path of an .avsc file, or the schema as JSON", at=("avro_schema",))
        for name, kind in (("delimiter", "csv"), ("avro_schema", "avro"), ("schema_ids", "avro")):
            if self.format != kind and getattr(self, name) != type(self).model_fields[name].default:
                what = f"does not apply to {self.format}"
                raise refusal(what, f"remove it, or write `format: {kind}`", at=(name,), at_key=True)
        require_fields(self.format, self.ddl)
        nested = [column for column in self.parsed_columns if not column.type.is_scalar]
        if self.format == "csv" and nested:
            raise refusal(
                f"a CSV field cannot hold column `{nested[0].name}` of type {nested[0].type.text}",
                "declare it as string, or write `format: json`",
                at=("schema",),
            )
        return self

    @property
    def framed_ids(self) -> tuple[int, ...] | None:
        """The numbers that a value in Avro may have before it, none for any; None: it has none."""
        return () if self.schema_ids == "any" else self.schema_ids

    @property
    def columns(self) -> str:
        """The columns of a value as Spark DDL."""
        if self.avro_schema is not None:
            return columns_of(self.avro_schema)
        return self.ddl or TEXT_COLUMNS

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """The columns of a value, in order."""
        return parse_columns(self.columns)


class KafkaSource(Section):
    """Topics of a Kafka cluster."""

    format: Literal["kafka"]
    bootstrap_servers: Servers = Field(
        description="Brokers to connect to first, separated by commas", examples=['"localhost:9092"']
    )
    topics: Topics = Field(default=(), description="Topics to read", examples=["[clicks]"])
    topic_pattern: Pattern | None = Field(
        default=None,
        description="Instead of `topics`: a regular expression for the whole name; topics created later are read too",
        examples=["clicks-.*"],
    )
    starting_offsets: Starting = Field(
        default="earliest",
        description='First offsets of a new store (`{time: "2025-03-01T00:00:00Z"}`, `{clicks: {"0": 12}}`); '
        "no effect on an existing one",
        examples=["earliest"],
    )
    max_offsets_per_batch: Count = Field(default=500_000, ge=1, description="Maximum number of offsets in a window")
    order: Literal["arrival", "time"] = Field(
        default="arrival",
        description="time: a job that catches up reads partitions together by the time stamps of their records",
    )
    slack: Duration | None = Field(
        default=None,
        description="With `order: time`: how far a partition may be ahead of the others, from a second to the period",
        examples=["2h"],
    )
    value: KafkaValue = Field(
        description="Format and columns of the values", examples=['{format: json, schema: "..."}']
    )
    record: dict[str, str] = Field(
        default_factory=dict,
        description=f"Columns from the rest of the record, by name: {_PARTS}",
        examples=["{user: key, arrived: timestamp}"],
    )
    tombstones: Literal["error", "judge"] = Field(
        default="error",
        description="A record without a value is an error, or is judged with all its value columns null",
    )
    data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="If offsets are lost before they are judged: stop with exit 4, or report them and continue",
    )
    group: Group = Field(
        default="",  # filled in with the job's name by `Config`
        description="Consumer group for committed offsets, for lag tools; default: the job's name; or off",
    )
    deadline: Duration = Field(default=600_000_000, description="Time to wait for brokers that do not answer")
    options: SourceOptions = Field(
        default_factory=dict,
        description="Options of Kafka's clients, such as SASL and TLS, with the prefix `kafka.`",
        examples=["{kafka.security.protocol: SSL}"],
    )

    @field_validator("record")
    @classmethod
    def _known_parts(cls, value: dict[str, str]) -> dict[str, str]:
        seen: list[str] = []
        for name, part in value.items():
            if not name.strip():
                raise refusal("has a column without a name", "write `record: {user: key}`")
            if part not in RECORD_PARTS and not (part.startswith(HEADER) and len(part) > len(HEADER)):
                raise refusal(f"`{shown(part)}` is not a part of a record", f"write {_PARTS}", at=(name,))
            if name.lower() in seen:
                what = f"column `{name}` appears twice, because Spark ignores case"
                raise refusal(what, "rename one of the two", at=(name,), at_key=True)
            refuse_taken_name(name, at=(name,))
            seen.append(name.lower())
        return value

    @model_validator(mode="after")
    def _agrees(self) -> KafkaSource:
        if self.topics and self.topic_pattern is not None:
            raise refusal(
                "cannot be combined with `topics`", "remove one of the two", at=("topic_pattern",), at_key=True
            )
        if not self.topics and self.topic_pattern is None:
            what = "has no topic" if "topics" in self.model_fields_set else "is missing"
            raise refusal(what, "write `topics: [clicks]`, or a `topic_pattern`", at=("topics",))
        if self.order == "time" and self.slack is None:
            raise refusal("is missing", "write how far partitions may be apart, as `slack: 2h`", at=("slack",))
        if self.order == "arrival" and self.slack is not None:
            raise refusal("has no effect", "add `order: time`, or remove it", at=("slack",), at_key=True)
        of_value = [column.name.lower() for column in self.value.parsed_columns]
        for name in self.record:
            if name.lower() in of_value:
                what = f"column `{name}` is one of the value's columns too"
                raise refusal(what, "rename one of the two", at=("record", name), at_key=True)
        for topic, partitions in self._named_offsets.items():
            if not self.reads(topic):
                what = f"`{topic}` is not a topic of the source" if partitions else "has no partition"
                wanted = (
                    f"topics are {', '.join(self.topics)}" if self.topics else f"it must match {self.topic_pattern}"
                )
                raise refusal(what, wanted, at=("starting_offsets", topic), at_key=True)
        return self

    @property
    def may_begin_at_ends(self) -> bool:
        """Whether a new store may begin at the ends of partitions, which have moved on by the next start."""
        start = self.starting_offsets
        return start == "latest" or (not isinstance(start, str) and isinstance(start.get("time"), str))

    @property
    def _named_offsets(self) -> dict[str, dict[str, int]]:
        start = self.starting_offsets
        return {} if isinstance(start, str) or isinstance(start.get("time"), str) else start

    def of_job(self, name: str) -> KafkaSource:
        """The source with the job's name as its group, unless it names its own or none."""
        return self.model_copy(update={"group": name}) if self.group == "" else self

    def reads(self, topic: str) -> bool:
        """Whether a topic of this name is one of the source's."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.topics

    @property
    def place(self) -> str:
        """The source of the records, for messages."""
        what = f"topics {self.topic_pattern}" if self.topic_pattern is not None else ", ".join(self.topics)
        return f"{what} at {self.bootstrap_servers}"

    @property
    def reading(self) -> dict[str, Any]:
        """The settings that, beside offsets, decide the tuples."""
        isolation = self.options.get("kafka.isolation.level", "read_committed")
        avro = [self.value.avro_schema, self.value.schema_ids] if self.value.format == "avro" else []
        return {
            "schema": self.columns,
            "avro": avro,
            "format": ["kafka", self.value.format, self.value.delimiter, self.tombstones, isolation],
            "record": [[column.name, part] for column, part in self.record_columns],
        }

    @property
    def record_columns(self) -> tuple[tuple[Column, str], ...]:
        """The columns from outside the value, each with the part of the record it is."""
        columns = []
        for name, part in self.record.items():
            kind = RECORD_PARTS.get(part, "string")
            columns.append((Column(name, ColumnType(kind, kind)), part))
        return tuple(columns)

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """All columns: the value's, then the record's."""
        return (*self.value.parsed_columns, *(column for column, _ in self.record_columns))

    @property
    def columns(self) -> str:
        """All columns as Spark DDL."""
        record = [f"{quoted(column.name)} {column.type.text}" for column, _ in self.record_columns]
        return ", ".join([self.value.columns, *record])

    def column(self, name: str) -> Column | None:
        """The column of exactly this name."""
        return next((column for column in self.parsed_columns if column.name == name), None)


class KafkaSink(Section):
    """A port whose rows are sent to a Kafka topic, with their original key, value, headers and timestamp."""

    format: Literal["kafka"]
    topic: Topic = Field(description="Topic the port's rows go to; it must exist", examples=["unique"])
    bootstrap_servers: Servers = Field(
        default="",  # filled in with the source's by `Config`
        description="Brokers to connect to first; default: the source's",
        examples=['"localhost:9092"'],
    )
    preserve_order: bool = Field(default=False, description="Keep the order of each source partition")
    dedup_headers: DedupHeaders = Field(
        default=DEDUP_HEADERS,
        description="Headers `dedup-…` that the job adds to each record; none with `[]`",
        examples=["[verdict, origin]"],
    )
    options: SinkOptions = Field(
        default_factory=dict,
        description="Options of Kafka's clients; without brokers of its own, added to the source's for connecting",
        examples=["{kafka.compression.type: zstd}"],
    )

    def beside(self, source: KafkaSource) -> KafkaSink:
        """The port with the source's brokers, and its options for connecting to them, unless it names its own."""
        if self.bootstrap_servers:
            return self
        options = {**connection_options(source.options), **self.options}
        return self.model_copy(update={"bootstrap_servers": source.bootstrap_servers, "options": options})
