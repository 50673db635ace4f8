"""The proof that keys were moved whole: how many live entries there are, and a checksum in which order does not count.

Each entry has a hash of its digest, bucket, expiry key, origin and window; the checksum is the sum of all hashes modulo
2^64. So it is the same for any division into shards and pieces, and another one for a lost, doubled or changed entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.log.records import LogState
from bucket_store.pieces.piece import BucketEntries
from bucket_store.pieces.reader import PieceReader
from bucket_store.pieces.store import PieceStore
from deduper.as_json import AsJson
from deduper.config.model import Config
from deduper.units import counted
from deduper.window.policy import entry_expiry_point, live_from_bucket

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


def sum_of_all(blocks: Iterable[BucketEntries], first_window: int) -> KeySum:
    """The sum of several buckets, see `sum_of`."""
    return sum((sum_of(block, first_window) for block in blocks), KeySum())


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


def live_entries(
    config: Config | None, state: LogState, pieces: PieceStore, store_id: str, shard: int
) -> Iterator[BucketEntries]:
    """A bucket of a piece at a time. Without a config, dead entries are not known, and are among them.

    Raises:
        CorruptionError: a piece is damaged, or was deleted meanwhile.
    """
    least = None if config is None else live_from_bucket(config, state)
    point = None if config is None else entry_expiry_point(config, state)
    reader = PieceReader(pieces, store_id)
    for part, block in reader.read_all(reader.all_parts(state.pieces.get(shard, ()))):
        if least is not None and block.bucket < least:
            continue
        window = block.window
        if window is None:
            window = np.full(len(block.digests), part.ref.first_window, np.uint32)
        whole = replace(block, window=window)
        if point is not None and block.expiry is not None:
            whole = whole.chosen(block.expiry > point)
        if len(whole.digests):
            yield whole
