"""Rows of published files: columns as plain values, and what `_dedup` says of every row.

Plain values are those a digest is computed from (`digests.plain_value`): an int for everything that counts, times and
unscaled decimals included; a float; bytes for text and binary; None for null.

A file of another making may give wrong rows, never a wrong result: callers hold a checksum against it. Expiry keys are
as the store keeps them (`expiry_key`); those of the error port are left out, because they have no type.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

from bucket_store.places.place import Place
from deduper.admin.calendar_text import time_of_text
from deduper.columns import Column, ColumnType, parse_columns
from deduper.config.expiry import CategoryExpiry, EventTimeExpiry
from deduper.config.model import Config
from deduper.core.digests import Plain, plain_value
from deduper.sinks.names import Format
from deduper.sinks.published import csv_texts, errors_of, format_of, json_of, json_rows, parquet_file
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
        if format_of(file) is Format.PARQUET:
            return _judged_of_arrow(_parquet_table(file, columns), rows, column)
        texts = _text_rows(file, columns)
        return _judged_of_text(
            texts.dedups, [None] * len(texts.dedups) if column is None else texts.plain(column), rows
        )


def _parquet_table(file: Place, columns: Sequence[Column]) -> pa.Table:
    with parquet_file(file) as opened:
        return opened.read(columns=[*(column.name for column in columns), DEDUP])


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
    if format_of(file) is Format.JSON:
        rows = json_rows(file)
        return _TextRows(
            {name: [row.get(name) for row in rows] for name in names}, [row[DEDUP] for row in rows], plain_of_json
        )
    texts = csv_texts(file, [*names, DEDUP])
    return _TextRows(texts, [json_of(text or "") for text in texts[DEDUP]], plain_of_field)


def plain_of_json(value: Any, kind: ColumnType) -> Plain | None:
    """A value of a JSON port; numbers are `JsonNumber`s."""
    if value is None:
        return None
    if kind.name == "binary":
        return base64.b64decode(value)
    if isinstance(value, bool):
        return plain_value(value, kind)
    return _plain_of_text(str(value), kind)


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
