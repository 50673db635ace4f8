"""The simple index: nothing is kept, files that may have a key are read each time."""

# ruff: noqa: ARG002  the arguments are the interface's
from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumns, KeyNames
from deduper.table.formats.protocol import DataFile
from deduper.table.index.candidates import ReadKeys
from deduper.table.index.entries import FileKeys
from deduper.table.index.protocol import AddedKeys, Condition, Differences, IndexStatus, Rebuilt, WrittenFile

NOT_KEPT = "nothing is kept (`index: simple`); each write reads the key columns of the files that may have its keys"


class SimpleIndex:
    """See `TableIndex`."""

    kind = "simple"

    def open(self, root: Path, columns: KeyColumns) -> _NothingKept:
        """See `TableIndex`."""
        return _NothingKept(columns)

    def view(self, root: Path, columns: KeyColumns) -> _NothingKept:
        """See `TableIndex`."""
        return _NothingKept(columns)

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        """See `TableIndex`. There is nothing to build."""
        return Rebuilt(0, 0, 0, is_continued=False)

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        """See `TableIndex`."""
        return IndexStatus(Condition.NOT_KEPT, NOT_KEPT, 0, 0)

    def columns_of(self, root: Path) -> KeyColumns | None:
        """See `TableIndex`."""
        return None


class _NothingKept:
    """See `KeyIndex` and `IndexView`."""

    def __init__(self, columns: KeyColumns) -> None:
        self.began_anew: str | None = None
        self.absent: str | None = NOT_KEPT
        self.next_number = 0
        self.salt = secrets.token_bytes(SALT_BYTES)
        self._columns = columns

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        """See `KeyIndex`."""

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """See `KeyIndex`."""
        return 0

    def numbered(self, files: Iterable[DataFile]) -> list[tuple[int, DataFile]]:
        """See `IndexView`. By path, so that the first file of a key is the same in each question."""
        return list(enumerate(sorted(files, key=lambda file: file.path)))

    def version(self, root: Path, files: Iterable[DataFile]) -> ReadKeys:
        """See `KeyIndex`."""
        return ReadKeys(root, self._columns, self.salt, dict(self.numbered(files)))

    def buckets(self) -> Iterable[int]:
        """See `IndexView`."""
        return ()

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """See `IndexView`."""
        return Differences(Counter(), Counter())
