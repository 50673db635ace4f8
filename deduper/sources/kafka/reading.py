"""How the records of a job's topics are read."""

from __future__ import annotations

from deduper.arrow_columns import DeclaredColumn
from deduper.avro.program import program_of
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.kafka.client import consumer_options
from deduper.sources.declared_columns import declared
from deduper.sources.kafka.topic_reading import AvroFormat, RecordFormat, TopicReading
from deduper.text.format import TextFormat


def topic_reading(config: Config, source: KafkaSource, salt: bytes) -> TopicReading:
    """How the records of a job's topics are read."""
    columns = declared(config, salt)
    return TopicReading(
        declared=columns,
        client=consumer_options(source),
        format=record_format(source, columns.columns, config.time_zone),
        tombstone=Admission.TOMBSTONE if source.tombstones == "error" else Admission.ADMITTED,
    )


def record_format(source: KafkaSource, columns: tuple[DeclaredColumn, ...], zone: str) -> RecordFormat:
    """The columns of the records of topics; `zone` is that of times without one."""
    value: TextFormat | AvroFormat | None = None
    of_value = columns[: len(source.value.parsed_columns)]
    if source.value.avro_schema is not None:
        program = program_of(source.value.avro_schema, [column.arrow for column in of_value])
        value = AvroFormat(program, source.value.framed_ids)
    elif source.value.format != "text":
        value = TextFormat.of(source.value.format, of_value, zone, source.value.delimiter)
    return RecordFormat(columns, value, tuple(part for _, part in source.record_columns))
