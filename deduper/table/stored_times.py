"""The dates and times of a Parquet file as its writer meant them: by its notes, and INT96 as an instant.

`tasks.readers` has the rules, as jobs read such files. INT96 has no zone in the file and is an instant for every
engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.errors import TableUsageError
from deduper.table.schema import form_of
from deduper.tasks.readers.old_calendar import FIRST_INT96, VERSION, Calendar, UnclearTime, is_before
from deduper.tasks.readers.parquet import OpenedParquet, opened_parquet
from deduper.tasks.readers.parquet_columns import Casts, leaf_count
from deduper.tasks.readers.parquet_values import Cast, converted

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_UTC_TIME = pa.timestamp("us", "UTC")


class StoredTimes:
    """The columns of an opened file as they are meant. `schema`: of all of them; `where` is named in errors."""

    def __init__(self, opened: OpenedParquet, where: Path) -> None:
        self._where = where
        self._casts: dict[str, tuple[Cast, pa.DataType]] = {}
        leaves = iter(opened.physical_types)
        fields = []
        for field in opened.schema:
            physical = list(islice(leaves, leaf_count(field.type)))
            meant = _meant(field.type, iter(physical))
            fields.append(field.with_type(meant))
            form = form_of(meant)
            if form is not None and ("INT96" in physical or (opened.calendar.are_dates_old and _has_time(field.type))):
                cast = Casts(opened.calendar).of(field.type, form, iter(physical))
                if cast is not None:
                    self._casts[field.name] = (cast, form)
        self.schema = pa.schema(fields)

    def records(self, read: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that were read from the file, with their dates and times as they are meant.

        Raises:
            TableUsageError: a time cannot be told; nothing was written.
        """
        if not self._casts:
            return read
        columns = [self._read(*one) for one in zip(read.schema.names, read.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, read.schema.names)

    def _read(self, name: str, values: pa.Array) -> pa.Array:
        if name not in self._casts:
            return values
        try:
            values, faults = converted(values, *self._casts[name])
        except UnclearTime as error:
            raise TableUsageError(f"{self._where}: `{name}` {error}") from error
        if faults is not None:
            raise TableUsageError(f"{self._where}: `{name}` has a time or a text that cannot be read; mend the file")
        return values


def stored_schema(file: Path) -> pa.Schema:
    """The columns of a file, by its footer; an INT96 is an instant.

    Raises:
        FileGone, UnreadableFile: it cannot be read.
    """
    with opened_parquet(str(file)) as opened:
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


def _meant(kind: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    """A type of the file, with INT96 as an instant; takes as many of the physical types as it has leaves."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_meant(field.type, physical)) for field in kind])
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_meant(kind.key_type, physical))
        return pa.map_(key, kind.item_field.with_type(_meant(kind.item_type, physical)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_meant(kind.value_type, physical)))
    leaves = list(islice(physical, leaf_count(kind)))
    return _UTC_TIME if leaves == ["INT96"] and not pa.types.is_nested(kind) else kind


def _has_time(kind: pa.DataType) -> bool:
    """Whether a type is a date or a time, or has one."""
    return pa.types.is_temporal(kind) or any(_has_time(kind.field(at).type) for at in range(kind.num_fields))
