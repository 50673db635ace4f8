"""An index for reading alone: without the table's lock, and unchanged by what loads do meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.piece import BucketEntries, Entries
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile
from deduper.table.index.entries import NO_KEYS, FileKeys, counted_files, in_order, joined, keys_of, layers
from deduper.table.index.exact.lookup import Keys
from deduper.table.index.exact.mapped import MappedPiece, mapped_pieces
from deduper.table.index.exact.slices import YOUNG, entries_between
from deduper.table.index.exact.state import IndexState, read_state
from deduper.table.index.exact.version import EntryKeys, telling_damage
from deduper.table.index.kept import serving
from deduper.table.index.protocol import Differences
from deduper.table.index.reading import read_keys


class PieceView:
    """See `IndexView`.

    Its pieces are mapped, so they stay readable when a load deletes them.

    Raises:
        IndexDamagedError: a piece is gone or cut.
    """

    def __init__(self, folder: Path, columns: KeyColumns) -> None:
        self.absent: str | None = None
        self._folder = folder
        self._columns = columns
        self.state = self._state_of(folder, columns)
        self.pieces: list[MappedPiece] = []
        mapped = mapped_pieces(columns)
        with telling_damage(folder):
            while self.state is not None:
                try:
                    self.pieces = [mapped.piece(folder, ref) for ref in self.state.pieces]
                    mapped.keep(folder, self.state.pieces)
                    break
                except FileNotFoundError:
                    # Gone, or merged by a load since the state was read: then there is another state.
                    before, self.state = self.state, self._state_of(folder, columns)
                    if self.state == before:
                        raise
        self.next_number = 0 if self.state is None else self.state.next_number
        """Files that the index lacks have numbers from here on."""
        self.salt = bytes(SALT_BYTES) if self.state is None else self.state.salt

    def numbered(self, files: Iterable[DataFile]) -> list[tuple[int, DataFile]]:
        """See `IndexView`."""
        indexed = () if self.state is None else self.state.files
        known = {file.identity: file.number for file in indexed}
        return [(known.get(file.identity, self.next_number + place), file) for place, file in enumerate(files)]

    def version(self, root: Path, files: Sequence[DataFile]) -> EntryKeys:
        """See `IndexView`. The keys of files that the index lacks are in memory."""
        numbered = self.numbered(files)
        lacking = [(number, file) for number, file in numbered if number >= self.next_number]
        read = joined([*read_keys(root, lacking, self._columns, self.salt)])
        keys: list[Keys] = [*self.pieces, *map(KeysInMemory, layers(read))]
        return EntryKeys(self._folder, self.salt, keys, dict(numbered), self.next_number + len(files))

    def buckets(self) -> Iterable[int]:
        """See `IndexView`."""
        return (key for piece in self.pieces for key in piece.buckets)

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """See `IndexView`."""
        with telling_damage(self._folder):
            stored = joined([_stored(piece, bucket, *among) for piece in self.pieces])
        both = joined([read, stored.chosen(indexed[stored.file])])
        if not both.count:
            return Differences()
        order, found = in_order(both.file.astype(np.int64), both.hi, both.lo)
        starts = np.flatnonzero(~found.again())
        is_read = np.logical_or.reduceat(order < read.count, starts)
        is_stored = np.logical_or.reduceat(order >= read.count, starts)
        file = found.bucket[starts]
        return Differences(counted_files(file[is_read & ~is_stored]), counted_files(file[is_stored & ~is_read]))

    def _state_of(self, folder: Path, columns: KeyColumns) -> IndexState | None:
        found, self.absent = serving(lambda: read_state(folder), columns)
        return found


class KeysInMemory:
    """Keys that were read from files, to be asked as those of a piece."""

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


def _stored(piece: MappedPiece, bucket: int, least: int, greatest: int) -> FileKeys:
    """The entries of a bucket of a piece between two digests, which are sorted."""
    entries = piece.bucket(bucket)
    if entries is None:
        return NO_KEYS
    return keys_of(entries_between(entries, least, greatest))
