"""The statistics of a Delta file, from its Parquet footer: what lets readers of the table skip it.

A column without bounds is no safe way out: deltalake's `to_pyarrow_dataset` compares with null then, and passes over
the file for any filter on the column. So all kinds that its own writer gives bounds have them here. A long text is cut:
its least value to the beginning, its greatest to the beginning and a sign that is greater than any other. Times have
milliseconds, so the greatest is rounded up.

Left out: columns in nested types, and times beyond the years 1 to 9999.

A file with NaN or an infinity has the number of its rows alone, so every reader reads it. No bounds serve all: NaN as
the greatest value, which Spark writes, makes deltalake's dataset give rows that a filter does not let through; any
number, and an infinity, makes Spark skip the file for `x = NaN`; a column without bounds beside others is as above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow.parquet as pq

_MOST_COLUMNS = 32
_LONGEST_TEXT = 32
_GREATEST_SIGN = "\U0010ffff"
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
"""Greatest times behind it are cut, as the format cuts all."""

encode_statistics = msgspec.json.Encoder(decimal_format="number").encode
"""As JSON; decimals are numbers with all their digits."""


@dataclass(frozen=True, slots=True)
class FloatBounds:
    """Bounds of a column of floating-point numbers, which footers do not have; None: it has no values.

    `is_finite`: it has neither NaN nor an infinity; else the bounds say nothing.
    """

    least: float | None = None
    greatest: float | None = None
    nulls: int = 0
    is_finite: bool = True


def file_statistics(footer: pq.FileMetaData, floats: Mapping[str, FloatBounds]) -> dict[str, Any]:
    """`numRecords`, `minValues`, `maxValues`, `nullCount` of a file. `floats`: all such columns."""
    if not all(bounds.is_finite for bounds in floats.values()):
        return {"numRecords": footer.num_rows}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(min(footer.num_columns, _MOST_COLUMNS)):
        kind = footer.schema.column(column)
        name = kind.path
        if kind.max_repetition_level or kind.max_definition_level > 1:
            continue
        if name in floats:
            bounds = floats[name]
            nulls[name] = bounds.nulls
            if bounds.least is not None and bounds.greatest is not None:
                least[name], greatest[name] = bounds.least, bounds.greatest
            continue
        chunks = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        low, high = _bounds(chunks, is_text=kind.logical_type.type == "STRING")
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _bounds(chunks: list[pq.Statistics], *, is_text: bool) -> tuple[Any, Any]:
    """The least and the greatest value as JSON has them; None where one is left out."""
    # A chunk of nulls alone has no bounds; any other without them has values that are not known.
    filled = [chunk for chunk in chunks if chunk.has_min_max or chunk.num_values]
    if not filled:
        return None, None
    if not all(chunk.has_min_max for chunk in filled):
        # Footers have no bounds of texts of some thousand characters.
        return ("", _GREATEST_SIGN * _LONGEST_TEXT) if is_text else (None, None)
    try:
        low, high = min(chunk.min for chunk in filled), max(chunk.max for chunk in filled)
    except (OverflowError, ValueError):
        return None, None  # a time before the year 1 or after 9999
    return _shown(low, is_greatest=False), _shown(high, is_greatest=True)


def _shown(value: Any, *, is_greatest: bool) -> Any:
    """A bound as JSON has it; None when it is left out."""
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=UTC)
        if is_greatest and utc.microsecond % 1000 and utc < _LAST:
            utc += timedelta(milliseconds=1)
        text = utc.replace(tzinfo=None).isoformat(timespec="milliseconds")  # strftime writes the year 1 without zeros
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return _cut(value, is_greatest=is_greatest)
    return value if isinstance(value, bool | int | Decimal) else None


def _cut(text: str, *, is_greatest: bool) -> str:
    """The text, or one that is no longer than some signs and is not beyond it."""
    if len(text) <= _LONGEST_TEXT:
        return text
    begin, rest = text[:_LONGEST_TEXT], text[_LONGEST_TEXT:]
    return begin + _GREATEST_SIGN * (len(rest) - len(rest.lstrip(_GREATEST_SIGN)) + 1) if is_greatest else begin
