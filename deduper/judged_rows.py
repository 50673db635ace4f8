"""What the rows of a published file say of their judgement: `_dedup` and the expiry key, as columns, without Spark.

Parquet is read as Arrow columns; JSON and CSV line by line, ten times slower. Expiry keys are as the store keeps them
(`points`); those of the error port are left out, since they may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from deduper.config import CategoryExpiry, Config, EventTimeExpiry
from deduper.ddl import Column, ColumnType, parse_columns
from deduper.errors import IntegrityError
from deduper.output_rows import DEDUP, JsonNumber, csv_texts, plain_of_arrow, plain_of_json, plain_of_text
from deduper.points import PointScale

UNIT_US = {"us": 1, "ms": 1_000, "s": 1_000_000}


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
        scale = config.point_scale
        unit = UNIT_US[config.expiry.unit] if isinstance(config.expiry, EventTimeExpiry) and config.expiry.unit else 1
        column = None if isinstance(config.expiry, CategoryExpiry) else config.expiry_column
        return cls(column, unit, _first_type(scale), scale.is_float, config.store.first_seen)

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


def read_judged(file: Path, rows: RowFormat, *, with_expiry: bool) -> pa.Table:
    """The rows of a published file in its order, as `RowFormat.schema` says; its ending says the format.

    Raises:
        IntegrityError: it is not such a file, or a value is none of its column's type.
        FileNotFoundError: a reader has taken it away.
    """
    readers = {".parquet": _read_parquet, ".json": _read_json, ".csv": _read_csv}
    column = rows.column if with_expiry else None
    try:
        return readers[file.suffix](file, rows, column)
    except (KeyError, ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException) as error:
        raise IntegrityError(f"{file}: cannot be read as an output: {type(error).__name__}: {error}") from error


def _first_type(scale: PointScale) -> ColumnType:
    """The type that `judge_plan` gives to the expiry key of a first copy."""
    if scale.is_time:
        text = "timestamp"
    elif scale.is_float:
        text = "double"
    else:
        text = f"decimal(18,{scale.scale})" if scale.scale else "bigint"
    return parse_columns(f"e {text}")[0].type


def _read_parquet(file: Path, rows: RowFormat, column: Column | None) -> pa.Table:
    names = [DEDUP] if column is None else [DEDUP, column.name]
    # Not as a data set: the folder's name may look like a partition.
    table = parquet.ParquetFile(file).read(columns=names)
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
        return pa.array(plain_of_arrow(values, kind), number)
    return values.cast(number) if unit == 1 else pc.multiply_checked(values.cast(number), unit)


def _read_json(file: Path, rows: RowFormat, column: Column | None) -> pa.Table:
    with file.open(encoding="utf-8", newline="\n") as lines:
        records = [json.loads(line, parse_float=JsonNumber) for line in lines]
    own = (
        [None] * len(records)
        if column is None
        else [plain_of_json(row.get(column.name), column.type) for row in records]
    )
    return _table([record[DEDUP] for record in records], own, rows)


def _read_csv(file: Path, rows: RowFormat, column: Column | None) -> pa.Table:
    texts = csv_texts(file, [DEDUP] if column is None else [DEDUP, column.name])
    dedups = [json.loads(text or "", parse_float=JsonNumber) for text in texts[DEDUP]]
    own: list[Any] = [None] * len(dedups)
    if column is not None:
        own = [None if text is None else plain_of_text(text, column.type) for text in texts[column.name]]
    return _table(dedups, own, rows)


def _table(dedups: Sequence[dict[str, Any]], own: Sequence[Any], rows: RowFormat) -> pa.Table:
    columns: list[list[Any]] = [
        [dedup.get(name) for dedup in dedups] for name in ("verdict", "reason", "window", "source", "position")
    ]
    firsts = [dedup.get("first_seen") or {} for dedup in dedups]
    columns += [[first.get(name) for first in firsts] for name in ("window", "source", "position")]
    columns.append([plain_of_json(first.get("expiry"), rows.first) for first in firsts])
    columns.append([None if value is None else value * rows.unit for value in own])
    return pa.table(columns, schema=rows.schema)
