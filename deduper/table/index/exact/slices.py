"""PURE. Slices of the keys of a bucket: large pieces have a range of digests each, so a key is asked of few of them.

A slice has the digests whose `hi` begins with some bits. It is numbered as the nodes of a binary tree: 1 has all, the
halves of n are 2n and 2n + 1. Digests are salted hashes, so slices of one depth have about as many keys each. A piece
has its slice in the field *shard*; 0 is a young piece, of all digests, and so is each piece of a partitioned index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from bucket_store.pieces.piece import BucketEntries, PieceRef
from deduper.table.index.keys import UInt64s

YOUNG = 0
FEWEST_MERGED = 8
_LEAST_ROWS, _MOST_ROWS = 4 << 20, 16 << 20
_SLICES = 64
"""A slice gets at most so many keys that there are no more slices than these, between the two; each has a file open."""


def bounds(number: int) -> tuple[int, int]:
    """The least and the greatest `hi` of a slice."""
    depth = max(number.bit_length() - 1, 0)
    least = (number - (1 << depth)) << (64 - depth) if number else 0
    return least, least + (1 << (64 - depth)) - 1


def slices_for(keys: int) -> range:
    """Slices for so many keys, with all digests, from low to high."""
    depth = (max(keys - 1, 0) // rows_of_slice(keys)).bit_length()
    return range(1 << depth, 2 << depth)


def rows_of_slice(keys: int) -> int:
    """The most keys that a slice gets when it is made, of so many in all."""
    return min(max(_LEAST_ROWS, keys // _SLICES), _MOST_ROWS)


def overlap(one: int, other: int) -> bool:
    """Whether two slices have digests in common: then one is the other or an ancestor of it."""
    low, high = sorted((max(one, 1), max(other, 1)), key=int.bit_length)
    return high >> (high.bit_length() - low.bit_length()) == low


def within(number: int, slices: range) -> list[int]:
    """Those of the slices that are in this one, or itself if it is smaller: they have all its digests."""
    return [number] if number >= slices.start else [one for one in slices if overlap(number, one)]


def by_digests(pieces: Iterable[PieceRef]) -> list[list[PieceRef]]:
    """The pieces in groups of which no two have digests in common, each in the given order."""
    groups: list[list[PieceRef]] = []
    roots: list[int] = []
    pieces = list(pieces)
    for number in sorted({piece.shard for piece in pieces}):
        # Ancestors have lower numbers, so they come first.
        if not any(overlap(root, number) for root in roots):
            roots.append(number)
    for root in roots:
        groups.append([piece for piece in pieces if overlap(root, piece.shard)])
    return groups


def overlaps(number: int, least: int, greatest: int) -> bool:
    """Whether a slice has digests with `hi` in a range."""
    own_least, own_greatest = bounds(number)
    return own_least <= greatest and least <= own_greatest


def places_of(digests: UInt64s, edges: Sequence[int]) -> list[int]:
    """Where in sorted digests the first is with `hi` from each edge on; an edge may be 2^64."""
    # Without a copy of the column, as numpy's search makes one.
    rows = range(len(digests))
    return [bisect_left(rows, edge, key=lambda row: int(digests[row, 0])) if edge else 0 for edge in edges]


def entries_between(entries: BucketEntries, least: int, greatest: int) -> BucketEntries:
    """Those with `hi` in a range."""
    begin, end = places_of(entries.digests, [least, greatest + 1])
    return entries.chosen(slice(begin, end))


def cuts(numbers: Iterable[int]) -> list[int]:
    """The least `hi` of each range in which the same of these slices have digests, ascending; the first is 0."""
    edges = {0}
    for number in numbers:
        least, greatest = bounds(number)
        edges |= {least, greatest + 1}
    return sorted(edges - {1 << 64})


def to_merge(entries: Sequence[int], most: int, fewest: int = FEWEST_MERGED, growth: int = 2) -> int:
    """How many of the youngest pieces to merge, 0 for none; `entries` from old to young.

    Fewer than `fewest`, or more than `most` entries, are not merged. A piece is merged when it is at most `growth`
    times as large as all younger ones together.
    """
    total = count = 0
    for size in reversed(entries):
        if (count and size > growth * total) or total + size > most:
            break
        total += size
        count += 1
    return count if count >= fewest else 0
