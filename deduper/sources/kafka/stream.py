"""Ranges of offsets read by Spark, where this package cannot read them itself: see `sources.kafka.plain_topics`.

The reading tasks give every record its place (`sources.kafka.places`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.config.kafka.sections import HEADER, KafkaSource
from deduper.core.verdict import Admission
from deduper.kafka.offsets import OffsetRange, write_offsets
from deduper.sources.avro import MARK, avro_record, has_valid_text, is_whole
from deduper.sources.parsing import REC, VALID, Steps, bare_record, text_record
from deduper.tasks.layout import ADMISSION, HEADERS, KEY, ORDER, PARTITION, RAW, TIMESTAMP, TOPIC, VALUE

RECORD = "_record"
"""The record as it was read, for the ports that write it again: key, value, headers, timestamp."""

# Below it the bridge to the JVM logs every call, at DEBUG with its arguments, and passwords are among them.
logging.getLogger("py4j.clientserver").setLevel(logging.WARNING)


class SparkReading:
    """How Spark reads the records of a job's windows; the plan of their parsing is made once for a session."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._parsing: tuple[SparkSession, Steps] | None = None

    def tuples(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records of these ranges; see `kafka_parsing`."""
        if self._parsing is None or self._parsing[0] is not session:
            self._parsing = session, kafka_parsing(session, self._source)
        return self._parsing[1].of(kafka_range_frame(session, self._source, ranges))


def kafka_range_frame(session: SparkSession, source: KafkaSource, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The records of these ranges, as a batch of the stream has them."""
    numbers: dict[str, list[int]] = {}
    for taken in ranges:
        numbers.setdefault(taken.place.topic, []).append(taken.place.partition)
    settings = {
        **_connection(source),
        "assign": json.dumps(numbers),
        "startingOffsets": write_offsets({taken.place: taken.start for taken in ranges}),
        "endingOffsets": write_offsets({taken.place: taken.end for taken in ranges}),
    }
    return session.read.format("kafka").options(**settings).load()


_FETCHING = {"kafka.max.poll.records": "50000", "kafka.max.partition.fetch.bytes": str(4 << 20)}
"""After each poll Spark asks the brokers twice what a partition holds, and seeks, which throws away what the consumer
has fetched ahead: with Kafka's own 500 records a poll, every megabyte is fetched a dozen times."""


def _connection(source: KafkaSource) -> dict[str, str]:
    return {
        "kafka.isolation.level": "read_committed",
        **_FETCHING,
        **{name: value for name, value in source.options.items() if name.startswith("kafka.")},
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "includeHeaders": "true",
        # We find losses, with their numbers, before and after Spark reads: see `sources.kafka.batch`. Spark would stop
        # and report only that there are some.
        "failOnDataLoss": "false",
    }


def sent_columns(key: Column, value: Column, headers: Column, timestamp: Column) -> dict[str, Column]:
    """The columns `SENT` of a record, by name; `timestamp` is in ms.

    Headers are a text, null when there are none: for every row, Spark asks every nested Arrow column how large it has
    become, and an array of structs takes longer than all else of a record, be it empty.
    """
    return {
        KEY: key,
        VALUE: value,
        HEADERS: F.when(F.size(headers) > 0, F.to_json(headers)),
        TIMESTAMP: timestamp,
    }


def kafka_parsing(session: SparkSession, source: KafkaSource) -> Steps:
    """Kafka's records as REC, RAW, ADMISSION, RECORD, TOPIC, PARTITION, and the offset as ORDER, for `OffsetPlaces`."""
    text = F.col("value").cast("string")
    valid = F.is_valid_utf8(text)
    is_empty = F.col("value").isNull()
    parsed: tuple[dict[str, Column], ...]
    if source.value.format == "avro":
        parsed = ({REC: avro_record(F.col("value"), source.value)},)
        malformed = ~is_whole(F.col(REC), F.col("value"), source.value)
        valid = malformed | has_valid_text(F.col(REC), source.value.parsed_columns)
        bare = F.when(malformed | ~valid, F.lit(None)).otherwise(F.col(REC)).dropFields(MARK)
    elif source.value.format == "text":
        parsed = ({REC: F.struct(F.try_validate_utf8(text).alias("value"))},)
        malformed = F.lit(False)
        bare = F.col(REC)
    else:
        is_json = source.value.format == "json"
        given, record, malformed = text_record(text, is_json, source.value)
        parsed = ({**given, VALID: valid}, {REC: record})
        valid = F.col(VALID)
        bare = bare_record(is_json)
    admission = _admission(source, is_empty, valid, malformed).cast("tinyint")
    is_text = F.lit(False) if source.value.format == "avro" else valid
    raw = F.when(is_text, text).otherwise(F.base64("value"))
    whole = F.struct("key", "value", "headers", F.unix_millis("timestamp").alias("timestamp"))
    record = _with_record_columns(bare, source)
    place = (F.col("offset").alias(ORDER), F.col("topic").alias(TOPIC), F.col("partition").alias(PARTITION))
    left = (record.alias(REC), raw.alias(RAW), admission.alias(ADMISSION), whole.alias(RECORD), *place)
    return Steps(session, parsed, left)


def _admission(source: KafkaSource, is_empty: Column, valid: Column, malformed: Column) -> Column:
    for_empty = Admission.TOMBSTONE if source.tombstones == "error" else Admission.ADMITTED
    admission = (
        F.when(is_empty, int(for_empty))
        .when(~valid, int(Admission.INVALID_UTF8))
        .when(malformed, int(Admission.MALFORMED))
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
