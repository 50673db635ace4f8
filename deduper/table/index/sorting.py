"""PURE. Keys in order: digests spread evenly, so each has its place nearly by its value, and few moves remain.

Within a bucket a digest's place is nearly its share of the range of all `hi` times the bucket's count. Rows are counted
by these places, dealt out to them, and then sorted by insertion within each place, which has a key or two on average.
That takes a quarter of the time of sorting by comparisons. Keys that do not spread, or that repeat one another too
often, are left to those.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from bucket_store.compiled import kernel

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C")
_DIGESTS = types.Array(types.uint64, 2, "C")

_HALF = np.uint64(32)
_MOVES_A_KEY = 8
_DENSE = 1 << 16
"""So many buckets have numbers of their own, without a look at which there are."""


@kernel(types.boolean(_I64_IN, types.int64, _U64_IN, _U64_IN, types.uint64, types.uint64, _I64, _I64, _DIGESTS))
def _sort(
    bucket: Int64s,
    least: int,
    hi: UInt64s,
    lo: UInt64s,
    least_hi: int,
    shift: int,
    starts: Int64s,
    rows: Int64s,
    digests: UInt64s,
) -> bool:
    """Fills `starts` (where each bucket from `least` on begins, and the end), `rows` and `digests`; False: gave up.

    `hi - least_hi`, shifted left by `shift`, spreads over 64 bits.
    """
    count = bucket.shape[0]
    for row in range(count):
        starts[bucket[row] - least + 1] += 1
    for code in range(1, starts.shape[0]):
        starts[code] += starts[code - 1]
    ends = np.zeros(count + 1, np.uint32)
    for row in range(count):
        begin = starts[bucket[row] - least]
        width = np.uint64(starts[bucket[row] - least + 1] - begin)
        ends[begin + np.int64(((((hi[row] - least_hi) << shift) >> _HALF) * width) >> _HALF) + 1] += 1
    for place in range(1, count + 1):
        ends[place] += ends[place - 1]
    for row in range(count):  # from here on `ends` has the end of the rows that a place has so far
        begin = starts[bucket[row] - least]
        width = np.uint64(starts[bucket[row] - least + 1] - begin)
        place = begin + np.int64(((((hi[row] - least_hi) << shift) >> _HALF) * width) >> _HALF)
        at = ends[place]
        ends[place] = at + 1
        rows[at], digests[at, 0], digests[at, 1] = row, hi[row], lo[row]
    moves = 0
    begin = 0
    for place in range(count):
        end = np.int64(ends[place])
        for at in range(begin + 1, end):
            row, high, low = rows[at], digests[at, 0], digests[at, 1]
            to = at
            while to > begin and (
                digests[to - 1, 0] > high or (digests[to - 1, 0] == high and digests[to - 1, 1] > low)
            ):
                rows[to], digests[to, 0], digests[to, 1] = rows[to - 1], digests[to - 1, 0], digests[to - 1, 1]
                to -= 1
            rows[to], digests[to, 0], digests[to, 1] = row, high, low
            moves += at - to
        if moves > _MOVES_A_KEY * count:
            return False
        begin = end
    return True


def sorted_rows(bucket: Int64s, hi: UInt64s, lo: UInt64s) -> tuple[Int64s, Int64s, UInt64s]:
    """(rows by (bucket, hi, lo), their buckets, their digests as uint64[n, 2]); equal keys in the order of the rows."""
    bucket, hi, lo = np.ascontiguousarray(bucket), np.ascontiguousarray(hi), np.ascontiguousarray(lo)
    count = len(bucket)
    rows, digests = np.empty(count, np.int64), np.empty((count, 2), np.uint64)
    if not count:
        return rows, bucket, digests
    least, greatest = int(bucket.min()), int(bucket.max())
    different: Int64s | None = None
    codes = bucket
    if greatest - least >= max(count, _DENSE):
        different, codes = np.unique(bucket, return_inverse=True)
        least, greatest = 0, len(different) - 1
    starts = np.zeros(greatest - least + 2, np.int64)
    least_hi = int(hi.min())
    shift = min(64 - (int(hi.max()) - least_hi).bit_length(), 63)
    if not _sort(codes, least, hi, lo, least_hi, shift, starts, rows, digests):
        rows = np.lexsort((lo, hi, bucket))
        digests[:, 0], digests[:, 1] = hi[rows], lo[rows]
        return rows, bucket[rows], digests
    found = np.arange(least, greatest + 1) if different is None else different
    return rows, np.repeat(found, np.diff(starts)), digests
