"""The rows of Kafka ports as they are staged: what `staged_records` reads and sends.

Key, value, headers and timestamp are the source record's; headers of our own come after them, so that of several of
one name (records that have gone through two jobs) the last counts:

    dedup-verdict               unique, duplicate, expired, error
    dedup-reason                not for unique records
    dedup-window                the window's number
    dedup-origin                topic-partition and offset, as in clicks-3@1042
    dedup-first-seen            the first copy's origin, for duplicates, with `store.first_seen`
    dedup-first-seen-window     its window
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from deduper.kafka_source import RECORD

KEY, VALUE, HEADERS, TIMESTAMP, SLOT = "key", "value", "headers", "timestamp_ms", "slot"
SEND_COLUMNS = (KEY, VALUE, HEADERS, TIMESTAMP, SLOT)
_HEADERS_TYPE = "array<struct<key: string, value: binary>>"


def rows_to_send(dedup: Column, slot: Column, *, keep_first_seen: bool) -> list[Column]:
    """The columns of `SEND_COLUMNS`, from RECORD, the verdict struct and the writer's number."""
    record = F.col(RECORD)
    return [
        record.getField("key").alias(KEY),
        record.getField("value").alias(VALUE),
        _headers(record.getField("headers"), dedup, keep_first_seen=keep_first_seen).alias(HEADERS),
        record.getField("timestamp").alias(TIMESTAMP),
        slot.cast("int").alias(SLOT),
    ]


def _headers(own: Column, dedup: Column, *, keep_first_seen: bool) -> Column:
    window = dedup.getField("window").cast("string")
    told = [
        _header("verdict", dedup.getField("verdict")),
        _header("reason", dedup.getField("reason")),
        _header("window", window),
        _header("origin", _origin(dedup)),
    ]
    if keep_first_seen:
        first = dedup.getField("first_seen")
        told += [
            _header("first-seen", _origin(first)),
            _header("first-seen-window", first.getField("window").cast("string")),
        ]
    none = F.array().cast(_HEADERS_TYPE)
    known = F.filter(F.array(*told), lambda header: header.getField("value").isNotNull())
    return F.concat(F.coalesce(own, none), known)


def _header(name: str, text: Column) -> Column:
    return F.struct(F.lit(f"dedup-{name}").alias("key"), text.cast("binary").alias("value"))


def _origin(place: Column) -> Column:
    return F.concat(place.getField("source"), F.lit("@"), place.getField("position").cast("string"))
