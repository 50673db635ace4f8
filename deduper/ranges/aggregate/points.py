"""Times and values as whole numbers in their order, and ranges of times with both ends inside. PURE.

Every type of time is discrete: µs, days, integers, and doubles in their order. So an open end is the neighbour's
closed one, and the four kinds of ends become one. Of values NaN is greater than every number and equal to itself, as in
Spark; -0.0 comes before 0.0, so that equal is identical.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
"""The points of an end that is open for ever."""

ENDS = ("[]", "[)", "(]", "()")


def as_points(times: pa.Array) -> Ints:
    """Whole numbers in the order of the times, of one type throughout; 0 for null. NaN has no place."""
    filled = times
    if pa.types.is_floating(times.type):
        numbers = filled.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        bits = numbers.view(np.int64)
        ordered: Ints = bits ^ ((bits >> 63) & LAST)
        return ordered
    if pa.types.is_date32(times.type):
        filled = times.cast(pa.int32())
    points: Ints = filled.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return points


def closed_ranges(start: pa.Array, end: pa.Array, ends: str) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """First and last point of each range, and whether it has any; null stands for an end that is open for ever."""
    first, last = as_points(start), as_points(end)
    has_start, has_end = (~side.is_null().to_numpy(zero_copy_only=False) for side in (start, end))
    has_points = np.ones(len(first), np.bool_)
    if ends[0] == "(":
        has_points &= ~(has_start & (first == LAST))
        first = first + (has_start & has_points)
    if ends[1] == ")":
        has_points &= ~(has_end & (last == FIRST))
        last = last - (has_end & has_points)
    first, last = np.where(has_start, first, FIRST), np.where(has_end, last, LAST)
    return first, last, has_points & (first <= last)


def ranks(values: pa.Array) -> Ints:
    """A number for each value, equal for equal values and ascending with them; there is no null."""
    if pa.types.is_integer(values.type):
        numbers: Ints = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers
    if pa.types.is_floating(values.type):
        doubles = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        bits = np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)
        ordered: Ints = bits ^ ((bits >> 63) & LAST)
        return ordered
    dense: Ints = pc.rank(values, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    return dense
