"""Parquet files read as Arrow, by the declared columns.

Values of just the declared type stay as they are, and only texts are checked. Others are converted value by value by
`parquet_values`; a value that the column cannot hold is null, and an error of its record. A file is an error as a whole
where a column is of a type without such values, or where Arrow cannot read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from deduper.arrow_columns import DeclaredColumn
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.tasks.readers import int96
from deduper.tasks.readers.declared import Declared, Noted
from deduper.tasks.readers.file_parts import FilePart, UnreadableFile, WindowFile, decoding
from deduper.tasks.readers.old_calendar import FIRST_INT96, VERSION, Calendar
from deduper.tasks.readers.parquet_columns import StoredColumn, stored_columns
from deduper.tasks.readers.parquet_values import Faults, ValueFault, worst
from deduper.tasks.readers.path_columns import PathValue

_BATCH_ROWS = 65_536
_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_FOOTER_END = 4 + len(_MAGIC)
_ADMISSIONS = np.array([Admission.ADMITTED, Admission.BAD_EXPIRY, Admission.MALFORMED, Admission.INVALID_UTF8], np.int8)
"""By `ValueFault`."""


@dataclass(frozen=True, slots=True)
class ParquetReading:
    """How records are read; pickled into the job."""

    declared: Declared

    def part(self, ordinal: int, file: WindowFile) -> FilePart | None:
        """A file of a window, by its footer; None when it has no rows.

        Raises:
            FileChanged, FileGone, UnreadableFile: it cannot be read.
        """
        in_path = self.declared.path_values(file.path)
        listed = FilePart.of(file, ordinal, 0, in_path)
        with _as_listed(listed), opened_parquet(file.path) as opened:
            self._stored(opened, in_path)
            footer = opened.footer
            with decoding(file.path):
                sizes = [footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)]
        if not footer.num_rows:
            return None
        decoded_bytes = max(0, sum(sizes))  # a damaged footer may say anything, and tasks get files by this
        return replace(listed, decoded_bytes=decoded_bytes, rows=footer.num_rows)

    def records(self, part: FilePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        """The records of a file, see `tasks.layout`. Returns what is noted of them, their number by its footer.

        Raises:
            FileChanged, FileGone, UnreadableFile: it cannot be read.
        """
        del clock  # an error has no text here
        part.check()
        begin = first = part.ordinal << POSITION_BITS
        with _as_listed(part), opened_parquet(part.path) as opened:
            columns = self._stored(opened, part.in_path)
            names = [column.name for column in columns.values() if column is not None]
            for batch in opened.batches(names):
                with decoding(part.path):
                    values, admission = self._values(batch, columns)
                order = np.arange(first, first + batch.num_rows, dtype=np.int64)
                yield self.declared.records(
                    values, order, in_path=part.in_path, admission=admission, has_changed=part.has_changed
                )
                first += batch.num_rows
        part.check()
        if first - begin != part.rows:
            raise UnreadableFile(f"{first - begin} rows were read, its footer says {part.rows}")
        return Noted(first - begin)

    def sound_file(self) -> bytes:
        """A file with one record of nulls."""
        made = pa.BufferOutputStream()
        parquet.write_table(
            pa.table({column.name: pa.nulls(1, column.arrow) for column in self.declared.columns}), made
        )
        return made.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _stored(self, opened: OpenedParquet, in_path: Mapping[int, PathValue]) -> dict[int, StoredColumn | None]:
        """The file's columns for those that are needed, by number, and all others that may hold a value of no type.

        So whether a record is malformed does not depend on what this job needs of it.

        Raises:
            UnreadableFile: it cannot have one of the declared columns.
        """
        numbers = [number for number in range(len(self.declared.columns)) if number not in in_path]
        stored = opened.columns([self.declared.columns[number] for number in numbers])
        needed = self.declared.stored(in_path)
        return {
            number: column
            for number, column in zip(numbers, stored, strict=True)
            if number in needed or (column is not None and column.cast is not None)
        }

    def _values(
        self, batch: pa.RecordBatch, columns: Mapping[int, StoredColumn | None]
    ) -> tuple[dict[int, pa.Array], NDArray[np.int8] | None]:
        """Columns of the declared types by number, and the admissions of the records; None if all values are valid."""
        values: dict[int, pa.Array] = {}
        found: Faults | None = None
        for number, column in columns.items():
            arrow = self.declared.columns[number].arrow
            if column is None:
                values[number] = pa.nulls(batch.num_rows, arrow)
                continue
            values[number], faults = column.read(batch.column(column.name), arrow)
            if faults is not None and number != self.declared.expiry:
                faults = np.where(faults == ValueFault.FAR, np.int8(ValueFault.MISFIT), faults)
            found = worst(found, faults)
        return values, None if found is None else _ADMISSIONS[found]


class OpenedParquet:
    """A file that is open. `footer` is its own; `schema`: as Arrow reads it, with INT96 as times or as bytes."""

    def __init__(self, path: str, file: parquet.ParquetFile, footer: parquet.FileMetaData) -> None:
        self._path = path
        self._file = file
        self.footer = footer
        self.schema: pa.Schema = file.schema_arrow
        self.calendar = Calendar.of(footer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def physical_types(self) -> list[str]:
        """Those of the leaves of all columns, in their order."""
        return _physical_types(self.footer)

    def columns(self, declared: Sequence[DeclaredColumn]) -> list[StoredColumn | None]:
        """The file's columns for the declared ones; None for one that it lacks.

        Raises:
            UnreadableFile: it cannot have one of them.
        """
        with decoding(self._path):
            return stored_columns(self.schema, self.physical_types, self.calendar, declared)

    def batches(
        self,
        names: Sequence[str],
        groups: Sequence[int] | None = None,
        *,
        rows: int = _BATCH_ROWS,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of all row groups, or of some, with at least the columns of these names; so many at most at a time.

        `use_threads`: columns are decoded side by side.

        Raises:
            UnreadableFile: a page is damaged.
        """
        with decoding(self._path):
            read = self._file.iter_batches(rows, row_groups=groups, columns=names, use_threads=use_threads)
        while True:
            with decoding(self._path):
                batch = next(read, None)
            if batch is None:
                return
            yield batch


