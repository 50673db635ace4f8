"""Whether a job's topics can be read without Spark, and how."""

from __future__ import annotations

import logging

from deduper.arrow_columns import DeclaredColumn
from deduper.config.kafka.options import KafkaOptionsError
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.kafka.client import consumer_options
from deduper.sources.kafka.topic_reading import RecordFormat, TopicReading
from deduper.sources.plain import OnlySpark, declared
from deduper.text.format import TextFormat

logger = logging.getLogger(__name__)


def topic_reading(config: Config, source: KafkaSource, salt: bytes) -> TopicReading | None:
    """How the records of a job's topics are read; None when by Spark, and then the log says why."""
    try:
        if source.value.format == "avro":
            raise OnlySpark(f"values are in {source.value.format}")
        columns = declared(config, salt)
        client = consumer_options(source)
    except (OnlySpark, KafkaOptionsError) as exc:
        logger.info("all records are read by Spark: %s", exc)
        return None
    return TopicReading(
        declared=columns,
        client=client,
        format=record_format(source, columns.columns, config.time_zone),
        tombstone=Admission.TOMBSTONE if source.tombstones == "error" else Admission.ADMITTED,
    )


def record_format(source: KafkaSource, columns: tuple[DeclaredColumn, ...], zone: str) -> RecordFormat:
    """The columns of the records of topics; `zone` is that of times without one."""
    value = None
    if source.value.format != "text":
        of_value = columns[: len(source.value.parsed_columns)]
        value = TextFormat(of_value, zone, source.value.delimiter if source.value.format == "csv" else None)
    return RecordFormat(columns, value, tuple(part for _, part in source.record_columns))
