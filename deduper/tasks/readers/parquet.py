"""Parquet files with exactly the declared columns, read as Arrow from the start, without Spark.

Spark would give the same values, of the same types. So its way from Parquet to rows, and from rows, value by value,
back to columns for Python, can be left out; it takes longer than all the rest of a window.

A file that Spark would convert or refuse is left to Spark: this module only decides whether a file is plain, so bad
input is handled in one place. The exception is a file whose last bytes show that no reader can read it as it was
written (`UnreadableFile`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from deduper.arrow_columns import DeclaredColumn
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.tasks.readers.declared import Declared
from deduper.tasks.readers.parquet_leaves import leaves
from deduper.tasks.readers.parquet_numbers import beyond_us
from deduper.tasks.readers.partition_folders import FolderValue
from deduper.tasks.readers.plain_file import FilePart, NotPlain, UnreadableFile, WindowFile, reading

_BATCH_ROWS = 65_536
_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_EXACT_INT96 = (3, 1)
"""Spark's first version that writes INT96 by today's calendar."""
_LONG_OFFSETS = ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


@dataclass(frozen=True, slots=True)
class ParquetReading:
    """How records are read; pickled into the job."""

    declared: Declared

    def part(self, ordinal: int, file: WindowFile) -> FilePart | None:
        """A file of a window, by its footer; None when it has no rows.

        Raises:
            NotPlain: Spark has to read it.
            UnreadableFile: no reader can.
        """
        folders = self.declared.folder_values(file.path)
        with opened_parquet(file.path) as opened, reading(file.path):
            self._check(opened, file.path, folders)
            footer = opened.metadata
            sizes = [footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)]
        if not footer.num_rows:
            return None
        plain_bytes = max(0, sum(sizes))  # a damaged footer may say anything, and tasks get files by this
        return FilePart.of(file, ordinal, plain_bytes, folders, rows=footer.num_rows)

    def records(self, part: FilePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, int]:
        """The records of a file, as reading tasks take them; see `tasks.layout`. Returns how many its footer counts.

        Raises:
            NotPlain: Spark has to read it after all.
        """
        del clock  # an error has no text here
        part.check()
        begin = first = part.ordinal << POSITION_BITS
        with opened_parquet(part.path) as opened:
            with reading(part.path):
                self._check(opened, part.path, part.folders)
            there = set(opened.schema_arrow.names)
            stored = [self.declared.columns[number].name for number in self.declared.stored(part.folders)]
            names = [name for name in stored if name in there]
            batches = opened.iter_batches(_BATCH_ROWS, columns=names, use_threads=False)
            while (batch := _next(batches, part.path)) is not None:
                admission = np.full(batch.num_rows, int(Admission.ADMITTED), np.int8)
                with reading(part.path):
                    columns = {
                        number: self._column(batch, number, admission) for number in self.declared.stored(part.folders)
                    }
                order = np.arange(first, first + batch.num_rows, dtype=np.int64)
                yield self.declared.records(columns, order, folders=part.folders, admission=admission)
                first += batch.num_rows
        part.check()
        if first - begin != part.rows:
            raise NotPlain(f"{part.path}: {first - begin} rows were read, its footer says {part.rows}")
        return part.rows

    def _check(self, opened: parquet.ParquetFile, path: str, folders: Mapping[int, FolderValue]) -> None:
        """Raises NotPlain."""
        require_plain(opened, path, [column for at, column in enumerate(self.declared.columns) if at not in folders])

    def _column(self, batch: pa.RecordBatch, number: int, admission: NDArray[np.int8]) -> pa.Array:
        """A column by its declared type; a time without µs in 64 bits is null, and `admission` is written there."""
        declared = self.declared.columns[number]
        at = batch.schema.get_field_index(declared.name)
        if at < 0:
            return pa.nulls(batch.num_rows, declared.arrow)
        column = batch.column(at)
        # Times of INT96 are of UTC and do not say so; the others change in nothing but how they are written down.
        if column.type == declared.arrow:
            return column
        if pa.types.is_timestamp(column.type) and column.type.unit == "ms":
            far = beyond_us(column)
            if far.any():
                is_expiry = number == self.declared.expiry
                reason = Admission.BAD_EXPIRY if is_expiry else Admission.MALFORMED
                # The reason of the expiry key comes last, as everywhere.
                admission[far & (admission == int(Admission.ADMITTED)) if is_expiry else far] = int(reason)
                column = pc.if_else(pa.array(far), pa.scalar(None, column.type), column)
        return column.cast(declared.arrow)


def require_plain(opened: parquet.ParquetFile, path: str, columns: Sequence[DeclaredColumn]) -> None:
    """Raises NotPlain unless the file's columns are exactly as declared; columns may be missing."""
    noted = opened.metadata.metadata or {}
    if any(name in noted for name in _LEGACY) or noted.get(_SPARK_VERSION, b"4").startswith((b"1.", b"2.")):
        raise NotPlain(f"{path}: its times may be of the old calendar")
    fields = {field.name: field.type for field in opened.schema_arrow}
    lower = [name.lower() for name in opened.schema_arrow.names]
    physical = {leaf.path: leaf.physical_type for leaf in map(opened.schema.column, range(len(opened.schema)))}
    is_exact = is_int96_exact(opened.metadata)
    for column in columns:
        name = column.name
        found = fields.get(name)
        if lower.count(name.lower()) != (found is not None):
            raise NotPlain(f"{path}: more than one column, or another, could be meant by {name}")
        if not is_exact and any(kind == "INT96" and _is_of(leaf, name) for leaf, kind in physical.items()):
            # Arrow misreads nanoseconds below zero, which others write for times before 1970, and days below zero.
            raise NotPlain(f"{path}: {name} is of INT96 that Spark has not written by today's calendar")
        if found is not None and not _is_plain(found, column, physical):
            raise NotPlain(f"{path}: {name} is of type {found}, declared {column.kind.text}")
    if not any(column.name in fields for column in columns):
        raise NotPlain(f"{path}: none of the declared columns")


