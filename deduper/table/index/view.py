"""An index for reading alone: without the table's lock, and unchanged by what loads do meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.pieces.piece import BucketEntries, Entries
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile
from deduper.table.index.lookup import MappedPiece
from deduper.table.index.state import IndexState, read_state
from deduper.table.index.version import telling_damage


class IndexView:
    """An index as it is at the moment. `absent` says why there is none that serves; a load would build it then.

    Its pieces are mapped, so they stay readable when a load deletes them.

    Raises:
        IndexDamagedError: a piece is gone or cut.
    """

    def __init__(self, folder: Path, columns: KeyColumns) -> None:
        self.absent: str | None = None
        self.state = self._state_of(folder, columns)
        self.pieces: list[MappedPiece] = []
        with telling_damage(folder):
            while self.state is not None:
                try:
                    self.pieces = [MappedPiece(folder / ref.file, ref) for ref in self.state.pieces]
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
        """The files with their numbers; those that the index lacks have free ones."""
        indexed = () if self.state is None else self.state.files
        known = {file.identity: file.number for file in indexed}
        return [(known.get(file.identity, self.next_number + place), file) for place, file in enumerate(files)]

    def _state_of(self, folder: Path, columns: KeyColumns) -> IndexState | None:
        try:
            found = read_state(folder)
        except (CorruptionError, UnknownFormatError) as error:
            self.absent = f"its state cannot be read: {error}"
            return None
        if found is None:
            self.absent = "there is none"
        elif found.columns != columns:
            self.absent = "it is of another key, other types or scope"
            return None
        return found


class KeysInMemory:
    """Keys that were read from files, to be asked as those of a piece."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def bucket(self, key: int) -> BucketEntries | None:
        """As `MappedPiece.bucket`."""
        entries = self._entries
        at = int(np.searchsorted(entries.bucket_keys, key))
        if at == len(entries.bucket_keys) or entries.bucket_keys[at] != key:
            return None
        return entries.bucket(at)
