"""PURE. The proof that keys were moved whole: how many entries there are, and a checksum in which order does not count.

Each entry has a hash of its digest, bucket, expiry key, origin and window; the checksum is the sum of all hashes modulo
2^64. So it is the same for any division into shards and pieces, and another one for a lost, doubled or changed entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.piece import BucketEntries
from deduper.as_json import AsJson
from deduper.units import counted

_MASK = (1 << 64) - 1
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class KeySum(AsJson):
    """Entries and their checksum; sums of disjoint sets add up."""

    json_names = ("count", "checksum_hex")

    count: int = 0
    checksum: int = 0

    @property
    def checksum_hex(self) -> str:
        """The checksum as people compare it."""
        return f"{self.checksum:016x}"

    def __add__(self, other: KeySum) -> KeySum:
        return KeySum(self.count + other.count, (self.checksum + other.checksum) & _MASK)

    def __sub__(self, other: KeySum) -> KeySum:
        return KeySum(self.count - other.count, (self.checksum - other.checksum) & _MASK)

    def __str__(self) -> str:
        return f"{counted(self.count, 'key')}, checksum {self.checksum_hex}"


def sum_of(entries: BucketEntries, first_window: int) -> KeySum:
    """The sum of a bucket's entries; `first_window` is the piece's, which counts where entries have no window."""
    count = len(entries.digests)
    window = np.full(count, first_window, np.uint64) if entries.window is None else entries.window.astype(np.uint64)
    hashes = np.full(count, entries.bucket & _MASK, np.uint64)
    for column in (entries.digests[:, 0], entries.digests[:, 1], window, entries.expiry, entries.origin):
        _mix(hashes, column)
    if entries.fingerprint is not None:
        # 0 is as good as no column: merging pieces with one and without gives 0 to some entries.
        known = entries.fingerprint != 0
        mixed = hashes[known]
        _mix(mixed, entries.fingerprint[known])
        hashes[known] = mixed
    return KeySum(count, int(hashes.sum()))


def _mix(hashes: NDArray[np.uint64], column: NDArray[Any] | None) -> None:
    """Takes a column of 8-byte values into the hashes, by the steps of splitmix64."""
    if column is not None:
        hashes ^= np.ascontiguousarray(column).view(np.uint64)
    hashes ^= hashes >> np.uint64(30)
    hashes *= _FIRST
    hashes ^= hashes >> np.uint64(27)
    hashes *= _SECOND
    hashes ^= hashes >> np.uint64(31)
