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


def rows_to_send(dedup: str, slot: Column, *, keep_first_seen: bool) -> list[Column]:
    """The columns of `SEND_COLUMNS`, from RECORD, the verdict struct (named `dedup`) and the writer's number."""
    return [
        F.col(f"{RECORD}.key").alias(KEY),
        F.col(f"{RECORD}.value").alias(VALUE),
        F.expr(_headers(dedup, keep_first_seen=keep_first_seen)).alias(HEADERS),
        F.col(f"{RECORD}.timestamp").alias(TIMESTAMP),
        slot.cast("int").alias(SLOT),
    ]


def _headers(dedup: str, *, keep_first_seen: bool) -> str:
    """As SQL: made of columns in Python, it took 800 calls of the JVM for each window."""
    told = [
        _header("verdict", f"{dedup}.verdict"),
        _header("reason", f"{dedup}.reason"),
        _header("window", f"string({dedup}.window)"),
        _header("origin", _origin(dedup)),
    ]
    if keep_first_seen:
        first = f"{dedup}.first_seen"
        told += [
            _header("first-seen", _origin(first)),
            _header("first-seen-window", f"string({first}.window)"),
        ]
    known = f"filter(array({', '.join(told)}), header -> header.value IS NOT NULL)"
    return f"concat(coalesce({RECORD}.headers, CAST(array() AS {_HEADERS_TYPE})), {known})"


def _header(name: str, text: str) -> str:
    return f"named_struct('key', 'dedup-{name}', 'value', binary({text}))"


def _origin(place: str) -> str:
    return f"concat({place}.source, '@', string({place}.position))"
