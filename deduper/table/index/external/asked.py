"""Look-ups on a server; see `VersionKeys`. A key's first file is that of the lowest number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from deduper.table.columns import KeyColumn
from deduper.table.errors import IndexServerError
from deduper.table.formats.protocol import DataFile
from deduper.table.index.entries import SortedKeys
from deduper.table.index.external.server import ServedEntries
from deduper.table.index.keys import Int64s
from deduper.table.index.protocol import ABSENT, Values


class AskedKeys(ABC):
    """See `VersionKeys`."""

    wanted: tuple[KeyColumn, ...] = ()

    def __init__(self, salt: bytes, files: Mapping[int, DataFile]) -> None:
        self.salt = salt
        self.files = files

    def first_files(self, keys: SortedKeys, values: Values) -> NDArray[np.int32]:
        """See `VersionKeys`."""
        found = np.full(keys.count, ABSENT, np.int32)
        place, file = self.all_files(keys, values)
        found[place[::-1]] = file[::-1]
        return found

    @abstractmethod
    def all_files(self, keys: SortedKeys, values: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`."""


class WrittenKeys(AskedKeys):
    """The keys of a version for a write, whose claim on the index is looked at after each block."""

    def __init__(self, entries: ServedEntries, writer: str, salt: bytes, files: Mapping[int, DataFile]) -> None:
        super().__init__(salt, files)
        self._entries = entries
        self._writer = writer
        self._number_of = {number: number for number in files}

    def all_files(self, keys: SortedKeys, _: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`.

        Raises:
            IndexServerError: the server is away, has lost the index, or another process has taken it.
        """
        place, number, heads = self._entries.find(keys.digests)
        if any(head is None or head.writer != self._writer for head in heads):
            what = "the server lost the index, or another process took it; nothing was committed, repeat the command"
            raise IndexServerError(f"{self._entries.name}: {what}")
        return renumbered(place, number, self._number_of)


def renumbered(place: Int64s, number: Int64s, number_of: Mapping[int, int]) -> tuple[Int64s, Int64s]:
    """(places, file numbers) of entries by other numbers, in the order of both; entries of other files are left out."""
    known = np.full(max(number_of, default=-1) + 2, ABSENT, np.int64)
    known[list(number_of)] = list(number_of.values())
    number = known[np.minimum(number, len(known) - 1)]
    place, number = place[number != ABSENT], number[number != ABSENT]
    order = np.lexsort((number, place))
    return place[order], number[order]
