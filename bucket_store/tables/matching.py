"""PURE. Sorted digests among sorted entries, compiled by numba. See `kernels` for what they have in common.

The halving at the end of both kernels is written twice: with a kernel of its own, inlined or not, looking up half a
million digests among a million takes 1.2 times the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from bucket_store.compiled import kernel
from bucket_store.tables.kernels import DIGESTS, I64, Int64s, UInt64s, prefetch_row

_SPARSE = 32
"""With fewer digests than one for so many entries, their places are guessed instead of reached by galloping."""
_GUESSES = 4
_AHEAD = 8
"""A guess is made this many digests before the next one reads there, which hides the memory's latency."""


@kernel(types.void(DIGESTS, DIGESTS, I64))
def _match(entries: UInt64s, digests: UInt64s, found: Int64s) -> None:
    """See `match_sorted`."""
    count = entries.shape[0]
    low = 0
    for i in range(digests.shape[0]):
        hi, lo = digests[i, 0], digests[i, 1]
        # Every entry below `low` is less than the digest. Gallop, then halve.
        step = 1
        high = low
        while high < count and (entries[high, 0] < hi or (entries[high, 0] == hi and entries[high, 1] < lo)):
            low = high + 1
            high += step
            step *= 2
        high = min(high, count)
        while low < high:
            middle = (low + high) >> 1
            if entries[middle, 0] < hi or (entries[middle, 0] == hi and entries[middle, 1] < lo):
                low = middle + 1
            else:
                high = middle
        is_there = low < count and entries[low, 0] == hi and entries[low, 1] == lo
        found[i] = low if is_there else -1


@kernel(types.int64(types.uint64, types.uint64, types.float64, types.int64, types.int64), inline="always")
def _guess(hi: Any, at_hi: Any, density: float, at: int, last: int) -> Any:
    """The row for `hi`, from a row that has `at_hi`, where entries are evenly spread; at most `last`."""
    # Unsigned, so by cases.
    if hi >= at_hi:
        to = at + np.int64(np.float64(hi - at_hi) * density)
    else:
        to = at - np.int64(np.float64(at_hi - hi) * density)
    return min(max(to, 0), last)


@kernel(types.void(DIGESTS, DIGESTS, I64))
def _match_sparse(entries: UInt64s, digests: UInt64s, found: Int64s) -> None:
    """See `match_sorted`; there is an entry at least. Until a digest is searched, `found` has its guessed row.

    Each guess starts from the entry at the one before and leaves about the square root of its distance: a thousand
    rows, thirty, five. So the search has next to nothing to do, and each guess's row is prefetched for the next one.
    For 500,000 digests among 100 million entries it takes 78 ns a digest, galloping 307.
    """
    count, asked = entries.shape[0], digests.shape[0]
    last = count - 1
    first_hi = entries[0, 0]
    density = np.float64(last) / max(np.float64(entries[last, 0] - first_hi), 1.0)
    for turn in range(asked + _GUESSES * _AHEAD):
        if turn < asked:
            found[turn] = _guess(digests[turn, 0], first_hi, density, 0, last)
            prefetch_row(found[turn], entries)
        for number in range(1, _GUESSES):
            i = turn - number * _AHEAD
            if 0 <= i < asked:
                at = found[i]
                found[i] = _guess(digests[i, 0], entries[at, 0], density, at, last)
                prefetch_row(found[i], entries)
        i = turn - _GUESSES * _AHEAD
        if i < 0:
            continue
        hi, lo = digests[i, 0], digests[i, 1]
        # The first entry that is not less is in [low, high]. Gallop from the guess, then halve.
        low = high = found[i]
        step = 1
        if entries[low, 0] < hi or (entries[low, 0] == hi and entries[low, 1] < lo):
            while high < count and (entries[high, 0] < hi or (entries[high, 0] == hi and entries[high, 1] < lo)):
                low = high + 1
                high += step
                step *= 2
            high = min(high, count)
        else:
            while low > 0 and (entries[low, 0] > hi or (entries[low, 0] == hi and entries[low, 1] >= lo)):
                high = low
                low -= step
                step *= 2
            low = max(low, 0)
        while low < high:
            middle = (low + high) >> 1
            if entries[middle, 0] < hi or (entries[middle, 0] == hi and entries[middle, 1] < lo):
                low = middle + 1
            else:
                high = middle
        is_there = low < count and entries[low, 0] == hi and entries[low, 1] == lo
        found[i] = low if is_there else -1


def match_sorted(entries: UInt64s, digests: UInt64s) -> Int64s:
    """Row of every digest among sorted entries without a table, -1 where there is none."""
    found = np.empty(len(digests), np.int64)
    match = _match_sparse if len(digests) * _SPARSE < len(entries) else _match
    match(entries, digests, found)
    return found


def warm() -> None:
    """Loads and runs every kernel once: for a worker daemon, before it forks."""
    digests = np.ones((_SPARSE + 1, 2), np.uint64)
    match_sorted(digests[:1], digests)
    match_sorted(digests, digests[:1])
