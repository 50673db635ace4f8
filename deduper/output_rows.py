"""Published rows read back without Spark: the columns of a file that a port wrote, as plain values.

Plain is what a digest is computed from (`digests.plain_value`): an int for everything that counts, times and unscaled
decimals included; a float; bytes for text and binary; None for null. Read are the files as Spark writes them:

    parquet  typed
    json     one object a line, nulls left out; binary as Base64, NaN and the infinities as text
    csv      a head line, quotes doubled; an empty field is null, an empty text is quoted; _dedup is a JSON text

A file of another making may give wrong rows, never a wrong result: whoever uses them holds a checksum against it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from deduper.ddl import Column, ColumnType
from deduper.digests import Plain, plain_value
from deduper.errors import IntegrityError

DEDUP = "_dedup"


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The rows of one file: `values` by column name, and what `_dedup` says of where they came from."""

    values: dict[str, list[Plain | None]]
    windows: NDArray[np.int64]
    sources: list[str]
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sources)


def read_rows(file: Path, columns: Sequence[Column]) -> OutputRows:
    """These columns of a published file; its ending says the format.

    Raises:
        IntegrityError: it is not such a file, or a value is none of its column's type.
    """
    readers = {".parquet": _read_parquet, ".json": _read_json, ".csv": _read_csv}
    try:
        return readers[file.suffix](file, columns)
    except (KeyError, ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException) as error:
        raise IntegrityError(f"{file}: cannot be read as an output: {type(error).__name__}: {error}") from error


def _read_parquet(file: Path, columns: Sequence[Column]) -> OutputRows:
    names = [column.name for column in columns]
    table = parquet.ParquetFile(file).read(columns=[*names, DEDUP])
    dedup = table.column(DEDUP).combine_chunks()
    return OutputRows(
        {column.name: plain_of_arrow(table.column(column.name), column.type) for column in columns},
        dedup.field("window").to_numpy(zero_copy_only=False).astype(np.int64),
        dedup.field("source").to_pylist(),
        dedup.field("position").to_numpy(zero_copy_only=False).astype(np.int64),
    )


def plain_of_arrow(values: pa.ChunkedArray, kind: ColumnType) -> list[Plain | None]:
    """The values of a column as Arrow holds it."""
    match kind.name:
        case "string":
            return _list(values.cast(pa.binary()))
        case "timestamp" | "timestamp_ntz":
            return _list(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()))
        case "date":
            return _list(values.cast(pa.date32()).cast(pa.int32()))
        case "boolean":
            return _list(values.cast(pa.int8()))
        case "decimal":
            return [None if value is None else plain_value(value, kind) for value in values.to_pylist()]
        case _:
            return _list(values)


def _list(values: pa.ChunkedArray) -> list[Plain | None]:
    plain: list[Plain | None] = values.to_pylist()
    return plain


def _read_json(file: Path, columns: Sequence[Column]) -> OutputRows:
    with file.open(encoding="utf-8", newline="\n") as lines:
        rows = [json.loads(line, parse_float=JsonNumber) for line in lines]
    values = {column.name: [plain_of_json(row.get(column.name), column.type) for row in rows] for column in columns}
    return _with_places(values, [row[DEDUP] for row in rows])


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
    return plain_of_text(str(value), kind)


def _read_csv(file: Path, columns: Sequence[Column]) -> OutputRows:
    texts = csv_texts(file, [*(column.name for column in columns), DEDUP])
    values = {
        column.name: [None if text is None else plain_of_text(text, column.type) for text in texts[column.name]]
        for column in columns
    }
    return _with_places(values, [json.loads(text or "") for text in texts[DEDUP]])


def csv_texts(file: Path, names: Sequence[str]) -> dict[str, list[str | None]]:
    """These columns of a CSV port's file, as texts; None for null."""
    with file.open("rb") as stream:
        if not stream.read(1):
            return {name: [] for name in names}
    table = csv.read_csv(
        file,
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


def _with_places(values: dict[str, list[Plain | None]], dedups: Sequence[dict[str, Any]]) -> OutputRows:
    return OutputRows(
        values,
        np.array([dedup["window"] for dedup in dedups], np.int64),
        [dedup["source"] for dedup in dedups],
        np.array([dedup["position"] for dedup in dedups], np.int64),
    )


def plain_of_text(text: str, kind: ColumnType) -> Plain:
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
        case "date":
            return plain_value(date.fromisoformat(text), kind)
        case "timestamp" | "timestamp_ntz":
            return plain_value(datetime.fromisoformat(_YEAR_SIGN.sub("", text)), kind)
        case _:
            return plain_value(int(text), kind)


_YEAR_SIGN = re.compile(r"^\+(?=\d{4}-)")
