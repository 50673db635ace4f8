"""Values of published files as plain values, those that a digest is computed from (`digests.plain_value`). PURE.

An int for everything that counts, times and unscaled decimals included; a float; bytes for text and binary; None for
null. Texts of dates and times are ISO 8601 in the proleptic Gregorian calendar, of every year, where Python's
`datetime` ends at the years 1 and 9999: four digits of the year or more, with a sign below year 0 and beyond 9999. The
calendar repeats every 400 years, so each year is read as one of 2000 to 2399.
"""

from __future__ import annotations

import base64
import re
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from deduper.columns import ColumnType
from deduper.core.digests import Plain, plain_value

_YEAR = re.compile(r"([+-]?\d{4,7})(-.+)")
_CYCLE_DAYS = 146_097
_CYCLE_YEARS = 400
_DAY_US = 86_400_000_000
_BEGIN = date(2000, 1, 1)


def arrow_of(values: pa.ChunkedArray, kind: ColumnType) -> pa.ChunkedArray:
    """A column of a Parquet port as its plain values; decimals stay as they are."""
    match kind.name:
        case "string" | "binary":
            return values.cast(pa.binary())
        case "timestamp" | "timestamp_ntz":
            return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
        case "date":
            return values.cast(pa.date32()).cast(pa.int32())
        case "boolean":
            return values.cast(pa.int8())
        case _:
            return values


def of_arrow(values: pa.ChunkedArray, kind: ColumnType) -> list[Plain | None]:
    """The plain values of a column of a Parquet port."""
    plain: list[Any] = arrow_of(values, kind).to_pylist()
    return plain if kind.name != "decimal" else [None if one is None else plain_value(one, kind) for one in plain]


def of_json(value: Any, kind: ColumnType) -> Plain | None:
    """A value of a JSON port; numbers are `JsonNumber`s."""
    if value is None:
        return None
    if kind.name == "binary":
        return base64.b64decode(value)
    return plain_value(value, kind) if isinstance(value, bool) else of_field(str(value), kind)


def of_row(value: Any, kind: ColumnType) -> Plain:
    """A value of a row of any port but null: of Parquet as Python has it, of JSON or CSV as it is written."""
    if isinstance(value, str | bool | int | float):
        plain = of_json(value, kind)
        assert plain is not None
        return plain
    return plain_value(value, kind)


def of_field(text: str | None, kind: ColumnType) -> Plain | None:
    """A value of a CSV port; None for null."""
    if text is None:
        return None
    match kind.name:
        case "string" | "binary":
            return text.encode()  # what CSV holds of binary is text
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


def time_of_text(text: str, kind: ColumnType) -> int:
    """Plain value of a `date`, a `timestamp` (with a zone) or a `timestamp_ntz` (without): days or µs since 1970.

    Raises:
        ValueError: the text is none, or lies beyond what the type holds.
    """
    parts = _YEAR.fullmatch(text)
    if parts is None:
        raise ValueError(f"`{text}` is no {kind.text}")
    cycles, year = divmod(int(parts[1]) - _BEGIN.year, _CYCLE_YEARS)
    near = f"{_BEGIN.year + year}{parts[2]}"
    is_date = kind.name == "date"
    plain = plain_value(date.fromisoformat(near) if is_date else datetime.fromisoformat(near), kind)
    value = int(plain) + cycles * _CYCLE_DAYS * (1 if is_date else _DAY_US)
    if not -1 << (31 if is_date else 63) <= value < 1 << (31 if is_date else 63):
        raise ValueError(f"`{text}` is beyond {kind.text}")
    return value
