"""Whether a job's topics can be read without Spark, and how."""

from __future__ import annotations

import logging

from deduper.config.kafka import KafkaSource
from deduper.config.kafka_options import KafkaOptionsError
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.kafka.client import consumer_options
from deduper.sources.kafka.topic_reading import TopicReading
from deduper.sources.plain import OnlySpark, declared, zone_of
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
    value = None
    if source.value.format != "text":
        of_value = columns.columns[: len(source.value.parsed_columns)]
        delimiter = source.value.delimiter if source.value.format == "csv" else None
        value = TextFormat(of_value, zone_of(config), delimiter)
    return TopicReading(
        declared=columns,
        client=client,
        value=value,
        record=tuple(part for _, part in source.record_columns),
        tombstone=Admission.TOMBSTONE if source.tombstones == "error" else Admission.ADMITTED,
    )
