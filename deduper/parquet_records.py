"""Parquet files that hold just what the source declares, read as Arrow from the start, without Spark.

What Spark would make of such a file is known: the same values, of the same types. So its way from Parquet to rows, and
from rows, value by value, back to columns for Python, can be left out; it takes longer than all the rest of a window.

Whatever Spark would convert, refuse, or look at twice is left to Spark: here a file is plain, or it is not, and there
is no opinion on what it is instead. So one place alone says what becomes of bad input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from deduper.array_digests import array_digest
from deduper.clock import POSITION_BITS
from deduper.ddl import ColumnType
from deduper.parquet_leaves import leaves
from deduper.read_task import ReadReceipt, ReadTask, set_aside
from deduper.verdict import INT64_MAX, INT64_MIN, Fate

if TYPE_CHECKING:
    # Workers need not load what lists files, nor what checks configurations.
    from deduper.file_source import SourceFile

_BATCH_ROWS = 65_536
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
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


ExpiryKind = Literal["none", "time", "whole", "float", "category"]


class NotPlain(Exception):
    """A file is to be read by Spark; the text says why, for the log."""


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A file of a window, as it was listed; `ordinal` is its place there.

    Its footer says how many `rows` it has, and how many bytes they take decoded (`plain_bytes`).
    """

    path: str
    ordinal: int
    modified_ms: int
    size_bytes: int
    rows: int
    plain_bytes: int

    def check(self) -> None:
        """Raises NotPlain when it is not the file any more that was listed."""
        try:
            found = Path(self.path).stat()
        except OSError as exc:
            raise NotPlain(f"{self.path}: {exc.strerror}") from exc
        if (found.st_mtime_ns // 1_000_000, found.st_size) != (self.modified_ms, self.size_bytes):
            raise NotPlain(f"{self.path}: changed since it was listed")


@dataclass(frozen=True, slots=True)
class ParquetReading:
    """What is made of the records; pickled into the job.

    `key` and `expiry` are numbers of columns. `unit_us` are the µs of one step of a whole number that is a time.
    """

    columns: tuple[PlainColumn, ...]
    key: tuple[int, ...]
    expiry: int | None
    expiry_kind: ExpiryKind
    unit_us: int
    null_is_error: bool
    keeps_records: bool
    salt: bytes

    def parts(self, files: Sequence[SourceFile]) -> list[ParquetPart]:
        """The files of a window that have rows.

        Raises:
            NotPlain: one is to be read by Spark, and so all are.
        """
        parts = []
        for ordinal, file in enumerate(files):
            if file.fate is not Fate.ADMITTED:
                raise NotPlain(f"{file.path}: {file.problem}")
            with _opened(file.path) as opened:
                self._check(opened, file.path)
                footer = opened.metadata
            if footer.num_rows:
                plain_bytes = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
                listed = (file.path, ordinal, file.modified_ms, file.size_bytes)
                parts.append(ParquetPart(*listed, footer.num_rows, plain_bytes))
        return parts

    def records(self, part: ParquetPart) -> Iterator[pa.RecordBatch]:
        """The records of a file, as reading tasks take them: HI, LO, ORDER, FATE, EXPIRY or CATEGORY, RAW, columns.

        Raises:
            NotPlain: it is to be read by Spark after all.
        """
        part.check()
        first = part.ordinal << POSITION_BITS
        needed = {*self.key, *(() if self.expiry is None else (self.expiry,))}
        read = [number for number in range(len(self.columns)) if self.keeps_records or number in needed]
        with _opened(part.path) as opened:
            self._check(opened, part.path)
            there = set(opened.schema_arrow.names)
            names = [name for number in read if (name := self.columns[number].name) in there]
            batches = opened.iter_batches(_BATCH_ROWS, columns=names, use_threads=False)
            while (batch := _next(batches, part.path)) is not None:
                with _reading(part.path):
                    columns = {number: self._column(batch, number) for number in read}
                yield self._judged(columns, first, batch.num_rows)
                first += batch.num_rows
        part.check()

    def _column(self, batch: pa.RecordBatch, number: int) -> pa.Array:
        wanted = self.columns[number].arrow
        at = batch.schema.get_field_index(self.columns[number].name)
        if at < 0:
            return pa.nulls(batch.num_rows, wanted)
        column = batch.column(at)
        # Times of INT96 are of UTC and do not say so; the others change in nothing but how they are written down.
        return column if column.type == wanted else column.cast(wanted)

    def _judged(self, columns: dict[int, pa.Array], first: int, rows: int) -> pa.RecordBatch:
        key = [columns[number] for number in self.key]
        hi, lo = array_digest(key, [self.columns[number].kind for number in self.key], self.salt)
        fate = np.full(rows, int(Fate.ADMITTED), np.int8)
        expiry = self._expiry(columns, fate, rows)
        if self.null_is_error:
            # Over what the expiry key has said: a record without a key is that first of all.
            for column in key:
                if column.null_count:
                    fate[column.is_null().to_numpy(zero_copy_only=False)] = int(Fate.NULL_KEY)
        order = np.arange(first, first + rows, dtype=np.int64)
        given = {
            "_hi": pa.array(hi.view(np.int64)),
            "_lo": pa.array(lo.view(np.int64)),
            "_order": pa.array(order),
            "_fate": pa.array(fate),
            "_expiry": expiry,
            "_raw": pa.nulls(rows, pa.string()),
        }
        if self.keeps_records:
            given |= {f"_{number}": columns[number] for number in range(len(self.columns))}
        return pa.RecordBatch.from_arrays(list(given.values()), list(given))

    def _expiry(self, columns: dict[int, pa.Array], fate: np.ndarray[Any, Any], rows: int) -> pa.Array:
        """The expiry keys or categories; `fate` is written where there is none, or none that can be one."""
        if self.expiry is None:
            return pa.array(np.zeros(rows, np.int64))
        column = columns[self.expiry]
        if column.null_count:
            fate[column.is_null().to_numpy(zero_copy_only=False)] = int(Fate.NULL_EXPIRY)
        if self.expiry_kind == "category":
            return column
        if self.expiry_kind == "time":
            return column.view(pa.int64())
        if self.expiry_kind == "float":
            values = column.fill_null(0).to_numpy(zero_copy_only=False)
            fate[~np.isfinite(values)] = int(Fate.BAD_EXPIRY)
            return pa.array(values)
        values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if self.unit_us == 1:
            return pa.array(values)
        least = -(-INT64_MIN // self.unit_us)
        fits = (values >= least) & (values <= INT64_MAX // self.unit_us)
        fate[~fits] = int(Fate.BAD_EXPIRY)
        return pa.array(np.where(fits, values, 0) * self.unit_us)

    def _check(self, opened: parquet.ParquetFile, path: str) -> None:
        """Raises NotPlain unless the file's columns are just what is declared, but for those that are not there."""
        noted = opened.metadata.metadata or {}
        if any(name in noted for name in _LEGACY) or noted.get(_SPARK_VERSION, b"4").startswith((b"1.", b"2.")):
            raise NotPlain(f"{path}: its times may be of the old calendar")
        fields = {field.name: field.type for field in opened.schema_arrow}
        lower = [name.lower() for name in opened.schema_arrow.names]
        physical = {leaf.path: leaf.physical_type for leaf in map(opened.schema.column, range(len(opened.schema)))}
        for column in self.columns:
            name = column.name
            found = fields.get(name)
            if lower.count(name.lower()) != (found is not None):
                raise NotPlain(f"{path}: more than one column, or another, could be meant by {name}")
            if found is not None and not _is_plain(found, column, physical):
                raise NotPlain(f"{path}: {name} is of type {found}, declared {column.kind.text}")
        if not any(column.name in fields for column in self.columns):
            raise NotPlain(f"{path}: none of the declared columns")


def read_part(task: ReadTask, reading: ParquetReading, part: ParquetPart) -> ReadReceipt | str:
    """Set the records of a file aside; instead of the receipt, why the file is to be read by Spark."""
    try:
        return set_aside(task, reading.records(part)) or f"{part.path}: without the rows of its footer"
    except NotPlain as exc:
        return str(exc)


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
    lying = [path for path in physical if path == declared.name or path.startswith(f"{declared.name}.")]
    # The paths tell the names in structs, and lists of today's layout from all others.
    if not [path for path, _ in ours] == [path for path, _ in wanted] == lying:
        return False
    return all(_is_plain_leaf(ours[at][1], wanted[at][1], physical[path]) for at, path in enumerate(lying))


def _is_plain_leaf(found: pa.DataType, wanted: pa.DataType, physical: str) -> bool:
    if pa.types.is_timestamp(wanted):
        if not pa.types.is_timestamp(found) or found.unit not in ("us", "ms"):
            return False
        is_of_utc = found.tz is not None or physical == "INT96"
        return is_of_utc == (wanted.tz is not None)
    return found == wanted or (wanted, found) in _LONG_OFFSETS


def _opened(path: str) -> parquet.ParquetFile:
    """The file, never mapped: one that is cut short under a mapping ends the process."""
    with _reading(path):
        return parquet.ParquetFile(pa.OSFile(path), coerce_int96_timestamp_unit="us")


def _next(batches: Iterator[pa.RecordBatch], path: str) -> pa.RecordBatch | None:
    with _reading(path):
        return next(batches, None)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Whatever Arrow says of a file, Spark is to say."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise NotPlain(f"{path}: {exc}") from exc
