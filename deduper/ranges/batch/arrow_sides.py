"""Files of events or of ranges as Arrow's batches, and their good rows with the words of their ids; without Spark.

They have what Spark would read; for everything else there is `OnlySpark`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deduper.arrow_columns import DeclaredColumn, kind_of
from deduper.columns import ColumnType, parse_columns
from deduper.core.digest_kernels import array_digest
from deduper.ranges.aggregate.points import as_points
from deduper.ranges.batch.settings import InputFiles
from deduper.ranges.batch.work import ID_HI, ID_LO
from deduper.spark_promises import FIXED_BY_STORE, TIME_ZONE
from deduper.tasks.readers.parquet import opened_parquet
from deduper.tasks.readers.text import parsed_lines, require_lines
from deduper.text.format import TextFormat

_LEAST_ROWS = 1 << 17
_PIECES_A_CORE = 4


class OnlySpark(Exception):
    """What only Spark can do; the text says why, for the log."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The work of one thread: neighbouring row groups of a Parquet file, or all lines of a file of text."""

    path: str
    groups: tuple[int, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ParquetSide:
    """Parquet files with types of their own."""

    columns: tuple[DeclaredColumn, ...]
    pieces: tuple[Piece, ...]
    text_bytes: int

    @property
    def rows(self) -> int:
        """By the footers."""
        return sum(piece.rows for piece in self.pieces)

    @classmethod
    def of(cls, paths: Sequence[str], cores: int) -> ParquetSide:
        """Of all footers.

        Raises:
            OnlySpark: Spark has to read a file.
        """
        columns: tuple[DeclaredColumn, ...] | None = None
        groups: list[tuple[str, int, int]] = []
        text_bytes = 0
        for path in paths:
            with opened_parquet(path) as opened:
                if opened.calendar.is_old:
                    raise OnlySpark(f"{path}: its times may be of the old calendar")
                found = tuple(_column(path, field) for field in opened.schema)
                opened.columns(found)
                if found != (columns or found):
                    raise OnlySpark(f"{path}: its columns are not those of the other files")
                columns, footer = found, opened.footer
                for number in range(footer.num_row_groups):
                    group = footer.row_group(number)
                    groups.append((path, number, group.num_rows))
                    text_bytes += group.total_byte_size
        has_texts = any(column.kind.name in ("string", "binary") for column in columns or ())
        return cls(columns or (), _pieces(groups, cores), text_bytes if has_texts else 0)

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a piece with these columns.

        Raises:
            OnlySpark: a value is none of its type.
        """
        wanted = [column for column in self.columns if column.name in names]
        with opened_parquet(piece.path) as opened:
            stored = opened.columns(wanted)
            for batch in opened.batches([column.name for column in wanted], piece.groups):
                arrays = []
                for column, of_file in zip(wanted, stored, strict=True):
                    assert of_file is not None
                    values, faults = of_file.read(batch[column.name], column.arrow)
                    if faults is not None:
                        raise OnlySpark(f"{piece.path}: {column.name} has a value that is none")
                    arrays.append(values)
                yield pa.RecordBatch.from_arrays(arrays, [column.name for column in wanted])


@dataclass(frozen=True, slots=True)
class TextSide:
    """Files of CSV or JSON; `deduper.text` says what a line means, here as in Spark's way."""

    text: TextFormat
    pieces: tuple[Piece, ...]
    header: bool
    rows: None = None
    text_bytes: int = 0

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """As they are declared."""
        return self.text.columns

    @classmethod
    def of(cls, files: InputFiles) -> TextSide:
        """Raises OnlySpark: a column is nested; UnreadableFile: no reader can read a file."""
        columns = parse_columns(files.columns or "")
        for column in columns:
            if not column.type.is_scalar or "." in column.name:
                raise OnlySpark(f"{files.path}: column {column.name} is of type {column.type.text}")
        pieces = tuple(map(Piece, listed(files.path)))
        for piece in pieces:
            require_lines(piece.path, Path(piece.path).stat().st_size)
        return cls(text_format(files), pieces, files.format == "csv" and files.header)

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a piece with these columns.

        Raises:
            OnlySpark: a line is no record.
        """
        wanted = {number: column.name for number, column in enumerate(self.columns) if column.name in names}
        for _, parsed in parsed_lines(piece.path, self.text, list(wanted), header=self.header):
            if parsed.malformed.any() or parsed.invalid_utf8.any():
                raise OnlySpark(f"{piece.path}: a line that is no record")
            yield pa.RecordBatch.from_arrays([parsed.columns[number] for number in wanted], list(wanted.values()))


FileSide: TypeAlias = ParquetSide | TextSide
"""The files of events or of ranges, all of the same columns; `batches` is for several threads, and for each pass."""


def text_format(files: InputFiles) -> TextFormat:
    """What a line of files of CSV or JSON holds."""
    columns = tuple(map(DeclaredColumn.of, parse_columns(files.columns or "")))
    return TextFormat(columns, FIXED_BY_STORE[TIME_ZONE], "," if files.format == "csv" else None)


def side_of(files: InputFiles, cores: int) -> FileSide:
    """The side of a job.

    Raises:
        OnlySpark: Spark has to read it.
        FileFault: a file cannot be read.
    """
    if files.format != "parquet":
        return TextSide.of(files)
    if files.columns is not None:
        raise OnlySpark(f"{files.path}: only Parquet files with types of their own are read without Spark")
    return ParquetSide.of(listed(files.path), cores)


def schema_of(side: FileSide) -> pa.Schema:
    """As it is read and written."""
    return pa.schema([(column.name, column.arrow) for column in side.columns])


def listed(path: Path) -> list[str]:
    """The files that Spark would read.

    Raises:
        OnlySpark: there are none, or folders below.
    """
    entries = [path] if path.is_file() else sorted(path.iterdir())
    found = [entry for entry in entries if not entry.name.startswith(("_", "."))]
    if not found or any(entry.is_dir() or entry.name.endswith("._COPYING_") for entry in found):
        raise OnlySpark(f"{path}: no files, or folders below")
    return [str(entry) for entry in found]


def files_below(path: Path) -> list[str]:
    """The file, or all files of a folder and the folders below, without hidden names."""
    if path.is_file():
        return [str(path)]
    found = (entry for entry in sorted(path.rglob("*")) if entry.is_file())
    return [
        str(entry) for entry in found if not any(part.startswith(("_", ".")) for part in entry.relative_to(path).parts)
    ]


def _column(path: str, field: pa.Field) -> DeclaredColumn:
    """As Spark would have a column of these types."""
    found = field.type
    if pa.types.is_timestamp(found) and found.unit != "ns":
        found = pa.timestamp("us", found.tz and "UTC")
    elif pa.types.is_large_string(found) or pa.types.is_large_binary(found):
        found = pa.string() if pa.types.is_large_string(found) else pa.binary()
    kind = kind_of(found)
    if kind is None or "." in field.name:
        raise OnlySpark(f"{path}: column {field.name} is of type {found}")
    return DeclaredColumn(field.name, kind, found)


def _pieces(groups: Sequence[tuple[str, int, int]], cores: int) -> tuple[Piece, ...]:
    least = max(_LEAST_ROWS, sum(rows for _, _, rows in groups) // (cores * _PIECES_A_CORE))
    pieces: list[Piece] = []
    for path, number, rows in groups:
        if pieces and pieces[-1].path == path and pieces[-1].rows < least:
            last = pieces.pop()
            pieces.append(Piece(path, (*last.groups, number), last.rows + rows))
        else:
            pieces.append(Piece(path, (number,), rows))
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class GoodRows:
    """Batches of a side with the words of their ids; by the rules of `bad_rows`, no row may be bad.

    `points` are the time of events, or start and end of ranges; `kinds` are those of `keys`.
    """

    keys: tuple[str, ...]
    kinds: tuple[ColumnType, ...]
    points: tuple[str, ...]
    longest_us: int | None
    salt: bytes

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch and the words.

        Raises:
            OnlySpark: a row is bad.
        """
        self._require_good(batch)
        keys = [batch[name] for name in self.keys]
        if len(keys) == 1 and pa.types.is_integer(keys[0].type):
            return batch.append_column(ID_HI, keys[0].cast(pa.int64()))
        hi, lo = (pa.array(words.view(np.int64)) for words in array_digest(keys, self.kinds, self.salt))
        return batch.append_column(ID_HI, hi).append_column(ID_LO, lo)

    def _require_good(self, batch: pa.RecordBatch) -> None:
        points = [batch[name] for name in self.points]
        is_event = len(points) == 1
        is_bad = any(batch[name].null_count for name in self.keys)
        is_bad |= any(pa.types.is_floating(one.type) and pc.any(pc.is_nan(one)).as_py() for one in points)
        if is_event:
            is_bad |= points[0].null_count > 0
        else:
            is_bad |= bool(pc.any(pc.greater(*points)).as_py())
            if self.longest_us is not None and not is_bad:
                lengths = as_points(points[1]).view(np.uint64) - as_points(points[0]).view(np.uint64)
                is_bad = any(one.null_count for one in points) or bool((lengths > np.uint64(self.longest_us)).any())
        if is_bad:
            raise OnlySpark(f"a bad {'event' if is_event else 'range'}")
