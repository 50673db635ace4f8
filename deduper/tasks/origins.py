"""Where the first copies of duplicates were read: names and positions, from the source orders that the store remembers.

A window's duplicates have first copies in few earlier windows, so writers get the sources files of those windows alone.
This module travels to executors, so it imports nothing of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from bucket_store.log.records import ArchiveRef, SourcesRef
from bucket_store.log.sources_archive import read_archive
from bucket_store.log.sources_file import SourcePartition, read_sources
from bucket_store.places.open import open_place
from deduper.core.clock import POSITION_BITS
from deduper.core.kernels import Int64s

_ORDINAL_BITS = 63 - POSITION_BITS


@dataclass(frozen=True, slots=True)
class WindowSources:
    """The source partitions of a window and of earlier ones.

    `names` and `starts` (the first position) are those of the partitions of `window`, by ordinal. `files` maps earlier
    windows to their sources files, below `store_root`.
    """

    store_root: str
    window: int
    names: tuple[str, ...]
    starts: tuple[int, ...]
    files: Mapping[int, SourcesRef | ArchiveRef]

    def places(self, windows: Int64s, origins: Int64s) -> tuple[pa.DictionaryArray, pa.Array]:
        """Source partition and position of tuples, by their window and source order there.

        Raises:
            CorruptionError: the file of a window is not what its record says.
        """
        # A window and an ordinal in it, as one number: both fit, a window has at most 2**23 source partitions.
        met, inverse = np.unique((windows << _ORDINAL_BITS) | (origins >> POSITION_BITS), return_inverse=True)
        names: list[str] = []
        starts: list[int] = []
        for place in met.tolist():
            name, start = self._partition(place >> _ORDINAL_BITS, place & ((1 << _ORDINAL_BITS) - 1))
            names.append(name)
            starts.append(start)
        positions = (origins & ((1 << POSITION_BITS) - 1)) + np.array(starts, np.int64)[inverse]
        coded = pa.array(inverse.astype(np.int32))
        return pa.DictionaryArray.from_arrays(coded, pa.array(names, pa.string())), pa.array(positions)

    def _partition(self, window: int, ordinal: int) -> tuple[str, int]:
        if window == self.window:
            return self.names[ordinal], self.starts[ordinal]
        file = self.files.get(window)
        known = () if file is None else _read(self.store_root, window, file)
        return known[ordinal] if ordinal < len(known) else ("", 0)


@lru_cache(maxsize=1024)
def _read(store_root: str, window: int, file: SourcesRef | ArchiveRef) -> tuple[tuple[str, int], ...]:
    """Name and start of a window's source partitions by ordinal. Cached: a worker reads the same windows often."""
    if isinstance(file, ArchiveRef):
        partitions = _archive(store_root, file).get(window, ())
    else:
        partitions = read_sources(open_place(store_root), window, file)
    return tuple((part.name, part.start) for part in partitions)


@lru_cache(maxsize=8)
def _archive(store_root: str, file: ArchiveRef) -> dict[int, tuple[SourcePartition, ...]]:
    return read_archive(open_place(store_root), file)
