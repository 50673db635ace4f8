"""Pieces mapped into memory, the slices of digests that they have, and look-ups in them.

A slice has the digests whose `hi` begins with some bits. It is numbered as the nodes of a binary tree: 1 has all, the
halves of n are 2n and 2n + 1. Digests are salted hashes, so slices of one depth have about as many keys each. A piece
has its slice in the field *shard*; 0 is a young piece, of all digests, and so is each piece of a partitioned index.
A look-up goes part by part: the digests of a part are in the same slices, so in few pieces.

Pieces never change, so a process may map each once and check each block once.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import CorruptionError
from bucket_store.pieces.piece import BucketEntries, Entries, PieceHeader, PieceRef, decode_bucket, decode_header
from bucket_store.tables.matching import match_sorted
from deduper.table.columns import KeyColumns
from deduper.table.index.keys import FileNumbers, Int64s, SortedKeys, UInt64s

YOUNG = 0
FEWEST_MERGED = 8
_LEAST_ROWS, _MOST_ROWS = 4 << 20, 16 << 20
_SLICES = 64
"""A slice gets at most so many keys that there are no more slices than these, between the two; each has a file open."""
_MOST_KEPT = 512
"""Pieces of indexes other than the last one used; each has a file open."""
_THREADS = 4
_LEAST_SHARED = 1 << 14
"""Keys of a part that is worth a thread of its own."""


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


class MappedPiece:
    """A piece in memory. A block is checked at its first use. Threads may share it.

    Raises: CorruptionError, UnknownFormatError, FileNotFoundError, at any call.
    """

    def __init__(self, path: Path, ref: PieceRef) -> None:
        with path.open("rb") as file:
            self._stamp = _stamp(os.fstat(file.fileno()))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = memoryview(self._map)
        self._header: PieceHeader = decode_header(self._data, file=str(path), offset=0)
        self._path = path
        if (self._header.checksum, self._header.length) != (ref.checksum, len(self._data)):
            raise CorruptionError(
                "identity of an index's piece",
                file=str(path),
                offset=0,
                expected=(hex(ref.checksum), ref.length),
                found=(hex(self._header.checksum), len(self._data)),
            )
        self.ref = ref
        self.slice = ref.shard
        self._blocks: dict[int, BucketEntries] = {}
        self._checking = threading.Lock()

    @property
    def is_unchanged(self) -> bool:
        """Whether its file is as it was when it was mapped. A cut one must not be read."""
        return _stamp(self._path.stat()) == self._stamp

    @property
    def buckets(self) -> list[int]:
        """Their keys."""
        return [int(key) for key in self._header.buckets]

    def bucket(self, key: int) -> BucketEntries | None:
        """The entries of a bucket, None when it has none."""
        index = self._header.index_of(key)
        return None if index is None else self._block(index)

    def between(self, least: int, greatest: int) -> Iterator[BucketEntries]:
        """All buckets, of each the entries with `hi` in a range."""
        if not overlaps(self.slice, least, greatest):
            return
        for index in range(len(self._header.buckets)):
            yield entries_between(self._block(index), least, greatest)

    def _block(self, index: int) -> BucketEntries:
        with self._checking:
            if index not in self._blocks:
                start, length = self._header.block_range(index)
                block = self._data[start : start + length]
                # Else a page that is not in memory is read with its neighbours alone, 128 KiB at a time.
                at = start - start % mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, at, start + length - at)
                self._blocks[index] = decode_bucket(self._header, index, block, file=str(self._path), offset=0)
            return self._blocks[index]


class MappedPieces:
    """Mapped pieces, by the folder of their index. Threads may share them.

    A deleted piece frees its room when this process next asks its index, or ends.
    """

    def __init__(self) -> None:
        self._of_folder: OrderedDict[Path, dict[str, MappedPiece]] = OrderedDict()
        self._changing = threading.Lock()

    def piece(self, folder: Path, ref: PieceRef) -> MappedPiece:
        """A piece of an index.

        Raises: as `MappedPiece`.
        """
        with self._changing:
            mapped = self._of_folder.setdefault(folder, {})
            self._of_folder.move_to_end(folder)
            found = mapped.get(ref.file)
            if found is None or found.ref != ref or not found.is_unchanged:
                mapped.pop(ref.file, None)
                found = mapped[ref.file] = MappedPiece(folder / ref.file, ref)
            while len(self._of_folder) > 1 and sum(map(len, self._of_folder.values())) > _MOST_KEPT:
                self._of_folder.popitem(last=False)
            return found

    def keep(self, folder: Path, refs: Iterable[PieceRef]) -> None:
        """Leaves the other pieces of an index."""
        named = {ref.file for ref in refs}
        with self._changing:
            mapped = self._of_folder.get(folder, {})
            for file in mapped.keys() - named:
                del mapped[file]


_SHARED = MappedPieces()


def mapped_pieces(columns: KeyColumns) -> MappedPieces:
    """The pieces for an index that is opened: of the whole process if all its keys are in one bucket.

    Each question to such an index needs all of its pages. Of one by partitions it needs some, and those of earlier
    questions would only count as this process's memory.
    """
    return _SHARED if columns.bucket_column is None else MappedPieces()


def _stamp(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns


class KeysInMemory:
    """Keys that were read from files, for look-ups as in a piece."""

    slice = YOUNG

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def bucket(self, key: int) -> BucketEntries | None:
        """As `MappedPiece.bucket`."""
        entries = self._entries
        at = int(np.searchsorted(entries.bucket_keys, key))
        if at == len(entries.bucket_keys) or entries.bucket_keys[at] != key:
            return None
        return entries.bucket(at)


Keys: TypeAlias = MappedPiece | KeysInMemory
"""Keys with their files, by bucket; of a slice of the digests."""


def find(pieces: Sequence[Keys], live: NDArray[np.bool_], keys: SortedKeys) -> tuple[Int64s, Int64s]:
    """(places among the keys, numbers of `live` files) by place; of a key those of older pieces come first.

    `pieces` from old to young.
    """
    parts = [part for part in _parts(pieces, keys) if part.pieces]

    def found(part: _BucketRange) -> tuple[Int64s, Int64s]:
        digests = keys.digests[part.begin : part.end]
        hits = [_hits(piece, live, part.bucket, digests) for piece in part.pieces]
        place, number = (np.concatenate(column) for column in zip(*hits, strict=True))
        order = np.argsort(place, kind="stable") if len(hits) > 1 else slice(None)
        return part.begin + place[order], number[order].astype(np.int64)

    if keys.count < len(parts) * _LEAST_SHARED or len(parts) == 1:
        of_parts = list(map(found, parts))
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-index") as pool:
            of_parts = list(pool.map(found, parts))
    nothing = np.zeros(0, np.int64)
    place, number = (np.concatenate(column) for column in zip((nothing, nothing), *of_parts, strict=True))
    # A large file may have a key twice, in two pieces: the second follows the first.
    is_next = np.ones(len(place), np.bool_)
    is_next[1:] = (place[1:] != place[:-1]) | (number[1:] != number[:-1])
    return place[is_next], number[is_next]


@dataclass(frozen=True, slots=True)
class _BucketRange:
    """A range of places among the keys of one bucket, and the pieces that may have them, from old to young."""

    begin: int
    end: int
    bucket: int
    pieces: Sequence[Keys]


def _parts(pieces: Sequence[Keys], keys: SortedKeys) -> Iterator[_BucketRange]:
    edges = cuts(piece.slice for piece in pieces)
    of_edge = [[piece for piece in pieces if overlaps(piece.slice, edge, edge)] for edge in edges]
    for begin, end in pairwise(keys.runs().tolist()):
        places = [begin + place for place in places_of(keys.digests[begin:end], edges)]
        for low, high, among in zip(places, [*places[1:], end], of_edge, strict=True):
            if low < high:
                yield _BucketRange(low, high, int(keys.bucket[low]), among)


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
