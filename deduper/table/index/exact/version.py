"""The keys of one version of a table. An entry counts only if the version has its file; it is decided here alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.table.columns import KeyColumn
from deduper.table.errors import IndexDamagedError
from deduper.table.formats.protocol import DataFile
from deduper.table.index.entries import SortedKeys
from deduper.table.index.exact.lookup import Keys, all_files, first_files
from deduper.table.index.keys import Int64s
from deduper.table.index.protocol import Values


class EntryKeys:
    """See `VersionKeys`. Which of a version's `files`, by their numbers, hold a key; `salt` is that of the digests.

    `keys` from old to young may have entries of any file below the number `numbers`; those of other files than `files`
    are not believed. `folder` is the index's, for errors.
    """

    def __init__(
        self, folder: Path, salt: bytes, keys: Sequence[Keys], files: Mapping[int, DataFile], numbers: int
    ) -> None:
        self.salt = salt
        self.wanted: tuple[KeyColumn, ...] = ()
        self.files = files
        self._folder = folder
        self._keys = keys
        self._live = np.zeros(numbers, np.bool_)
        self._live[list(files)] = True

    def first_files(self, keys: SortedKeys, _: Values) -> NDArray[np.int32]:
        """See `VersionKeys`.

        Raises:
            IndexDamagedError: a piece that was asked is damaged or gone.
        """
        with telling_damage(self._folder):
            return first_files(self._keys, self._live, keys)

    def all_files(self, keys: SortedKeys, _: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`.

        Raises: as `first_files`.
        """
        with telling_damage(self._folder):
            return all_files(self._keys, self._live, keys)


@contextmanager
def telling_damage(folder: Path) -> Iterator[None]:
    """Errors of reading pieces of the index in a folder, as ours."""
    try:
        yield
    except (CorruptionError, UnknownFormatError, FileNotFoundError) as error:
        raise IndexDamagedError(
            f"{error}; delete {folder}: the next load builds the index anew from the table"
        ) from error
