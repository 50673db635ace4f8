"""PURE. The columns of a record on its way through a window, by name.

    HI, LO, ORDER, ADMISSION, EXPIRY or CATEGORY     for judging
    RAW                                         the text of a record that is, or may become, an error
    parsed(0), parsed(1), ...                   the source's columns, where ports are files
    SENT                                        the source's record, where ports are topics
    TOPIC, PARTITION                            the place of a Kafka record, until the reading task replaces its ORDER

The plan of the first job, or the reader of plain Parquet, makes them; the reading task splits them into the keys files
(`tasks.exchange`) and the rows file: ORDER, RAW and the columns for the ports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HI, LO, ORDER, ADMISSION, EXPIRY, CATEGORY, RAW = "_hi", "_lo", "_order", "_admission", "_expiry", "_category", "_raw"
TOPIC, PARTITION = "_topic", "_partition"
SENT: Final = ("_record_key", "_record_value", "_record_headers", "_record_timestamp")
"""Key, value, headers as JSON (null without any) and timestamp in ms, as `tasks.kafka_rows` takes them."""

_NOT_KEPT = frozenset((HI, LO, ADMISSION, EXPIRY, CATEGORY, TOPIC, PARTITION))


def parsed(number: int) -> str:
    """A column of the source, by its number: its own name may be one of ours, or hold any sign."""
    return f"_{number}"


def kept(names: Iterable[str]) -> list[str]:
    """Those of the columns that the ports get, in their order."""
    return [name for name in names if name not in _NOT_KEPT]
