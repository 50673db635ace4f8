"""Which windows of a cluster need no Spark job: small ones, and those whose keys the driver can hold."""

from __future__ import annotations

from collections.abc import Sequence

from deduper.tasks.readers.reading_tasks import Part
from deduper.tasks.write import is_small

_MOST_BLOBS = 4096
"""Pairs of part and shard in a window whose blobs the driver holds: one has up to 1 KB beside its rows."""
MOST_BYTES = 192 << 20
"""Records of a window that standing tasks read; and keys that the driver hands over, 29 bytes a row."""


class WindowSizes:
    """The expected sizes of windows, from their parts and from how much earlier ones grew when they were read."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._growth = 1.0

    def is_small(self, parts: Sequence[Part]) -> bool:
        """Whether a window of these parts alone has one job."""
        return is_small(int(self._expected(parts))) and self._has_few_blobs(parts)

    def fits_driver(self, parts: Sequence[Part]) -> bool:
        """Whether the driver may hold the keys of a window of these parts alone, and its verdicts."""
        return self._expected(parts) <= MOST_BYTES and self._has_few_blobs(parts)

    def keys_fit_driver(self, key_bytes: int, readers: int) -> bool:
        """Whether the driver may hold so many bytes of keys, of so many reading tasks, and the verdicts; not none."""
        return key_bytes <= MOST_BYTES and 0 < readers * self._shards <= _MOST_BLOBS

    def learn(self, parts: Sequence[Part], spilled_bytes: int) -> None:
        """The records of these parts have become so many bytes; packed ones may be much smaller."""
        size = sum(part.plain_bytes for part in parts)
        self._growth = 1.0 if is_small(spilled_bytes) else max(1.0, spilled_bytes / max(1, size))

    def _expected(self, parts: Sequence[Part]) -> float:
        return self._growth * sum(part.plain_bytes for part in parts)

    def _has_few_blobs(self, parts: Sequence[Part]) -> bool:
        return len(parts) * self._shards <= _MOST_BLOBS
