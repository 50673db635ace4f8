"""Points sorted inside their groups: dealt to the groups, then a radix sort of each. PURE.

A group is sorted by its points' distances from its least one, 8 or 11 bits in a pass from the lowest up, and by no more
bits than its greatest distance has. All distances fit 64 bits without a sign, so a point far away costs passes and
nothing else. Most groups fit the processor's cache, which one sort of all rows does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.points import Ints

_FEW = 32
"""Rows of a group that are sorted by insertion: digits of them would cost more."""
_MANY, _LESS_BITS, _MORE_BITS = 8192, 8, 11
"""Groups of so many rows pay for the counters of a wider digit with fewer passes."""


@kernel()
def _insertion_sort(keys: NDArray[Any], values: NDArray[Any]) -> None:
    for at in range(1, len(keys)):
        key, value, to = keys[at], values[at], at
        while to > 0 and keys[to - 1] > key:
            keys[to], values[to] = keys[to - 1], values[to - 1]
            to -= 1
        keys[to], values[to] = key, value


@kernel()
def _radix_sort(
    keys: NDArray[Any], values: NDArray[Any], spare_keys: NDArray[Any], spare_values: NDArray[Any], counters: Ints
) -> None:
    count, bits = len(keys), _LESS_BITS if len(keys) < _MANY else _MORE_BITS
    mask = np.uint64((1 << bits) - 1)
    least = most = keys[0]
    for at in range(count):
        least, most = min(least, keys[at]), max(most, keys[at])
    shift, is_in_spare = np.uint64(0), False
    while shift < np.uint64(64) and (most - least) >> shift:
        counters[: 1 << bits] = 0
        for at in range(count):
            counters[np.int64((keys[at] - least) >> shift & mask)] += 1
        begin = 0
        for slot in range(1 << bits):
            begin, counters[slot] = begin + counters[slot], begin
        for at in range(count):
            digit = np.int64((keys[at] - least) >> shift & mask)
            to = counters[digit]
            counters[digit] = to + 1
            spare_keys[to], spare_values[to] = keys[at], values[at]
        keys, spare_keys, values, spare_values = spare_keys, keys, spare_values, values
        is_in_spare = not is_in_spare
        shift += np.uint64(bits)
    if is_in_spare:
        spare_keys[:], spare_values[:] = keys, values


@kernel()
def _sort(
    group: Ints,
    point: Ints,
    value: NDArray[Any],
    offsets: Ints,
    keys: NDArray[Any],
    values: NDArray[Any],
    spare_keys: NDArray[Any],
    spare_values: NDArray[Any],
    counters: Ints,
) -> None:
    ends = offsets.copy()
    for row in range(len(group)):
        at = ends[group[row]]
        ends[group[row]] = at + 1
        # The order of numbers with a sign, in numbers without one.
        keys[at], values[at] = np.uint64(point[row]) ^ np.uint64(1 << 63), value[row]
    for number in range(len(offsets) - 1):
        begin, end = offsets[number], offsets[number + 1]
        if end - begin <= _FEW:
            _insertion_sort(keys[begin:end], values[begin:end])
        else:
            _radix_sort(keys[begin:end], values[begin:end], spare_keys[begin:end], spare_values[begin:end], counters)


def sorted_in_groups(group: Ints, offsets: Ints, point: Ints, values: Ints) -> tuple[Ints, Ints]:
    """The points of all rows and their values, by group, then point; of equal points in the order of the rows.

    `offsets` are where each group begins and ends: see `cells.offsets_of`. Values are numbers of rows, or their
    complements.
    """
    keys, spare_keys = np.empty(len(point), np.uint64), np.empty(len(point), np.uint64)
    narrow = np.int32 if len(point) < 1 << 31 else np.int64
    sorted_values, spare_values = np.empty(len(point), narrow), np.empty(len(point), narrow)
    _sort(
        *(group, point, values, offsets, keys, sorted_values, spare_keys, spare_values),
        np.empty(1 << _MORE_BITS, np.int64),
    )
    keys ^= np.uint64(1 << 63)
    return keys.view(np.int64), sorted_values.astype(np.int64, copy=False)
