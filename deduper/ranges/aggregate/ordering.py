"""Values of any ordered type as whole numbers in their order. PURE.

NaN is greater than every number and equal to itself, as in Spark; -0.0 comes before 0.0, so that equal is identical.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deduper.ranges.aggregate.points import LAST, Ints


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
