"""The dates and times of a Parquet file as its writer meant them: by its notes, and INT96 as an instant.

Spark before 3.0 (INT96: before 3.1), and later Spark in its mode LEGACY, writes days of the *old calendar*: Julian
before 1582-10-15. Notes in the footer say so, and Spark moves each value to the day of the same name; so do we.

    org.apache.spark.version         absent: today's calendar, as jobs read such files
    org.apache.spark.legacyDateTime  DATE and INT64 times with a zone are of the old calendar
    org.apache.spark.legacyINT96     INT96 is
    org.apache.spark.timeZone        the zone of times in both; absent: UTC, as for jobs

Days need no zone. In other zones than UTC, Spark moves times before 1900 by the zone's old offsets as well; these are
refused. INT96 has no zone in the file and is an instant for every engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from deduper.table.errors import TableUsageError
from deduper.tasks.readers.parquet import is_int96_exact

_VERSION = b"org.apache.spark.version"
_LEGACY_DATES, _LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_ZONE = b"org.apache.spark.timeZone"
_FIRST_DATES, _FIRST_INT96 = (3, 0), (3, 1)
"""Spark's first versions that write by today's calendar."""
_UTC = frozenset(("UTC", "UCT", "Universal", "Zulu", "Z", "GMT", "GMT0", "Greenwich", "+00:00"))
"""With or without `Etc/` before it."""
_FIRST_GREGORIAN = -141_427
"""1582-10-15, the first day that both calendars call alike."""
_ZONES_AGREE_US = -2_208_988_800_000_000
"""1900-01-01: from here on no zone moves a time."""
_DAY_US = 86_400_000_000
_MISREAD_BY_US = (1 << 64) // 1000
"""Nanoseconds of the day below zero, which some write for times before 1970, are read by Arrow as so much more."""
_MOST_NANOSECONDS_US = (1 << 63) // 1000

_Map = Callable[[pa.Array], pa.Array]
_UTC_TIME = pa.timestamp("us", "UTC")


class StoredTimes:
    """The columns of an opened file as they are meant. `schema`: of all of them; `where` is named in errors."""

    def __init__(self, parquet: pq.ParquetFile, where: Path) -> None:
        """The file is opened with `coerce_int96_timestamp_unit="us"`."""
        notes = parquet.metadata.metadata or {}
        self._where = where
        self._zone = notes.get(_ZONE, b"UTC").decode(errors="replace")
        self._are_dates_old = has_old_dates(parquet.metadata)
        self._is_int96_old = _is_old(notes, _FIRST_INT96, _LEGACY_INT96)
        self._is_int96_exact = is_int96_exact(parquet.metadata) or _is_sparks(parquet.metadata)
        leaves = map(parquet.schema.column, range(len(parquet.schema)))
        self._maps: dict[str, _Map] = {}
        fields = []
        for field in parquet.schema_arrow:
            kind, mapped = self._form(field.name, field.type, leaves)
            fields.append(field.with_type(kind))
            if mapped is not None:
                self._maps[field.name] = mapped
        self.schema = pa.schema(fields)

    def records(self, read: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that were read from the file, with their dates and times as they are meant.

        Raises:
            TableUsageError: a time cannot be told; nothing was written.
        """
        if not self._maps:
            return read
        columns = [
            self._maps[name](column) if name in self._maps else column
            for name, column in zip(read.schema.names, read.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(map(self.schema.field, read.schema.names)))

    def _form(
        self, column: str, kind: pa.DataType, leaves: Iterator[pq.ColumnSchema]
    ) -> tuple[pa.DataType, _Map | None]:
        """(type, how values become those that are meant; None: they are); takes as many leaves as the type has."""
        if pa.types.is_struct(kind):
            inner = [(field, *self._form(column, field.type, leaves)) for field in kind]
            made = pa.struct([field.with_type(meant) for field, meant, _ in inner])
            return made, _of_struct(made, [one for *_, one in inner])
        if pa.types.is_map(kind):
            key, of_keys = self._form(column, kind.key_type, leaves)
            item, of_items = self._form(column, kind.item_type, leaves)
            made = pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
            return made, _of_map(made, of_keys, of_items)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            element, of_elements = self._form(column, kind.value_type, leaves)
            make = pa.list_ if pa.types.is_list(kind) else pa.large_list
            made = make(kind.value_field.with_type(element))
            return made, _of_list(made, of_elements)
        if isinstance(kind, pa.BaseExtensionType) or pa.types.is_fixed_size_list(kind):
            self._form(column, kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type, leaves)
            return kind, None  # types that tables do not have
        if next(leaves).physical_type == "INT96":
            return _UTC_TIME, lambda values: self._int96(values, column)
        if self._are_dates_old and kind == pa.date32():
            return kind, _renamed_days
        if self._are_dates_old and pa.types.is_timestamp(kind) and kind.tz is not None:
            return _UTC_TIME, lambda values: self._old_times(values.cast(_UTC_TIME), column)
        return kind, None

    def _int96(self, values: pa.Array, column: str) -> pa.Array:
        values = values.cast(pa.timestamp("us", values.type.tz)).cast(_UTC_TIME)
        if not self._is_int96_exact:
            least = _MOST_NANOSECONDS_US
            us = values.view(pa.int64())
            is_unclear = pc.and_(pc.greater(us, least), pc.less_equal(us, _MISREAD_BY_US))
            if pc.any(is_unclear).as_py():
                raise TableUsageError(
                    f"{self._where}: `{column}` is INT96 with a time before 1970 or after 2262, of which its writer "
                    "leaves open which; write the file with times as INT64 (timestamps of microseconds)"
                )
        return self._old_times(values, column) if self._is_int96_old else values

    def _old_times(self, values: pa.Array, column: str) -> pa.Array:
        us = _numbers(values.view(pa.int64()), _ZONES_AGREE_US)
        if not len(us) or us.min() >= _ZONES_AGREE_US:
            return values
        if self._zone.removeprefix("Etc/") not in _UTC:
            raise TableUsageError(
                f"{self._where}: `{column}` has a time before 1900 in Spark's old calendar, of the zone {self._zone}, "
                "whose old offsets are not known here; write the file again by Spark, with "
                "`spark.sql.parquet.datetimeRebaseModeInWrite` and `int96RebaseModeInWrite` set to CORRECTED"
            )
        days, rest = np.divmod(us, _DAY_US)
        return _with_nulls(_same_names(days) * _DAY_US + rest, values, pa.int64(), _UTC_TIME)


def stored_schema(file: Path) -> pa.Schema:
    """The columns of a file, by its footer; an INT96 is an instant.

    Raises:
        pa.ArrowException, OSError: it cannot be read.
    """
    with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
        return StoredTimes(opened, file).schema


def has_old_dates(footer: pq.FileMetaData) -> bool:
    """Whether dates of a file are of the old calendar, in the bounds of its row groups too."""
    return _is_old(footer.metadata or {}, _FIRST_DATES, _LEGACY_DATES)


def rewritten_notes(footer: pq.FileMetaData, columns: Sequence[str]) -> dict[bytes, bytes]:
    """The notes of a file that is written again, with these columns and its times as they are meant.

    The version stays, at least that of today's calendar: of a file without one Spark 3 refuses days before 1582. So do
    the types that Parquet has no name for (intervals, CHAR), while the columns are the same. Those of the calendar go.
    """
    found = footer.metadata or {}
    version = found.get(_VERSION)
    if version is None:
        return {}
    notes = {_VERSION: b"3.1.0" if _is_before(version, _FIRST_INT96) else version}
    try:
        named = [field["name"] for field in json.loads(found[_SPARK_SCHEMA])["fields"]]
    except (KeyError, TypeError, ValueError):
        return notes
    return {**notes, _SPARK_SCHEMA: found[_SPARK_SCHEMA]} if sorted(named) == sorted(columns) else notes


def _is_old(notes: dict[bytes, bytes], first: tuple[int, int], legacy: bytes) -> bool:
    """By Spark's own rule: without a version the other notes do not count."""
    version = notes.get(_VERSION)
    if version is None:
        return False
    return legacy in notes or _is_before(version, first)


def _is_before(version: bytes, first: tuple[int, int]) -> bool:
    found = re.match(rb"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < first


def _is_sparks(footer: pq.FileMetaData) -> bool:
    """Whether Spark has written a file, of any version: its nanoseconds of the day are never below zero."""
    return _VERSION in (footer.metadata or {}) and str(footer.created_by).startswith("parquet-mr")


def _renamed_days(values: pa.Array) -> pa.Array:
    days = _numbers(values.view(pa.int32()), _FIRST_GREGORIAN)
    if not len(days) or days.min() >= _FIRST_GREGORIAN:
        return values
    return _with_nulls(_same_names(days), values, pa.int32(), pa.date32())


def _numbers(values: pa.Array, null: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = values.fill_null(null).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _with_nulls(numbers: NDArray[np.int64], like: pa.Array, width: pa.DataType, kind: pa.DataType) -> pa.Array:
    nulls = like.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers, pa.int64(), mask=nulls).cast(width).view(kind)


def _same_names(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """The days of today's calendar that are called as days of the old one; a 29 February that it lacks is 1 March.

    Source: Spark's RebaseDateTime.rebaseJulianToGregorianDays.
    """
    is_julian = days < _FIRST_GREGORIAN
    # Years begin in March, so that the day of a leap year is their last one. Day 0 is 0000-03-01 of the old calendar.
    of_era = days[is_julian] + 719_470
    year = (4 * of_era + 3) // 1461
    of_year = of_era - 1461 * year // 4
    # Both calendars have the same lengths of months but for the last one's, so the day of the year stays.
    renamed = days.copy()
    renamed[is_julian] = 365 * year + year // 4 - year // 100 + year // 400 + of_year - 719_468
    return renamed


def _of_struct(made: pa.StructType, inner: list[_Map | None]) -> _Map | None:
    if not any(inner):
        return None

    def mapped(values: pa.Array) -> pa.Array:
        children = [_mapped(values.field(at), one) for at, one in enumerate(inner)]
        return pa.StructArray.from_arrays(children, fields=list(made), mask=values.is_null())

    return mapped


def _of_list(made: pa.DataType, inner: _Map | None) -> _Map | None:
    if inner is None:
        return None
    return lambda values: _with_children(values, made, _mapped(values.values, inner))


def _of_map(made: pa.MapType, keys: _Map | None, items: _Map | None) -> _Map | None:
    if keys is None and items is None:
        return None

    def mapped(values: pa.Array) -> pa.Array:
        columns = [_mapped(values.keys, keys), _mapped(values.items, items)]
        entries = pa.StructArray.from_arrays(columns, fields=[made.key_field, made.item_field])
        return _with_children(values, made, entries)

    return mapped


def _mapped(values: pa.Array, one: _Map | None) -> pa.Array:
    return values if one is None else one(values)


def _with_children(values: pa.Array, made: pa.DataType, child: pa.Array) -> pa.Array:
    own = values.buffers()[: made.num_buffers]
    return pa.Array.from_buffers(made, len(values), own, values.null_count, values.offset, [child])
