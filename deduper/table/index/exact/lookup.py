"""Look-ups in sorted pieces, part by part: the digests of a part are in the same slices, so in few pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.piece import BucketEntries
from bucket_store.tables.matching import match_sorted
from deduper.table.index.entries import FileNumbers, SortedKeys
from deduper.table.index.exact.slices import cuts, overlaps, places_of
from deduper.table.index.keys import Int64s, UInt64s
from deduper.table.index.protocol import ABSENT

_THREADS = 4
_LEAST_SHARED = 1 << 14
"""Keys of a part that is worth a thread of its own."""


class Keys(Protocol):
    """Keys with their files, by bucket; of a slice of the digests (`slices`)."""

    @property
    def slice(self) -> int:
        """Its number."""

    def bucket(self, key: int) -> BucketEntries | None:
        """The entries of a bucket, None when it has none."""


def first_files(pieces: Sequence[Keys], live: NDArray[np.bool_], keys: SortedKeys) -> NDArray[np.int32]:
    """The number of the first `live` file that has each key, ABSENT for none. `pieces` from old to young."""
    found = np.full(keys.count, ABSENT, np.int32)

    def look_up(part: _Part) -> None:
        found[part.begin : part.end] = _in_bucket(part.pieces, live, part.bucket, keys.digests[part.begin : part.end])

    parts = list(_parts(pieces, keys))
    if keys.count < len(parts) * _LEAST_SHARED or len(parts) == 1:
        for part in parts:
            look_up(part)
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-index") as pool:
            list(pool.map(look_up, parts))
    return found


def all_files(pieces: Sequence[Keys], live: NDArray[np.bool_], keys: SortedKeys) -> tuple[Int64s, Int64s]:
    """(places among the keys, numbers of `live` files) by place; of a key those of older pieces come first."""
    places = [np.zeros(0, np.int64)]
    files = [np.zeros(0, np.int64)]
    for part in _parts(pieces, keys):
        for piece in part.pieces:
            hit, file = _hits(piece, live, part.bucket, keys.digests[part.begin : part.end])
            places.append(part.begin + hit)
            files.append(file.astype(np.int64))
    place, number = np.concatenate(places), np.concatenate(files)
    order = np.argsort(place, kind="stable")
    place, number = place[order], number[order]
    # A large file may have a key twice, in two pieces: the second follows the first.
    is_next = np.ones(len(place), np.bool_)
    is_next[1:] = (place[1:] != place[:-1]) | (number[1:] != number[:-1])
    return place[is_next], number[is_next]


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of places among asked keys of one bucket, and the pieces that may have them, from old to young."""

    begin: int
    end: int
    bucket: int
    pieces: Sequence[Keys]


def _parts(pieces: Sequence[Keys], keys: SortedKeys) -> Iterator[_Part]:
    edges = cuts(piece.slice for piece in pieces)
    of_edge = [[piece for piece in pieces if overlaps(piece.slice, edge, edge)] for edge in edges]
    for begin, end in pairwise(keys.runs().tolist()):
        places = [begin + place for place in places_of(keys.digests[begin:end], edges)]
        for low, high, among in zip(places, [*places[1:], end], of_edge, strict=True):
            if low < high:
                yield _Part(low, high, int(keys.bucket[low]), among)


def _in_bucket(pieces: Sequence[Keys], live: NDArray[np.bool_], bucket: int, digests: UInt64s) -> NDArray[np.int32]:
    found = np.full(len(digests), ABSENT, np.int32)
    left: Int64s | None = None  # all
    for piece in pieces:
        hit, file = _hits(piece, live, bucket, digests if left is None else digests[left])
        if not len(hit):
            continue
        found[hit if left is None else left[hit]] = file
        # Later pieces are younger: they have nothing to add for a key that was found.
        left = np.flatnonzero(found == ABSENT)
        if not len(left):
            break
    return found


def _hits(piece: Keys, live: NDArray[np.bool_], bucket: int, digests: UInt64s) -> tuple[Int64s, FileNumbers]:
    """(places among the digests, files) of the entries that count."""
    entries = piece.bucket(bucket)
    if entries is None:
        return np.zeros(0, np.int64), np.zeros(0, np.uint32)
    assert entries.window is not None
    rows = match_sorted(entries.digests, digests)
    hit = np.flatnonzero(rows >= 0)
    file = entries.window[rows[hit]]
    counts = live[file]
    return hit[counts], file[counts]
