"""PURE. The columns of a record on its way through a window, by name and type.

    HI, LO, ORDER, ADMISSION, EXPIRY or CATEGORY     for judging
    FINGERPRINT                                 the same, if payloads are compared
    RAW                                         the text of a record that is, or may become, an error
    parsed(0), parsed(1), ...                   the source's columns, where ports are files
    SENT                                        the source's record, where ports are topics
    TOPIC, PARTITION                            the place of a DataFrame's row, until the task replaces its ORDER

Our readers make them, or the reading task of a DataFrame's rows (`sources.frame_places`); the task splits them into the
keys files (`tasks.exchange`) and the rows file: ORDER, RAW and the columns for the ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

HI, LO, ORDER, ADMISSION, EXPIRY, CATEGORY, RAW = "_hi", "_lo", "_order", "_admission", "_expiry", "_category", "_raw"
FINGERPRINT = "_fingerprint"
TOPIC, PARTITION = "_topic", "_partition"
KEY, VALUE, HEADERS, TIMESTAMP = "_record_key", "_record_value", "_record_headers", "_record_timestamp"
SENT: Final = pa.schema([(KEY, pa.binary()), (VALUE, pa.binary()), (HEADERS, pa.string()), (TIMESTAMP, pa.int64())])
"""Key, value, headers as JSON (null without any) and timestamp in ms, as `tasks.kafka_rows` takes them."""

_NOT_KEPT = frozenset((HI, LO, ADMISSION, EXPIRY, CATEGORY, FINGERPRINT))


def parsed(number: int) -> str:
    """The name of a source's column here, by its number: its own name may equal one of ours, or have any sign."""
    return f"_{number}"


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The columns of a job's records, whichever reader gives them; pickled into the tasks."""

    schema: pa.Schema

    @classmethod
    def of(
        cls,
        expiry: pa.DataType,
        columns: Sequence[pa.DataType] = (),
        *,
        are_sent: bool = False,
        has_fingerprint: bool = False,
    ) -> RecordLayout:
        """The layout of records with an expiry key of a type, a string for a category.

        `columns` are the types of the source's where ports are files; `are_sent` where ports are topics.
        """
        judged = [(HI, pa.int64()), (LO, pa.int64()), (ORDER, pa.int64()), (ADMISSION, pa.int8())]
        key = (CATEGORY if pa.types.is_string(expiry) else EXPIRY, expiry)
        of_source = [(parsed(number), kind) for number, kind in enumerate(columns)]
        payload = [(FINGERPRINT, pa.uint64())] if has_fingerprint else []
        return cls(pa.schema([*judged, key, *payload, (RAW, pa.string()), *of_source, *(SENT if are_sent else ())]))

    @property
    def has_category(self) -> bool:
        """Whether tuples have a category in place of an expiry key."""
        return CATEGORY in self.schema.names

    @property
    def has_fingerprint(self) -> bool:
        """Whether records have a fingerprint."""
        return FINGERPRINT in self.schema.names

    @property
    def has_columns(self) -> bool:
        """Whether the source's columns are in it."""
        return parsed(0) in self.schema.names

    @property
    def are_sent(self) -> bool:
        """Whether the source's record is in it."""
        return KEY in self.schema.names

    @property
    def kept(self) -> pa.Schema:
        """The columns of the rows files."""
        return pa.schema([field for field in self.schema if field.name not in _NOT_KEPT])

    def records(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Records of these columns.

        Raises:
            KeyError: one is missing.
        """
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
