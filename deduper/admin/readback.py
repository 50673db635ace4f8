"""Published files read back without Spark: columns as plain values, and what `_dedup` says of every row.

Plain values are those a digest is computed from (`digests.plain_value`): an int for everything that counts, times and
unscaled decimals included; a float; bytes for text and binary; None for null. The formats are those Spark writes:

    parquet  typed, read as Arrow columns
    json     one object a line, nulls left out; binary as Base64, NaN and the infinities as text; ten times slower
    csv      a head line, quotes doubled; an empty field is null, an empty text is quoted; _dedup is a JSON text

A file of another making may give wrong rows, never a wrong result: callers hold a checksum against it. Expiry keys are
as the store keeps them (`expiry_key`); those of the error port are left out, because they have no type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv, parquet

from bucket_store.places.place import Place
from deduper.admin.calendar_text import time_of_text
from deduper.admin.storage import arrow_file, text_file
from deduper.columns import Column, ColumnType, parse_columns
from deduper.config.expiry import CategoryExpiry, EventTimeExpiry
from deduper.config.model import Config
from deduper.core.digests import Plain, plain_value
from deduper.errors import IntegrityError
from deduper.tasks.dedup_column import DEDUP, expiry_ddl
from deduper.units import UNIT_US


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How the expiry keys in a job's outputs are to be read; None where rows carry none.

    `column` is the expiry column, worth `unit` steps; `first` is the type of `_dedup.first_seen.expiry`, which the rows
    carry when `has_first` is set.
    """

    column: Column | None
    unit: int
    first: ColumnType
    is_float: bool
    has_first: bool

    @classmethod
    def of(cls, config: Config) -> RowFormat:
        """That of a job."""
        scale = config.expiry_key_scale
        unit = UNIT_US[config.expiry.unit] if isinstance(config.expiry, EventTimeExpiry) and config.expiry.unit else 1
        column = None if isinstance(config.expiry, CategoryExpiry) else config.expiry_column
        return cls(
            column, unit, parse_columns(f"e {expiry_ddl(scale)}")[0].type, scale.is_float, config.store.first_seen
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of `read_judged`. `first_` ones are null for every row that names no first copy."""
        number = pa.float64() if self.is_float else pa.int64()
        return pa.schema(
            [
                ("verdict", pa.string()),
                ("reason", pa.string()),
                ("window", pa.int64()),
                ("source", pa.string()),
                ("position", pa.int64()),
                ("first_window", pa.int64()),
                ("first_source", pa.string()),
                ("first_position", pa.int64()),
                ("first_expiry", number),
                ("expiry", number),
            ]
        )


def read_judged(file: Place, rows: RowFormat, *, with_expiry: bool) -> pa.Table:
    """The rows of a published file in its order, as `RowFormat.schema` says; its ending says the format.

    Raises:
        IntegrityError: it is not such a file, or a value is none of its column's type.
        FileNotFoundError: a reader has taken it away.
    """
    column = rows.column if with_expiry else None
    columns = () if column is None else (column,)
    with errors_of(file):
        if file.path.suffix == ".parquet":
            return _judged_of_arrow(_parquet_table(file, columns), rows, column)
        texts = _text_rows(file, columns)
        return _judged_of_text(
            texts.dedups, [None] * len(texts.dedups) if column is None else texts.plain(column), rows
        )


@contextmanager
def errors_of(file: Place) -> Iterator[None]:
    """Errors of reading a file are about the file."""
    try:
        yield
    except (KeyError, ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException) as error:
        raise IntegrityError(f"{file}: cannot be read as an output: {type(error).__name__}: {error}") from error


def _parquet_table(file: Place, columns: Sequence[Column]) -> pa.Table:
    # Not as a data set: the folder's name may look like a partition.
    with arrow_file(file) as opened:
        return parquet.ParquetFile(opened).read(columns=[*(column.name for column in columns), DEDUP])


def _judged_of_arrow(table: pa.Table, rows: RowFormat, column: Column | None) -> pa.Table:
    dedup = table.column(DEDUP)
    count = len(table)

    def field(*path: str) -> pa.ChunkedArray:
        return pc.struct_field(dedup, list(path))

    def nothing(kind: pa.DataType) -> pa.Array:
        return pa.nulls(count, kind)

    number = rows.schema.field("expiry").type
    first = [nothing(rows.schema.field(at).type) for at in range(5, 9)]
    if rows.has_first:
        expiry = field("first_seen", "expiry")
        first = [field("first_seen", name) for name in ("window", "source", "position")]
        first.append(_steps_of_arrow(expiry, rows.first, 1, number))
    own = (
        nothing(number)
        if column is None
        else _steps_of_arrow(table.column(column.name), column.type, rows.unit, number)
    )
    columns = [*(field(name) for name in ("verdict", "reason", "window", "source", "position")), *first, own]
    return pa.table(columns, names=rows.schema.names).cast(rows.schema)


def _steps_of_arrow(values: pa.ChunkedArray, kind: ColumnType, unit: int, number: pa.DataType) -> Any:
    if kind.name == "timestamp":
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    if kind.name == "decimal":
        return pa.array([None if value is None else plain_value(value, kind) for value in values.to_pylist()], number)
    return values.cast(number) if unit == 1 else pc.multiply_checked(values.cast(number), unit)


def _judged_of_text(dedups: Sequence[dict[str, Any]], own: Sequence[Any], rows: RowFormat) -> pa.Table:
    columns: list[list[Any]] = [
        [dedup.get(name) for dedup in dedups] for name in ("verdict", "reason", "window", "source", "position")
    ]
    firsts = [dedup.get("first_seen") or {} for dedup in dedups]
    columns += [[first.get(name) for first in firsts] for name in ("window", "source", "position")]
    columns.append([plain_of_json(first.get("expiry"), rows.first) for first in firsts])
    columns.append([None if value is None else value * rows.unit for value in own])
    return pa.table(columns, schema=rows.schema)


@dataclass(frozen=True, slots=True)
class _TextRows:
    """Rows of a JSON or CSV file: values by column name as they are written, and `_dedup` of each row."""

    written: dict[str, list[Any]]
    dedups: list[dict[str, Any]]
    plain_of: Callable[[Any, ColumnType], Plain | None]

    def plain(self, column: Column) -> list[Plain | None]:
        """The values of a column."""
        return [self.plain_of(value, column.type) for value in self.written[column.name]]


def _text_rows(file: Place, columns: Sequence[Column]) -> _TextRows:
    names = [column.name for column in columns]
    match file.path.suffix:
        case ".json":
            with text_file(file) as lines:
                rows = [json.loads(line, parse_float=JsonNumber) for line in lines]
            written = {name: [row.get(name) for row in rows] for name in names}
            return _TextRows(written, [row[DEDUP] for row in rows], plain_of_json)
        case ".csv":
            texts = csv_texts(file, [*names, DEDUP])
            dedups = [json.loads(text or "", parse_float=JsonNumber) for text in texts[DEDUP]]
            return _TextRows(texts, dedups, plain_of_field)
    raise KeyError(file.path.suffix)


class JsonNumber(str):
    """A JSON number as it is written: a decimal must not pass through a float."""

    __slots__ = ()


def plain_of_json(value: Any, kind: ColumnType) -> Plain | None:
    """A value of a JSON port; numbers are `JsonNumber`s."""
    if value is None:
        return None
    if kind.name == "binary":
        return base64.b64decode(value)
    if isinstance(value, bool):
        return plain_value(value, kind)
    return _plain_of_text(str(value), kind)


def csv_texts(file: Place, names: Sequence[str]) -> dict[str, list[str | None]]:
    """These columns of a CSV port's file, as texts; None for null."""
    with arrow_file(file) as opened:
        if not opened.size():
            return {name: [] for name in names}
        table = csv.read_csv(
            opened,
            parse_options=csv.ParseOptions(double_quote=True, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=list(names),
                column_types={name: pa.string() for name in names},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    return {name: table.column(name).to_pylist() for name in names}


def plain_of_field(text: str | None, kind: ColumnType) -> Plain | None:
    """A value of a CSV port; None for null."""
    return None if text is None else _plain_of_text(text, kind)


def _plain_of_text(text: str, kind: ColumnType) -> Plain:
    """A value of a CSV port."""
    match kind.name:
        case "string":
            return text.encode()
        case "binary":
            return text.encode()  # what CSV holds of it is text
        case "boolean":
            return plain_value({"true": True, "false": False}[text], kind)
        case "float" | "double":
            return plain_value(float(text), kind)
        case "decimal":
            return plain_value(Decimal(text), kind)
        case "date" | "timestamp" | "timestamp_ntz":
            return time_of_text(text, kind)
        case _:
            return plain_value(int(text), kind)