def check_footer(path: str) -> None:
    """Check the footer of a file that Spark is to read.

    Raises:
        NotPlain: Arrow cannot read it; Spark may.
        UnreadableFile: no reader can.
    """
    with opened_parquet(path):
        pass


def _is_plain(found: pa.DataType, declared: DeclaredColumn, physical: Mapping[str, str]) -> bool:
    """Whether a column of a file is just as declared; `physical` are the types of all its leaves, by path."""
    ours, wanted = list(leaves(found, declared.name)), list(leaves(declared.arrow, declared.name))
    lying = [path for path in physical if _is_of(path, declared.name)]
    # The paths show the names in structs, and distinguish lists of today's layout from all others.
    if not [path for path, _ in ours] == [path for path, _ in wanted] == lying:
        return False
    return all(_is_plain_leaf(ours[at][1], wanted[at][1], physical[path]) for at, path in enumerate(lying))


def _is_of(leaf: str, column: str) -> bool:
    """Whether a leaf, by its path, is one of a column's."""
    return leaf == column or leaf.startswith(f"{column}.")


def _is_plain_leaf(found: pa.DataType, wanted: pa.DataType, physical: str) -> bool:
    if pa.types.is_timestamp(wanted):
        if not pa.types.is_timestamp(found) or found.unit not in ("us", "ms"):
            return False
        is_of_utc = found.tz is not None or physical == "INT96"
        return is_of_utc == (wanted.tz is not None)
    return found == wanted or (wanted, found) in _LONG_OFFSETS


def is_int96_exact(footer: parquet.FileMetaData) -> bool:
    """Whether Arrow reads a file's times of INT96 as Spark does."""
    return _int96_writer(footer) >= _EXACT_INT96


def _int96_writer(footer: parquet.FileMetaData) -> tuple[int, int]:
    """The version of Spark that has written a file; 0.0 for others, also those that only pass its mark on."""
    version = re.match(rb"(\d+)\.(\d+)", (footer.metadata or {}).get(_SPARK_VERSION, b""))
    is_sparks = version is not None and footer.created_by.startswith("parquet-mr")
    return (int(version[1]), int(version[2])) if version is not None and is_sparks else (0, 0)


def opened_parquet(path: str) -> parquet.ParquetFile:
    """The file, never mapped: one that is cut short under a mapping ends the process.

    Raises:
        NotPlain: Arrow cannot read it; Spark may.
        UnreadableFile: no reader can.
    """
    try:
        with reading(path):
            # As bytes: Arrow takes no name that is not UTF-8 otherwise.
            opened = parquet.ParquetFile(pa.OSFile(os.fsencode(path)), coerce_int96_timestamp_unit="us")
    except NotPlain:
        _check_end(path)
        raise
    footer = opened.metadata
    held = sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    if held != footer.num_rows:
        opened.close()
        raise UnreadableFile(f"its footer says {footer.num_rows} rows, its row groups hold {held}")
    return opened


def _check_end(path: str) -> None:
    """Raises UnreadableFile when a file does not end as every Parquet file does. An empty one has no records."""
    with reading(path), Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_MAGIC)))
        end = file.read()
    if size and end not in (_MAGIC, _MAGIC_ENCRYPTED):
        raise UnreadableFile("no Parquet file, or not the whole of one: it does not end in PAR1")


def _next(batches: Iterator[pa.RecordBatch], path: str) -> pa.RecordBatch | None:
    with reading(path):
        return next(batches, None)
