"""Files of events or of ranges as Arrow's batches: plain columns, of the types that a DataFrame of them would have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from deduper.arrow_columns import DeclaredColumn, kind_of
from deduper.config.files import InputFiles
from deduper.errors import DeduperError, UsageError
from deduper.spark_promises import FIXED_BY_STORE, TIME_ZONE
from deduper.tasks.readers.file_parts import FileFault
from deduper.tasks.readers.parquet import opened_parquet
from deduper.tasks.readers.path_columns import is_hidden
from deduper.tasks.readers.text import require_lines, rows_of_lines
from deduper.text.format import TextFormat

_LEAST_ROWS = 1 << 17
_PIECES_A_CORE = 4
Batch: TypeAlias = tuple[pa.RecordBatch, list[str]]
"""Rows, and the texts of records that are no rows."""


def not_plain(what: str) -> UsageError:
    """The error of files that only Spark reads."""
    return UsageError(f"{what}; give the rows to `deduper.range_aggregate`, as DataFrames of Spark")


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Names the file that cannot be read."""
    try:
        yield
    except FileFault as fault:
        write = "replace it, or correct `format` (`csv` and `json` are lines of text)"
        raise DeduperError(f"{path}: {fault}; {write}") from fault


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
            DeduperError: a file cannot be read.
            UsageError: only Spark reads it.
        """
        columns: tuple[DeclaredColumn, ...] | None = None
        groups: list[tuple[str, int, int]] = []
        text_bytes = 0
        for path in paths:
            with _reading(path), opened_parquet(path) as opened:
                if opened.calendar.is_old:
                    raise not_plain(f"{path}: its times may be of the old calendar")
                found = tuple(_column(path, field) for field in opened.schema)
                opened.columns(found)
                if found != (columns or found):
                    raise not_plain(f"{path}: its columns are not those of the other files")
                columns, footer = found, opened.footer
                for number in range(footer.num_row_groups):
                    group = footer.row_group(number)
                    groups.append((path, number, group.num_rows))
                    text_bytes += group.total_byte_size
        has_texts = any(column.kind.name in ("string", "binary") for column in columns or ())
        return cls(columns or (), _pieces(groups, cores), text_bytes if has_texts else 0)

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Batch]:
        """See `FileSide`."""
        wanted = [column for column in self.columns if column.name in names]
        with _reading(piece.path), opened_parquet(piece.path) as opened:
            stored = opened.columns(wanted)
            for batch in opened.batches([column.name for column in wanted], piece.groups):
                arrays = []
                for column, of_file in zip(wanted, stored, strict=True):
                    assert of_file is not None
                    values, faults = of_file.read(batch[column.name], column.arrow)
                    if faults is not None:
                        raise not_plain(f"{piece.path}: {column.name} has a value that is none")
                    arrays.append(values)
                yield pa.RecordBatch.from_arrays(arrays, [column.name for column in wanted]), []


@dataclass(frozen=True, slots=True)
class TextSide:
    """Files of lines; `deduper.text` says what a line means."""

    text: TextFormat
    pieces: tuple[Piece, ...]
    header: bool
    name_pattern: str | None
    rows: None = None
    text_bytes: int = 0

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """As they are declared."""
        return self.text.columns

    @classmethod
    def of(cls, files: InputFiles) -> TextSide:
        """Raises UsageError: a column is nested; DeduperError: a file cannot be read."""
        columns = files.parsed_columns
        for column in columns:
            if not column.type.is_scalar or "." in column.name:
                raise not_plain(f"{files.path}: column {column.name} is of type {column.type.text}")
        pieces = tuple(map(Piece, listed(files.path)))
        for piece in pieces:
            with _reading(piece.path):
                require_lines(piece.path, Path(piece.path).stat().st_size)
        text = TextFormat.of(files.format, tuple(map(DeclaredColumn.of, columns)), FIXED_BY_STORE[TIME_ZONE])
        return cls(text, pieces, files.format == "csv" and files.header, files.name_pattern)

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Batch]:
        """See `FileSide`."""
        with _reading(piece.path):
            for rows, bad in rows_of_lines(piece.path, self.text, header=self.header, name_pattern=self.name_pattern):
                yield rows.select([name for name in rows.schema.names if name in names]), bad


FileSide: TypeAlias = ParquetSide | TextSide
"""The files of events or of ranges, all of the same columns; `batches` is for several threads, and for each pass."""


def side_of(files: InputFiles, cores: int) -> FileSide:
    """The side of a job.

    Raises:
        DeduperError: a file cannot be read.
        UsageError: only Spark reads them.
    """
    return TextSide.of(files) if files.format != "parquet" else ParquetSide.of(listed(files.path), cores)


def schema_of(side: FileSide) -> pa.Schema:
    """As it is read and written."""
    return pa.schema([(column.name, column.arrow) for column in side.columns])


def listed(path: Path) -> list[str]:
    """The file, or those of a folder, without hidden ones.

    Raises:
        UsageError: there are none, or folders below.
    """
    entries = [path] if path.is_file() else sorted(path.iterdir())
    found = [entry for entry in entries if not is_hidden(entry.name)]
    if not found:
        raise UsageError(f"{path} has no files; name a file, or a folder with some")
    if any(entry.is_dir() for entry in found):
        raise not_plain(f"{path} has folders below")
    return [str(entry) for entry in found]


def _column(path: str, field: pa.Field) -> DeclaredColumn:
    """As Spark would have a column of these types."""
    found = field.type
    if pa.types.is_timestamp(found) and found.unit != "ns":
        found = pa.timestamp("us", found.tz and "UTC")
    elif pa.types.is_large_string(found) or pa.types.is_large_binary(found):
        found = pa.string() if pa.types.is_large_string(found) else pa.binary()
    kind = kind_of(found)
    if kind is None or "." in field.name:
        raise not_plain(f"{path}: column {field.name} is of type {found}")
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
