"""Rows of events and ranges: whole columns, and which rows cannot be answered, and why. PURE.

`batch.bad_rows` has the same rules as texts of SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deduper.errors import UsageError
from deduper.ranges.aggregate.points import as_points

Bools = NDArray[np.bool_]
Reasons = list[tuple[str, Bools]]
"""Reasons with the rows for which they hold; of several the first counts."""
DAY_US = 86_400_000_000


def whole(column: Any) -> pa.Array:
    """A column, of chunks or not, as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def event_reasons(events: pa.Table, on: Sequence[str], time: str) -> Reasons:
    """Why an event is bad."""
    return [
        ("null_id", _has_null(events, on)),
        ("null_time", _has_null(events, (time,))),
        *_nan("nan_time", events, time),
    ]


def range_reasons(ranges: pa.Table, on: Sequence[str], start: str, end: str, longest_us: int | None) -> Reasons:
    """Why a range is bad; a null start or end is open for ever.

    Raises:
        UsageError: a greatest length for times that are numbers.
    """
    first, last = whole(ranges[start]), whole(ranges[end])
    has_ends = ~_has_null(ranges, (start, end))
    begin, stop = as_points(first), as_points(last)
    reasons = [
        ("null_id", _has_null(ranges, on)),
        *_nan("nan_end_point", ranges, start, end),
        ("start_after_end", has_ends & (begin > stop)),
    ]
    if longest_us is not None:
        longest = np.uint64(longest_us // _step_us(start, first.type))
        reasons.append(("too_long", ~has_ends | (stop.view(np.uint64) - begin.view(np.uint64) > longest)))
    return reasons


def first_reasons(rows: int, reasons: Reasons) -> Reasons:
    """Each reason with the rows for which it is the first that holds."""
    free = np.ones(rows, np.bool_)
    found = []
    for name, holds in reasons:
        found.append((name, holds & free))
        free &= ~holds
    return found


def _has_null(rows: pa.Table, columns: Sequence[str]) -> Bools:
    """Whether one of the columns is null."""
    found = np.zeros(rows.num_rows, np.bool_)
    for name in columns:
        if rows[name].null_count:
            found |= whole(rows[name]).is_null().to_numpy(zero_copy_only=False)
    return found


def _nan(reason: str, rows: pa.Table, *points: str) -> Reasons:
    """The reason, if the times are of a type that has NaN."""
    if not pa.types.is_floating(rows.schema.field(points[0]).type):
        return []
    found = np.zeros(rows.num_rows, np.bool_)
    for name in points:
        found |= pc.fill_null(pc.is_nan(whole(rows[name])), False).to_numpy(zero_copy_only=False)
    return [(reason, found)]


def _step_us(name: str, found: pa.DataType) -> int:
    """µs from one point of a time to the next."""
    if pa.types.is_date32(found):
        return DAY_US
    if pa.types.is_timestamp(found):
        return 1
    raise UsageError(f"`{name}` is a number, so a range has no length in time; leave out the greatest length")
