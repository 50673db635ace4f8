"""An index of one's own, as the setting `index` names it: a dictionary in a file, for the tests of the interface."""

from __future__ import annotations

import pickle
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumn, KeyColumns, KeyNames
from deduper.table.formats.protocol import PRIVATE, DataFile, FileIdentity
from deduper.table.index.keys import FileKeys, Int64s, SortedKeys
from deduper.table.index.protocol import (
    AddedKeys,
    Differences,
    IndexStatus,
    Rebuilt,
    Values,
    WrittenFile,
    condition_of,
)
from deduper.table.index.reading import read_keys


class DictIndex:
    """See `TableIndex`. The file has the salt, the columns, and of each file of the table its number and its keys."""

    def __init__(self, name: str = "own") -> None:
        self._name = name

    def open(self, root: Path, columns: KeyColumns) -> Dictionary:
        path = root / PRIVATE / self._name
        path.parent.mkdir(exist_ok=True, parents=True)
        return Dictionary(path, columns)

    def view(self, root: Path, columns: KeyColumns) -> Dictionary:
        return Dictionary(root / PRIVATE / self._name, columns)

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        (root / PRIVATE / self._name).unlink(missing_ok=True)
        index = self.open(root, columns)
        read = index.catch_up(root, files)
        return Rebuilt(read, sum(len(keys) for _, keys in index.files.values()), 0, is_continued=False)

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        columns = self.columns_of(root)
        known = set() if columns is None else set(Dictionary(root / PRIVATE / self._name, columns).files)
        present = {file.identity for file in files}
        added, removed = len(present - known), len(known - present)
        return IndexStatus(condition_of(added, removed), None, added, removed)

    def columns_of(self, root: Path) -> KeyColumns | None:
        path = root / PRIVATE / self._name
        return pickle.loads(path.read_bytes())[1] if path.exists() else None


class Dictionary:
    """See `KeyIndex` and `IndexView`."""

    def __init__(self, path: Path, columns: KeyColumns) -> None:
        self.began_anew: str | None = None
        self.absent: str | None = None
        self.files: dict[FileIdentity, tuple[int, set[tuple[int, int, int]]]] = {}
        self.salt = secrets.token_bytes(SALT_BYTES)
        self.next_number = 0
        self._path = path
        self._columns = columns
        if path.exists():
            salt, of, number, files = pickle.loads(path.read_bytes())
            if of == columns:
                self.salt, self.next_number, self.files = salt, number, files
                return
        self.began_anew = self.absent = "there was none of this key"

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        pass

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        missing = [file for file in files if file.identity not in self.files]
        for file in missing:
            self._read(root, file)
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(pickle.dumps((self.salt, self._columns, self.next_number, self.files)))
        temporary.replace(self._path)
        return len(missing)

    def numbered(self, files: Iterable[DataFile]) -> dict[int, DataFile]:
        return {
            self.files[file.identity][0] if file.identity in self.files else self.next_number + place: file
            for place, file in enumerate(files)
        }

    def version(self, root: Path, files: Iterable[DataFile]) -> Held:
        present = list(files)
        for file in present:
            if file.identity not in self.files:
                self._read(root, file)
        numbered = self.numbered(present)
        return Held(self.salt, numbered, {number: self.files[file.identity][1] for number, file in numbered.items()})

    def buckets(self) -> Iterable[int]:
        return {bucket for _, keys in self.files.values() for bucket, _, _ in keys}

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        there = set(zip(read.file.tolist(), read.hi.tolist(), read.lo.tolist(), strict=True))
        here = {
            (number, hi, lo)
            for number, keys in self.files.values()
            for of, hi, lo in keys
            if indexed[number] and of == bucket and among[0] <= hi <= among[1]
        }
        return Differences(Counter(file for file, _, _ in there - here), Counter(file for file, _, _ in here - there))

    def _read(self, root: Path, file: DataFile) -> None:
        (keys,) = read_keys(root, [(self.next_number, file)], self._columns, self.salt)
        held = set(zip(keys.bucket.tolist(), keys.hi.tolist(), keys.lo.tolist(), strict=True))
        self.files[file.identity] = (self.next_number, held)
        self.next_number += 1


class Held:
    """See `VersionKeys`."""

    wanted: tuple[KeyColumn, ...] = ()

    def __init__(
        self, salt: bytes, files: Mapping[int, DataFile], keys: Mapping[int, set[tuple[int, int, int]]]
    ) -> None:
        self.salt = salt
        self.files = files
        self._keys = keys

    def find(self, keys: SortedKeys, values: Values) -> tuple[Int64s, Int64s]:
        asked = zip(keys.bucket.tolist(), *keys.digests.T.tolist(), strict=True)
        found = [
            (place, number)
            for place, key in enumerate(asked)
            for number in sorted(self._keys)
            if key in self._keys[number]
        ]
        place, number = zip(*found, strict=True) if found else ((), ())
        return np.array(place, np.int64), np.array(number, np.int64)
