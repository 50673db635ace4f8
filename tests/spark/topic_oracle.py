"""How Spark reads the records of topics: the oracle of differential tests. No product code reads by it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.config.kafka.sections import HEADER, KafkaSource
from deduper.core.verdict import Admission
from deduper.kafka.offsets import OffsetRange, by_topic
from deduper.tasks.layout import ADMISSION, ORDER, PARTITION, RAW, TOPIC
from tests.spark.spark_reader import MALFORMED, REC, with_records

RECORD = "_record"
"""The record as it was read: key, value, headers, timestamp."""


def kafka_range_frame(session: SparkSession, source: KafkaSource, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The records of these ranges, by Spark's own connector."""
    numbers: dict[str, list[int]] = {}
    for taken in ranges:
        numbers.setdefault(taken.place.topic, []).append(taken.place.partition)
    settings = {
        "kafka.isolation.level": "read_committed",
        **{name: value for name, value in source.options.items() if name.startswith("kafka.")},
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "includeHeaders": "true",
        "failOnDataLoss": "false",
        "assign": json.dumps(numbers),
        "startingOffsets": json.dumps(by_topic({taken.place: taken.start for taken in ranges})),
        "endingOffsets": json.dumps(by_topic({taken.place: taken.end for taken in ranges})),
    }
    return session.read.format("kafka").options(**settings).load()


def kafka_records(rows: DataFrame, source: KafkaSource) -> DataFrame:
    """Kafka's records as REC, RAW, ADMISSION, RECORD, TOPIC, PARTITION, and the offset as ORDER."""
    text = F.col("value").cast("string")
    valid, malformed = F.is_valid_utf8(text), F.lit(False)
    if source.value.format == "text":
        rows = rows.withColumn(REC, F.struct(F.try_validate_utf8(text).alias("value")))
    else:
        rows = with_records(rows, text, source.value, is_json=source.value.format == "json")
        malformed = F.col(MALFORMED)
    admission = _admission(source, F.col("value").isNull(), valid, malformed).cast("tinyint")
    raw = F.when(valid, text).otherwise(F.base64("value"))
    whole = F.struct("key", "value", "headers", F.unix_millis("timestamp").alias("timestamp"))
    return rows.select(
        _with_record_columns(F.col(REC), source).alias(REC),
        raw.alias(RAW),
        admission.alias(ADMISSION),
        whole.alias(RECORD),
        F.col("offset").alias(ORDER),
        F.col("topic").alias(TOPIC),
        F.col("partition").alias(PARTITION),
    )


def _admission(source: KafkaSource, is_empty: Column, valid: Column, malformed: Column) -> Column:
    admission = (
        F.when(is_empty & F.lit(source.tombstones == "error"), int(Admission.TOMBSTONE))
        .when(~is_empty & ~valid, int(Admission.INVALID_UTF8))
        .when(~is_empty & malformed, int(Admission.MALFORMED))
    )
    for column, part in source.record_columns:
        if column.type.name == "string" and part != "topic":
            admission = admission.when(
                ~F.coalesce(F.is_valid_utf8(_part(part)), F.lit(True)), int(Admission.INVALID_UTF8)
            )
    return admission.otherwise(int(Admission.ADMITTED))


def _with_record_columns(value: Column, source: KafkaSource) -> Column:
    """The value's columns and the record's, as one struct that is never null.

    Text that is no UTF-8 is null there: its record is an error, and a file with such text could not be read.
    """
    of_value = [value.getField(column.name).alias(column.name) for column in source.value.parsed_columns]
    of_record = []
    for column, part in source.record_columns:
        text = F.try_validate_utf8(_part(part)) if column.type.name == "string" else _part(part)
        of_record.append(text.alias(column.name))
    return F.struct(*of_value, *of_record)


def _part(part: str) -> Column:
    """A part of a record, by the name it has in the configuration. Of headers of one name the last counts."""
    if part == "key":
        return F.col("key").cast("string")
    if part == "key_binary":
        return F.col("key")
    if part.startswith(HEADER):
        named = F.filter("headers", lambda header: header.getField("key") == F.lit(part.removeprefix(HEADER)))
        return F.try_element_at(named, F.lit(-1)).getField("value").cast("string")
    return F.col(part)
