"""The dates and times of a Parquet file as its writer meant them: by its notes, and INT96 as an instant.

`tasks.readers.old_calendar` has the notes, as jobs read such files. INT96 has no zone in the file and is an instant for
every engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deduper.table.errors import TableUsageError
from deduper.tasks.readers.old_calendar import FIRST_INT96, VERSION, Calendar, UnclearTime, is_before, renamed_days
from deduper.tasks.readers.parquet import is_int96_exact

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_MISREAD_BY_US = (1 << 64) // 1000
"""Nanoseconds of the day below zero, which some write for times before 1970, are read by Arrow as so much more."""
_MOST_NANOSECONDS_US = (1 << 63) // 1000

_Map = Callable[[pa.Array], pa.Array]
_UTC_TIME = pa.timestamp("us", "UTC")


class StoredTimes:
    """The columns of an opened file as they are meant. `schema`: of all of them; `where` is named in errors."""

    def __init__(self, parquet: pq.ParquetFile, where: Path) -> None:
        """The file is opened with `coerce_int96_timestamp_unit="us"`."""
        self._where = where
        self._calendar = Calendar.of(parquet.metadata)
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
        if self._calendar.are_dates_old and kind == pa.date32():
            return kind, renamed_days
        if self._calendar.are_dates_old and pa.types.is_timestamp(kind) and kind.tz is not None:
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
        return self._old_times(values, column) if self._calendar.is_int96_old else values

    def _old_times(self, values: pa.Array, column: str) -> pa.Array:
        try:
            return self._calendar.times(values)
        except UnclearTime as exc:
            raise TableUsageError(f"{self._where}: `{column}` {exc}") from exc


def stored_schema(file: Path) -> pa.Schema:
    """The columns of a file, by its footer; an INT96 is an instant.

    Raises:
        pa.ArrowException, OSError: it cannot be read.
    """
    with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
        return StoredTimes(opened, file).schema


def has_old_dates(footer: pq.FileMetaData) -> bool:
    """Whether dates of a file are of the old calendar, in the bounds of its row groups too."""
    return Calendar.of(footer).are_dates_old


def rewritten_notes(footer: pq.FileMetaData, columns: Sequence[str]) -> dict[bytes, bytes]:
    """The notes of a file that is written again, with these columns and its times as they are meant.

    The version stays, at least that of today's calendar: of a file without one Spark 3 refuses days before 1582. So do
    the types that Parquet has no name for (intervals, CHAR), while the columns are the same. Those of the calendar go.
    """
    found = footer.metadata or {}
    version = found.get(VERSION)
    if version is None:
        return {}
    notes = {VERSION: b"3.1.0" if is_before(version, FIRST_INT96) else version}
    try:
        named = [field["name"] for field in json.loads(found[_SPARK_SCHEMA])["fields"]]
    except (KeyError, TypeError, ValueError):
        return notes
    return {**notes, _SPARK_SCHEMA: found[_SPARK_SCHEMA]} if sorted(named) == sorted(columns) else notes


def _is_sparks(footer: pq.FileMetaData) -> bool:
    """Whether Spark has written a file, of any version: its nanoseconds of the day are never below zero."""
    return VERSION in (footer.metadata or {}) and str(footer.created_by).startswith("parquet-mr")


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
