"""Look-ups in sorted pieces, mapped into memory. Pieces never change; each block is checked once."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import CorruptionError
from bucket_store.pieces.piece import BucketEntries, PieceHeader, PieceRef, decode_bucket, decode_header
from bucket_store.tables.matching import match_sorted
from deduper.table.index.entries import FileNumbers, SortedKeys
from deduper.table.index.keys import Int64s, UInt64s
from deduper.table.index.protocol import ABSENT


class Keys(Protocol):
    """Keys with their files, by bucket."""

    def bucket(self, key: int) -> BucketEntries | None:
        """The entries of a bucket, None when it has none."""


class MappedPiece:
    """A piece in memory. Its blocks are checked when they are first asked for.

    Raises: CorruptionError, UnknownFormatError, FileNotFoundError, at any call.
    """

    def __init__(self, path: Path, ref: PieceRef) -> None:
        with path.open("rb") as file:
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
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
        self._blocks: dict[int, BucketEntries] = {}

    @property
    def buckets(self) -> list[int]:
        """Their keys."""
        return [int(key) for key in self._header.buckets]

    def bucket(self, key: int) -> BucketEntries | None:
        """The entries of a bucket, None when it has none."""
        index = self._header.index_of(key)
        return None if index is None else self._block(index)

    def blocks(self) -> Iterator[BucketEntries]:
        """All buckets."""
        return (self._block(index) for index in range(len(self._header.buckets)))

    def _block(self, index: int) -> BucketEntries:
        if index not in self._blocks:
            start, length = self._header.block_range(index)
            block = self._data[start : start + length]
            self._blocks[index] = decode_bucket(self._header, index, block, file=str(self._path), offset=0)
        return self._blocks[index]


def first_files(pieces: Sequence[Keys], live: NDArray[np.bool_], keys: SortedKeys) -> NDArray[np.int32]:
    """The number of the first `live` file that has each key, ABSENT for none. `pieces` from old to young."""
    found = np.full(keys.count, ABSENT, np.int32)
    starts = keys.runs().tolist()
    for begin, end in pairwise(starts):
        found[begin:end] = _in_bucket(pieces, live, int(keys.bucket[begin]), keys.digests[begin:end])
    return found


def all_files(pieces: Sequence[Keys], live: NDArray[np.bool_], keys: SortedKeys) -> tuple[Int64s, Int64s]:
    """(places among the keys, numbers of `live` files) by place; of a key those of older pieces come first."""
    places = [np.zeros(0, np.int64)]
    files = [np.zeros(0, np.int64)]
    for begin, end in pairwise(keys.runs().tolist()):
        for piece in pieces:
            hit, file = _hits(piece, live, int(keys.bucket[begin]), keys.digests[begin:end])
            places.append(begin + hit)
            files.append(file.astype(np.int64))
    place, number = np.concatenate(places), np.concatenate(files)
    order = np.argsort(place, kind="stable")
    return place[order], number[order]


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