def is_int96_exact(footer: parquet.FileMetaData) -> bool:
    """Whether Arrow reads a file's times of INT96 as Spark does."""
    return _int96_writer(footer) >= FIRST_INT96


def opened_parquet(path: str) -> OpenedParquet:
    """The file, never mapped: one that is cut short under a mapping ends the process.

    Raises:
        FileGone, UnreadableFile: it cannot be read.
    """
    try:
        with decoding(path):
            # As bytes: Arrow takes no name that is not UTF-8 otherwise.
            file = parquet.ParquetFile(pa.OSFile(os.fsencode(path)), coerce_int96_timestamp_unit="us")
            footer = file.metadata
            if "INT96" in _physical_types(footer) and not is_int96_exact(footer):
                file.close()
                as_bytes = int96.as_bytes(_footer_of(path))
                file = parquet.ParquetFile(pa.OSFile(os.fsencode(path)), metadata=as_bytes)
            held = sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    except UnreadableFile:
        _check_end(path)
        raise
    if held != footer.num_rows:
        file.close()
        raise UnreadableFile(f"its footer says {footer.num_rows} rows, its row groups hold {held}")
    return OpenedParquet(path, file, footer)


@contextmanager
def _as_listed(part: FilePart) -> Iterator[None]:
    """Raises FileChanged in place of another error if the file is not the listed one any more."""
    try:
        yield
    except UnreadableFile:
        part.check()
        raise


def _physical_types(footer: parquet.FileMetaData) -> list[str]:
    return [footer.schema.column(leaf).physical_type for leaf in range(len(footer.schema))]


def _int96_writer(footer: parquet.FileMetaData) -> tuple[int, int]:
    """The version of Spark that has written a file; 0.0 for other writers, also those that copy its mark."""
    version = re.match(rb"(\d+)\.(\d+)", (footer.metadata or {}).get(VERSION, b""))
    is_sparks = version is not None and footer.created_by.startswith("parquet-mr")
    return (int(version[1]), int(version[2])) if version is not None and is_sparks else (0, 0)


def _footer_of(path: str) -> bytes:
    """The bytes of a file's footer, which Arrow has read."""
    with Path(path).open("rb") as file:
        end = file.seek(-_FOOTER_END, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(end - size)
        return file.read(size)


def _check_end(path: str) -> None:
    """Raises UnreadableFile when a file does not end as every Parquet file does, or is encrypted."""
    with decoding(path), Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_MAGIC)))
        end = file.read()
    if end == _MAGIC_ENCRYPTED:
        raise UnreadableFile("its footer is encrypted")
    if end != _MAGIC:
        raise UnreadableFile("no Parquet file, or not the whole of one: it does not end in PAR1")
