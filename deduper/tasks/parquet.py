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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bucket_store.errors import StoreError
from deduper.columns import Column, ColumnType
from deduper.core.clock import POSITION_BITS
from deduper.core.digest_kernels import array_digest
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission
from deduper.errors import DeduperError
from deduper.spark.failures import is_passing
from deduper.tasks import layout
from deduper.tasks.parquet_leaves import leaves
from deduper.tasks.partition_folders import FolderValue, folder_texts, folder_value
from deduper.tasks.read import ReadReceipt, ReadTask, set_aside

_BATCH_ROWS = 65_536
_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_EXACT_INT96 = (3, 1)
"""Spark's first version that writes INT96 by today's calendar."""
_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_LONG_OFFSETS = ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """A declared column: its type as Spark has it, and as Arrow has that."""

    name: str
    kind: ColumnType
    arrow: pa.DataType


class WindowFile(Protocol):
    """A file of a window as this room sees it; `deduper.sources` lists them."""

    @property
    def path(self) -> str: ...
    @property
    def modified_ms(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


ExpiryKind = Literal["none", "time", "whole", "float", "category"]


class NotPlain(Exception):
    """Spark has to read the file; the text says why, for the log."""


class UnreadableFile(Exception):
    """A file that is no Parquet, or whose footer contradicts itself, for Spark too; the text says how."""


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A file of a window, as it was listed; `ordinal` is its place there.

    Its footer says how many `rows` it has, and how many bytes they take decoded (`plain_bytes`). `folders` are the
    values that the names of its folders give to columns, by their numbers.
    """

    path: str
    ordinal: int
    modified_ms: int
    size_bytes: int
    rows: int
    plain_bytes: int
    folders: Mapping[int, FolderValue] = field(default_factory=dict)

    def check(self) -> None:
        """Raises NotPlain when it is not the file any more that was listed."""
        with _reading(self.path):
            found = Path(self.path).stat()
        if (found.st_mtime_ns // 1_000_000, found.st_size) != (self.modified_ms, self.size_bytes):
            raise NotPlain(f"{self.path}: changed since it was listed")


@dataclass(frozen=True, slots=True)
class ParquetReading:
    """How records are read; pickled into the job.

    `key` and `expiry` are numbers of columns. `unit_us` are the µs of one step of a whole number that is a time.
    Folders below `folder` may give columns.
    """

    columns: tuple[PlainColumn, ...]
    key: tuple[int, ...]
    expiry: int | None
    expiry_kind: ExpiryKind
    unit_us: int
    null_is_error: bool
    keeps_records: bool
    salt: bytes
    folder: Path

    def part(self, ordinal: int, file: WindowFile) -> ParquetPart | None:
        """A file of a window, by its footer; None when it has no rows.

        Raises:
            NotPlain: Spark has to read it.
            UnreadableFile: no reader can.
        """
        folders = self._folders(file.path)
        with _opened(file.path) as opened, _reading(file.path):
            self._check(opened, file.path, folders)
            footer = opened.metadata
            sizes = [footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)]
        if not footer.num_rows:
            return None
        plain_bytes = max(0, sum(sizes))  # a damaged footer may say anything, and files are dealt to tasks by this
        listed = (file.path, ordinal, file.modified_ms, file.size_bytes)
        return ParquetPart(*listed, footer.num_rows, plain_bytes, folders)

    def records(self, part: ParquetPart) -> Iterator[pa.RecordBatch]:
        """The records of a file, as reading tasks take them; see `tasks.layout`.

        Raises:
            NotPlain: Spark has to read it after all.
        """
        part.check()
        begin = first = part.ordinal << POSITION_BITS
        needed = {*self.key, *(() if self.expiry is None else (self.expiry,))}
        read = [number for number in range(len(self.columns)) if self.keeps_records or number in needed]
        with _opened(part.path) as opened:
            with _reading(part.path):
                self._check(opened, part.path, part.folders)
            there = set(opened.schema_arrow.names)
            stored = [self.columns[number].name for number in read if number not in part.folders]
            names = [name for name in stored if name in there]
            batches = opened.iter_batches(_BATCH_ROWS, columns=names, use_threads=False)
            while (batch := _next(batches, part.path)) is not None:
                with _reading(part.path):
                    columns = {number: self._column(batch, number, part.folders) for number in read}
                yield self._judged(columns, first, batch.num_rows)
                first += batch.num_rows
        part.check()
        if first - begin != part.rows:
            raise NotPlain(f"{part.path}: {first - begin} rows were read, its footer says {part.rows}")

    def _folders(self, path: str) -> dict[int, FolderValue]:
        """The values that a file's folders give to columns, by the numbers of the columns."""
        declared = [Column(column.name, column.kind) for column in self.columns]
        texts = folder_texts(path, self.folder, declared)
        try:
            return {
                number: folder_value(texts[column.name], column.kind)
                for number, column in enumerate(self.columns)
                if column.name in texts
            }
        except ValueError as exc:
            raise NotPlain(f"{path}: {exc}") from exc

    def _column(self, batch: pa.RecordBatch, number: int, folders: Mapping[int, FolderValue]) -> pa.Array:
        wanted = self.columns[number].arrow
        if number in folders:
            return pa.repeat(pa.scalar(folders[number], wanted), batch.num_rows)
        at = batch.schema.get_field_index(self.columns[number].name)
        if at < 0:
            return pa.nulls(batch.num_rows, wanted)
        column = batch.column(at)
        # Times of INT96 are of UTC and do not say so; the others change in nothing but how they are written down.
        return column if column.type == wanted else column.cast(wanted)

    def _judged(self, columns: dict[int, pa.Array], first: int, rows: int) -> pa.RecordBatch:
        key = [columns[number] for number in self.key]
        hi, lo = array_digest(key, [self.columns[number].kind for number in self.key], self.salt)
        fate = np.full(rows, int(Admission.ADMITTED), np.int8)
        expiry = self._expiry(columns, fate, rows)
        if self.null_is_error:
            # Takes precedence over the expiry key's fate: a record without a key is an error for its key.
            for column in key:
                if column.null_count:
                    fate[column.is_null().to_numpy(zero_copy_only=False)] = int(Admission.NULL_KEY)
        order = np.arange(first, first + rows, dtype=np.int64)
        given = {
            layout.HI: pa.array(hi.view(np.int64)),
            layout.LO: pa.array(lo.view(np.int64)),
            layout.ORDER: pa.array(order),
            layout.FATE: pa.array(fate),
            layout.CATEGORY if self.expiry_kind == "category" else layout.EXPIRY: expiry,
            layout.RAW: pa.nulls(rows, pa.string()),
        }
        if self.keeps_records:
            given |= {layout.parsed(number): columns[number] for number in range(len(self.columns))}
        return pa.RecordBatch.from_arrays(list(given.values()), list(given))

    def _expiry(self, columns: dict[int, pa.Array], fate: np.ndarray[Any, Any], rows: int) -> pa.Array:
        """The expiry keys or categories; `fate` is written where there is none, or none that can be one."""
        if self.expiry is None:
            return pa.array(np.zeros(rows, np.int64))
        column = columns[self.expiry]
        if column.null_count:
            fate[column.is_null().to_numpy(zero_copy_only=False)] = int(Admission.NULL_EXPIRY)
        if self.expiry_kind == "category":
            return column
        if self.expiry_kind == "time":
            return column.view(pa.int64())
        if self.expiry_kind == "float":
            values = column.fill_null(0).to_numpy(zero_copy_only=False)
            fate[~np.isfinite(values)] = int(Admission.BAD_EXPIRY)
            return pa.array(values)
        values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if self.unit_us == 1:
            return pa.array(values)
        least = -(-INT64_MIN // self.unit_us)
        fits = (values >= least) & (values <= INT64_MAX // self.unit_us)
        fate[~fits] = int(Admission.BAD_EXPIRY)
        return pa.array(np.where(fits, values, 0) * self.unit_us)

    def _check(self, opened: parquet.ParquetFile, path: str, folders: Mapping[int, FolderValue]) -> None:
        """Raises NotPlain unless the file's columns are exactly as declared; columns may be missing."""
        noted = opened.metadata.metadata or {}
        if any(name in noted for name in _LEGACY) or noted.get(_SPARK_VERSION, b"4").startswith((b"1.", b"2.")):
            raise NotPlain(f"{path}: its times may be of the old calendar")
        fields = {field.name: field.type for field in opened.schema_arrow}
        lower = [name.lower() for name in opened.schema_arrow.names]
        physical = {leaf.path: leaf.physical_type for leaf in map(opened.schema.column, range(len(opened.schema)))}
        is_exact = _int96_writer(opened.metadata) >= _EXACT_INT96
        stored = [column for number, column in enumerate(self.columns) if number not in folders]
        for column in stored:
            name = column.name
            found = fields.get(name)
            if lower.count(name.lower()) != (found is not None):
                raise NotPlain(f"{path}: more than one column, or another, could be meant by {name}")
            if not is_exact and any(kind == "INT96" and _is_of(leaf, name) for leaf, kind in physical.items()):
                # Arrow misreads nanoseconds below zero, which others write for times before 1970, and days below zero.
                raise NotPlain(f"{path}: {name} is of INT96 that Spark has not written by today's calendar")
            if found is not None and not _is_plain(found, column, physical):
                raise NotPlain(f"{path}: {name} is of type {found}, declared {column.kind.text}")
        if not any(column.name in fields for column in stored):
            raise NotPlain(f"{path}: none of the declared columns")


def check_footer(path: str) -> None:
    """Check the footer of a file that Spark is to read.

    Raises:
        NotPlain: Arrow cannot read it; Spark may.
        UnreadableFile: no reader can.
    """
    with _opened(path):
        pass


def read_part(task: ReadTask, reading: ParquetReading, part: ParquetPart) -> ReadReceipt | str:
    """Set the records of a file aside; in place of the receipt, why Spark has to read the file."""
    try:
        return set_aside(task, reading.records(part)) or f"{part.path}: without the rows of its footer"
    except NotPlain as exc:
        return str(exc)
    except UnreadableFile as exc:
        return str(exc)  # it was replaced after its footer was read
    except (StoreError, DeduperError, OSError, MemoryError):
        raise  # over exchange files, or the machine
    except Exception as exc:  # noqa: BLE001 - no file may end the job
        return f"{part.path}: {type(exc).__name__}: {exc}"


def read_parts(
    task: ReadTask,
    reading: ParquetReading,
    parts: Sequence[ParquetPart],
    groups: Sequence[Sequence[int]],
    number: int,
) -> list[ReadReceipt | str]:
    """The same of all files of a group, which are named by their numbers."""
    return [read_part(task, reading, parts[place]) for place in groups[number]]


def arrow_type(kind: ColumnType) -> pa.DataType:
    """How Arrow has a scalar type of Spark's."""
    if kind.name == "decimal":
        return pa.decimal128(kind.precision or 10, kind.scale or 0)
    return _ARROW[kind.name]


def _is_plain(found: pa.DataType, declared: PlainColumn, physical: Mapping[str, str]) -> bool:
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


def _int96_writer(footer: parquet.FileMetaData) -> tuple[int, int]:
    """The version of Spark that has written a file; 0.0 for others, also those that only pass its mark on."""
    version = re.match(rb"(\d+)\.(\d+)", (footer.metadata or {}).get(_SPARK_VERSION, b""))
    is_sparks = version is not None and footer.created_by.startswith("parquet-mr")
    return (int(version[1]), int(version[2])) if version is not None and is_sparks else (0, 0)


def _opened(path: str) -> parquet.ParquetFile:
    """The file, never mapped: one that is cut short under a mapping ends the process."""
    try:
        with _reading(path):
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
    with _reading(path), Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_MAGIC)))
        end = file.read()
    if size and end not in (_MAGIC, _MAGIC_ENCRYPTED):
        raise UnreadableFile(f"no Parquet file, or not the whole of one: it ends in {end!r}, not in {_MAGIC!r}")


def _next(batches: Iterator[pa.RecordBatch], path: str) -> pa.RecordBatch | None:
    with _reading(path):
        return next(batches, None)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Makes Arrow's errors over a file NotPlain, so that Spark decides; faults of the machine stay as they are."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as exc:
        # A damaged page may ask for any amount of memory: failing to get it is no fault of the machine.
        if not isinstance(exc, MemoryError) and is_passing(exc, [path]):
            raise
        raise NotPlain(f"{path}: {exc}") from exc
