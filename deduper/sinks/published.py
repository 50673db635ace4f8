"""Published files of the ports, opened and read back without Spark: what they are by their names, and their rows.

parquet  typed, read as Arrow columns
json     one object a line, nulls left out; binary as Base64, NaN and the infinities as text; ten times slower
csv      a head line, quotes doubled; an empty field is null, an empty text is quoted; `_dedup` is a JSON text
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from bucket_store.places.place import Place
from bucket_store.places.reading import open_file
from deduper.errors import IntegrityError
from deduper.sinks.names import Format
from deduper.tasks.dedup_column import DEDUP


def format_of(file: Place) -> Format:
    """The format that a file's ending names.

    Raises:
        IntegrityError: it names none.
    """
    found = Format.of(file.path.name)
    if found is None:
        raise IntegrityError(f"{file}: cannot be read as an output: its name has no ending of a port's format")
    return found


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


class JsonNumber(str):
    """A JSON number as it is written: a decimal must not pass through a float."""

    __slots__ = ()


def json_of(text: str | bytes) -> dict[str, Any]:
    """An object of a JSON port, or `_dedup` of CSV."""
    found: dict[str, Any] = json.loads(text, parse_float=JsonNumber)
    return found


def dedup_of_rows(file: Place) -> Iterator[dict[str, Any]]:
    """`_dedup` of every row of a JSON or CSV file, in the order of the rows; one row is in memory at a time."""
    if format_of(file) is Format.JSON:
        with _text_file(file) as lines:
            yield from (json.loads(line)[DEDUP] for line in lines)
    else:
        csv.field_size_limit(sys.maxsize)
        with _text_file(file, newline="") as lines:
            rows: csv.DictReader[str] = csv.DictReader(lines)
            yield from (json.loads(row[DEDUP]) for row in rows)


def json_rows(file: Place) -> list[dict[str, Any]]:
    """All rows of a JSON file, with `_dedup`; numbers with a fraction are `JsonNumber`s."""
    with _text_file(file) as lines:
        return [json_of(line) for line in lines]


def csv_texts(file: Place, names: Sequence[str]) -> dict[str, list[str | None]]:
    """These columns of a CSV file, as texts; None for null."""
    with open_file(file) as stream, pa.PythonFile(stream, "r") as opened:
        if not opened.size():
            return {name: [] for name in names}
        table = arrow_csv.read_csv(
            opened,
            parse_options=arrow_csv.ParseOptions(double_quote=True, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(names),
                column_types={name: pa.string() for name in names},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    return {name: table.column(name).to_pylist() for name in names}


def _text_file(file: Place, newline: str = "\n") -> TextIO:
    return io.TextIOWrapper(open_file(file), encoding="utf-8", newline=newline)
