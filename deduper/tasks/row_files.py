"""The files of a port by their format, Parquet, or lines of JSON or CSV: written as rows are added, opened, counted.

Each writer counts the rows that a reader will find in the file, and not those that it was given: a window is committed
if the rows read, the rows judged and these agree.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from bucket_store.places.new_file import FileWriter
from bucket_store.places.place import Place
from bucket_store.places.reading import open_file
from deduper.errors import IntegrityError
from deduper.file_formats import ENDINGS, format_of_name
from deduper.tasks.readers.parquet_columns import leaves
from deduper.text.written import csv_blocks, csv_header, json_blocks

_SAMPLE, _LARGE_SAMPLE = 4096, 16_384
"""Rows to sample, more if some of them repeat; only the size of the file depends on the result."""
_MOST_FRESH = 0.5
_NO_HOPE = 0.9


def dictionary_columns(table: pa.Table) -> list[str]:
    """Paths of the leaves of a table's columns that are worth a dictionary: at most half of the first values are new.

    For the others a writer hashes every value until the dictionary is full, and then discards it: a fifth of the time
    of writing, and a larger file.

    If a tenth of the sample repeats, a larger one is taken: among few rows some thousand different values look new.
    Elements of lists and maps are not sampled and get a dictionary, and so do columns of nulls.
    """
    return [
        path for name in table.column_names for path in _repeating(name, table.column(name).slice(0, _LARGE_SAMPLE))
    ]


def _repeating(path: str, values: pa.ChunkedArray) -> Iterator[str]:
    if pa.types.is_struct(values.type):
        names = [field.name for field in values.type]
        for name, part in zip(names, values.flatten(), strict=True):
            yield from _repeating(f"{path}.{name}", part)
    elif pa.types.is_nested(values.type):
        yield from (leaf for leaf, _ in leaves(values.type, path))
    elif pa.types.is_dictionary(values.type) or _repeat(values):
        yield path


def _repeat(values: pa.ChunkedArray) -> bool:
    fresh = _fresh(values.slice(0, _SAMPLE))
    if _MOST_FRESH < fresh < _NO_HOPE:
        fresh = _fresh(values)
    return fresh <= _MOST_FRESH


def _fresh(values: pa.ChunkedArray) -> float:
    """The share of values that no earlier one equals; 0 if all are null."""
    known = values.drop_null()
    return len(known.unique()) / len(known) if len(known) else 0.0


_BUFFER_BYTES = 256 << 10
_FOOTER_BYTES = 64 << 10
_LINE_END, _QUOTE = 0x0A, 0x22


@dataclass(frozen=True, slots=True)
class RowFormats:
    """What the files of ports end in, by the ports' names; Parquet for all others. Pickled into the tasks.

    `codec` compresses Parquet; `zone` is that of times in text.
    """

    of_port: Mapping[str, str] = field(default_factory=dict)
    codec: str = "snappy"
    zone: str = "UTC"

    def of(self, port: str) -> str:
        """What the files of a port end in, without the point."""
        return self.of_port.get(port, "parquet")

    def begin(self, port: str, file: FileWriter, first: pa.Table) -> RowsFile:
        """A port's rows in a new file; `first` are its first ones, which are yet to be written."""
        match ENDINGS[self.of(port)]:
            case "parquet":
                return _ParquetFile(file, first, self.codec)
            case "json":
                return _LinesFile(file, self.zone, None)
            case "csv":
                return _LinesFile(file, self.zone, csv_header(first.column_names))


class _ParquetFile:
    def __init__(self, file: FileWriter, first: pa.Table, codec: str) -> None:
        self._file = file
        # Or every page header would be a call of its own.
        self._sink = pa.BufferedOutputStream(pa.PythonFile(file, "w"), _BUFFER_BYTES)
        self._writer = parquet.ParquetWriter(
            self._sink,
            first.schema,
            compression=codec,
            use_dictionary=dictionary_columns(first),
            store_schema=False,
            store_decimal_as_integer=True,
            write_page_checksum=True,
        )

    def write(self, rows: pa.Table) -> None:
        """Add rows, as a row group."""
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    @property
    def size_bytes(self) -> int:
        """The bytes so far."""
        return int(self._sink.tell())

    def finish(self) -> int:
        """Make the whole file durable; gives its rows, by the footer that lies in it."""
        self._writer.close()
        self._sink.flush()
        self._file.finish()
        tail = self._file.tail(_FOOTER_BYTES)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            tail = self._file.tail(length)
        return int(parquet.read_metadata(pa.BufferReader(tail)).num_rows)


class _LinesFile:
    """A line a row; its rows are counted in the bytes that are written."""

    def __init__(self, file: FileWriter, zone: str, header: bytes | None) -> None:
        self._file = file
        self._zone = zone
        self._is_csv = header is not None
        self._rows = 0
        if header is not None:
            file.write(header)

    def write(self, rows: pa.Table) -> None:
        """Add rows."""
        for block in (csv_blocks if self._is_csv else json_blocks)(rows, self._zone):
            self._file.write(block.data)
            self._rows += rows_in(block, has_quotes=self._is_csv)

    @property
    def size_bytes(self) -> int:
        """The bytes so far."""
        return self._file.size_bytes

    def finish(self) -> int:
        """Make the whole file durable; gives its rows."""
        self._file.finish()
        return self._rows


RowsFile: TypeAlias = _ParquetFile | _LinesFile
"""Rows in a file of a format: `write` adds rows with the columns of the first ones, `finish` makes it durable, once."""


def rows_in(block: NDArray[np.uint8], *, has_quotes: bool) -> int:
    """The line ends in whole lines; of CSV, which `has_quotes`, those outside them: after an even number of quotes."""
    ends = np.flatnonzero(block == _LINE_END)
    if not has_quotes:
        return ends.size
    return int(np.count_nonzero(np.searchsorted(np.flatnonzero(block == _QUOTE), ends) % 2 == 0))


# --- read back


@contextmanager
def errors_of(file: Place) -> Iterator[None]:
    """Errors of reading a file are about the file: they are raised as IntegrityError."""
    try:
        yield
    except (
        *(KeyError, ValueError, TypeError, ArithmeticError, AttributeError),
        *(csv.Error, pa.ArrowException),
    ) as error:
        raise IntegrityError(f"{file}: cannot be read as an output: {type(error).__name__}: {error}") from error


@contextmanager
def parquet_file(file: Place) -> Iterator[parquet.ParquetFile]:
    """A Parquet file. Raises FileNotFoundError when a reader has taken it away."""
    opened = pa.OSFile(str(file.local)) if file.names.scheme == "file" else pa.PythonFile(open_file(file), "r")
    with opened:
        # Not as a data set: the folder's name may look like a partition.
        yield parquet.ParquetFile(opened)


def open_lines(file: Place) -> BinaryIO:
    """The lines of a file of JSON or CSV. Raises FileNotFoundError when a reader has taken it away."""
    return open_file(file)


def rows_of(file: Place, line_ends: int) -> int | None:
    """The rows of a file whose bytes have so many line ends; None for CSV, which has some in its fields.

    Raises:
        IntegrityError: it is no such file.
        FileNotFoundError: a reader has taken it away.
    """
    match format_of_name(file.path.name):
        case "parquet":
            with errors_of(file), parquet_file(file) as opened:
                return int(opened.metadata.num_rows)
        case "json":
            return line_ends
        case "csv" | None:
            return None
