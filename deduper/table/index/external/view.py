"""An external index for reading alone: without a lock, beside writes that drop entries of files that have gone.

After each block of look-ups the server's token is read. If it is not one of the state's, the state is read again: it is
newer than the entries then, or the server's index is another one, and no entry counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile
from deduper.table.index.entries import FileKeys, SortedKeys, counted_files, in_order, joined, layers
from deduper.table.index.exact.lookup import all_files
from deduper.table.index.exact.view import KeysInMemory
from deduper.table.index.external.asked import AskedKeys, renumbered
from deduper.table.index.external.server import ServedEntries
from deduper.table.index.external.settings import ServerAddress
from deduper.table.index.external.state import FORM, ServedFile, ServedState
from deduper.table.index.kept import serving
from deduper.table.index.keys import Int64s, UInt64s
from deduper.table.index.protocol import Differences, Values
from deduper.table.index.reading import read_keys


class ServedView:
    """See `IndexView`."""

    def __init__(self, folder: Path, columns: KeyColumns, address: ServerAddress) -> None:
        self.columns = columns
        self._folder = folder
        self._files: tuple[ServedFile, ...] = ()
        self._counts: dict[tuple[int, int], Counter[int]] = {}
        self._state, self.absent = serving(lambda: FORM.read(folder), columns)
        self._entries = ServedEntries(address, "" if self._state is None else self._state.index_id)
        head = self._entries.head()
        if self._state is not None:
            step = None if head is None else self._state.step_of(head.token)
            if step is None:
                self.absent = "the server has none, or another state of it than the table's folder"
                self._state = None
            else:
                self._files = self._state.files_up_to(step)
        self.next_number = max((file.number for file in self._files), default=-1) + 1
        self.salt = bytes(SALT_BYTES) if self._state is None else self._state.salt

    def numbered(self, files: Iterable[DataFile]) -> list[tuple[int, DataFile]]:
        """See `IndexView`."""
        known = {file.identity: file.number for file in self._files}
        return [(known.get(file.identity, self.next_number + place), file) for place, file in enumerate(files)]

    def version(self, root: Path, files: Sequence[DataFile]) -> ViewedKeys:
        """See `IndexView`. The keys of files that the index lacks are in memory."""
        return ViewedKeys(self, root, dict(self.numbered(files)))

    def buckets(self) -> Iterable[int]:
        """See `IndexView`."""
        return {file.bucket for file in self._files}

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """See `IndexView`. Files that a write has dropped meanwhile are left out."""
        _, found = in_order(read.file.astype(np.int64), read.hi, read.lo)
        once = found.chosen(~found.again())
        place, number, files = self.asked(once.digests)
        held = np.zeros(once.count, np.bool_)
        held[place[number == once.bucket[place]]] = True
        compared = {file.number for file in files if file.number < len(indexed) and indexed[file.number]}
        present = counted_files(once.bucket[held])
        listed = self._listed(among)
        here = {file.number for file in self._files if file.bucket == bucket} & compared
        if any(listed[number] > present[number] for number in here):
            listed = self._listed_once(among, here)  # a key that the server has moved meanwhile is listed twice
        return Differences(
            counted_files(once.bucket[np.isin(once.bucket, list(compared)) & ~held]),
            Counter({number: more for number in here if (more := listed[number] - present[number]) > 0}),
        )

    def asked(self, digests: UInt64s) -> tuple[Int64s, Int64s, Sequence[ServedFile]]:
        """(places among the digests, file numbers, the files whose entries count)."""
        if self._state is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), ()
        place, number, heads = self._entries.find(digests)
        tokens = {head.token for head in heads if head is not None}
        if any(head is None for head in heads):
            return place, number, ()
        state: ServedState | None = self._state
        if any(self._state.step_of(token) is None for token in tokens):
            state = FORM.sound(self._folder)
        if state is None or state.index_id != self._state.index_id:
            return place, number, ()
        steps = [state.step_of(token) for token in tokens]
        if any(step is None for step in steps):
            return place, number, ()
        self._state = state
        return place, number, state.files_up_to(min(step for step in steps if step is not None))

    def _listed(self, among: tuple[int, int]) -> Counter[int]:
        """The entries of each file with `hi` in a range, as the server lists them."""
        if among not in self._counts:
            counts: Counter[int] = Counter()
            for digests, number in self._entries.listed():
                counts += counted_files(number[_within(digests[:, 0], among)])
            self._counts[among] = counts
        return self._counts[among]

    def _listed_once(self, among: tuple[int, int], files: Set[int]) -> Counter[int]:
        """The same of some files, each entry once."""
        hi, lo, of = [], [], []
        for digests, number in self._entries.listed():
            rows = _within(digests[:, 0], among) & np.isin(number, list(files))
            hi.append(digests[rows, 0])
            lo.append(digests[rows, 1])
            of.append(number[rows])
        if not of:
            return Counter()
        _, found = in_order(np.concatenate(of), np.concatenate(hi), np.concatenate(lo))
        return counted_files(found.bucket[~found.again()])


class ViewedKeys(AskedKeys):
    """The keys of a version; those of files whose entries do not count, or do not any more, are in memory."""

    def __init__(self, view: ServedView, root: Path, files: Mapping[int, DataFile]) -> None:
        super().__init__(view.salt, files)
        self._view = view
        self._root = root
        self._number_of = {file.identity: number for number, file in files.items()}
        self._read: dict[int, FileKeys] = {}

    def all_files(self, keys: SortedKeys, _: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`."""
        place, number, served = self._view.asked(keys.digests)
        ours = {file.number: self._number_of[file.identity] for file in served if file.identity in self._number_of}
        place, number = renumbered(place, number, ours)
        lacking = sorted(self.files.keys() - ours.values())
        if not lacking:
            return place, number
        of_files = all_files(
            [*map(KeysInMemory, layers(self._keys_of(lacking)))], np.ones(max(self.files) + 1, np.bool_), keys
        )
        place, number = np.append(place, of_files[0]), np.append(number, of_files[1])
        order = np.lexsort((number, place))
        return place[order], number[order]

    def _keys_of(self, numbers: Sequence[int]) -> FileKeys:
        unread = [(number, self.files[number]) for number in numbers if number not in self._read]
        for (number, _), keys in zip(unread, read_keys(self._root, unread, self._view.columns, self.salt), strict=True):
            self._read[number] = keys
        return joined([self._read[number] for number in numbers])


def _within(hi: UInt64s, among: tuple[int, int]) -> NDArray[np.bool_]:
    return (hi >= np.uint64(among[0])) & (hi <= np.uint64(among[1]))
