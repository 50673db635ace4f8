"""The interface of an index, and the index that a setting names.

A write opens the index under the table's lock, brings it up to the files of the version that it judges, and asks for
keys; after its commit it brings it up to the new version. So an entry of a commit that failed, or that was rolled back,
is of a file that no version has, and is not believed: no other rule is needed. Questions and checks look at it without
a lock. Keys are digests (`SortedKeys`), with a salt of the index's own.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.as_json import AsJson
from deduper.table.columns import KeyColumn, KeyColumns, KeyNames
from deduper.table.errors import SettingError
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import FileKeys, Int64s, SortedKeys

ABSENT = -1
"""The file number of a key that is in no file that counts."""

NO_TARGET = -1
"""The target of a row that goes to a new file, not to the successor of a removed one."""

Values = Mapping[str, pa.Array]
"""Columns of the keys of a look-up, by name: a row for each key, in their order. Texts and bytes are `large_string` and
`large_binary`."""


class VersionKeys(Protocol):
    """The keys of one version of a table. Answers are exact, and for the files of this version alone."""

    @property
    def salt(self) -> bytes:
        """That of the digests; the same for the life of the object."""

    @property
    def files(self) -> Mapping[int, DataFile]:
        """All files of the version, by their numbers."""

    @property
    def wanted(self) -> Sequence[KeyColumn]:
        """The columns whose `values` `find` needs beside the keys; all are digested ones."""

    def find(self, keys: SortedKeys, values: Values) -> tuple[Int64s, Int64s]:
        """Called once for a batch, by one thread, with each key once, and with the `wanted` values of each.

        Gives (places among the keys, file numbers) of every file with a key, by place; the first file of a key comes
        first, and is the same one each time.

        Raises:
            IndexDamagedError: what is looked up is damaged or gone.
            TableError: a file of the table cannot be read.
        """


class KeyIndex(Protocol):
    """An index that is open for writing: one process has it, under the table's lock."""

    @property
    def began_anew(self) -> str | None:
        """Why the index had to be built; None when it was there, or when nothing is kept."""

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """Called before a batch is judged and after each commit, with all files of the table's present version.

        Brings the index up to them, durable on return, and gives the number of files read. Interrupted at any point, a
        later call continues, and no entry is believed that is not whole. Safe to repeat.

        Raises:
            FileVanishedError, SchemaDriftError, TableError: a file cannot be read.
            IndexDamagedError: what has to be read of the index is damaged.
        """

    def version(self, root: Path, files: Iterable[DataFile]) -> VersionKeys:
        """Called after `catch_up` with the same files; gives their keys, until the next call of another method."""

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        """Called after a commit, before `catch_up`, with all files that the write has added, if no other writer came.

        Enters their keys without reading them, or does nothing: then `catch_up` reads the files.
        """


class IndexView(Protocol):
    """An index for reading alone, as it is at the moment: without a lock, and unchanged by what writes do meanwhile."""

    @property
    def absent(self) -> str | None:
        """Why there is none that serves; None if there is. A write would build it then."""

    @property
    def salt(self) -> bytes:
        """That of its digests."""

    @property
    def next_number(self) -> int:
        """Files that the index lacks have numbers from here on."""

    def numbered(self, files: Iterable[DataFile]) -> dict[int, DataFile]:
        """Called with all files of a version; gives them by their numbers, those that the index lacks by free ones."""

    def version(self, root: Path, files: Sequence[DataFile]) -> VersionKeys:
        """Called with all files of a version; gives their keys, those of files that the index lacks by reading them.

        Raises:
            TableError: a file cannot be read.
        """

    def buckets(self) -> Iterable[int]:
        """The buckets that have entries which can be listed."""

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """Called for each bucket, or part of it: for keys with `hi` from the least to the greatest of `among`.

        `read` are all such keys of the table's files that the index has; `indexed` says of each number whether the
        table has such a file. Gives how the index differs from them, without what writes have dropped meanwhile.

        Raises:
            IndexDamagedError: what is compared is damaged or gone.
        """


@dataclass(frozen=True, slots=True)
class Differences:
    """Numbers of keys by file: those that only the table has, and those that only the index has."""

    missing: Counter[int] = field(default_factory=Counter)
    extra: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a write has added. `replaces`: the number of the removed file in whose place it is; None: of none."""

    file: DataFile
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class AddedKeys:
    """Keys that a write has added, each once, in the buckets of their files' partitions; the table had none of them.

    `target`: the number of the removed file whose place has each, NO_TARGET for a file in no other's place. A file in
    the place of one of `whole` has all keys of that one, those with this target, and no others. Of files in the places
    of other ones nothing is said; nor is it of files in no other's place unless `has_all_new`.
    """

    keys: SortedKeys
    target: Int64s
    whole: frozenset[int] = frozenset()
    has_all_new: bool = True


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An index that was built again. `is_continued`: an interrupted rebuild had begun it."""

    read_files: int
    keys: int
    size_bytes: int
    is_continued: bool


class Condition(Enum):
    """An index beside the files of its table. All need no action but DAMAGED and AWAY, with which loads fail."""

    PRESENT = "present"
    BEHIND = "behind"
    AHEAD = "ahead"
    ABSENT = "absent"
    OTHER_KEY = "other_key"
    UNREADABLE = "unreadable"
    DAMAGED = "damaged"
    AWAY = "away"
    NOT_KEPT = "not_kept"


@dataclass(frozen=True, slots=True)
class IndexStatus(AsJson):
    """An index. `added` files of the table it lacks, `removed` files it has that the table has no more.

    `keys` are its entries: a key of two files counts twice, those of removed files count until they are merged away.
    `pieces`: the files that it keeps. `why`: for states that are not about files. `rebuilding`: keys of a new index,
    whose making runs or was interrupted; None when there is none.
    """

    json_names: ClassVar[tuple[str, ...]] = (
        *("state", "why", "added", "removed", "pieces", "keys", "size_bytes", "bytes_a_key"),
    )
    state: Condition
    why: str | None
    added: int
    removed: int
    pieces: int = 0
    keys: int = 0
    size_bytes: int = 0
    rebuilding: int | None = None

    @property
    def bytes_a_key(self) -> float | None:
        """Bytes on disk a key; None without keys."""
        return self.size_bytes / self.keys if self.keys else None


class TableIndex(Protocol):
    """A kind of index with its settings, for the tables in the folders `root`. Each command makes its own."""

    def open(self, root: Path, columns: KeyColumns) -> KeyIndex:
        """Called under the table's lock. Gives the index: an empty one if there is none, or one of another key.

        Raises:
            IndexDamagedError: it cannot be used, and the message says what to do.
        """

    def view(self, root: Path, columns: KeyColumns) -> IndexView:
        """Called without a lock, beside writes. Gives the index as it is, and writes nothing.

        Raises:
            IndexDamagedError: a part of it is gone or cut.
        """

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        """Called under the table's lock, with all files. Builds the index again; until it is whole, the old one counts.

        Raises:
            TableError: a file of the table cannot be read.
        """

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        """Called without a lock. Gives the state beside these files; reads no rows, writes nothing."""

    def columns_of(self, root: Path) -> KeyColumns | None:
        """Called without a lock. Gives the columns of the index with their types; None when none can be read."""


def condition_of(added: int, removed: int) -> Condition:
    """The state of a sound index that lacks files, and has files that the table has no more."""
    if added:
        return Condition.BEHIND
    return Condition.AHEAD if removed else Condition.PRESENT


_KINDS = {
    "exact": "deduper.table.index.exact:ExactIndex",
    "bloom": "deduper.table.index.bloom:BloomIndex",
    "simple": "deduper.table.index.simple:SimpleIndex",
    "external": "deduper.table.index.external:ExternalIndex",
}
_WITHOUT_OPTIONS = ("exact", "simple")


def index_of(kind: str, options: Mapping[str, Any]) -> TableIndex:
    """The index of a kind; `options` are its keyword arguments.

    Raises:
        SettingError: of `index.kind` or `index.options`, naming what is wrong.
    """
    if kind not in _KINDS:
        raise SettingError("index.kind", f"`{kind}` is not a valid choice", f"write one of {', '.join(_KINDS)}")
    if kind in _WITHOUT_OPTIONS and options:
        raise SettingError("index.options", f"`{kind}` has none", "leave them out")
    module, _, name = _KINDS[kind].partition(":")
    made = getattr(import_module(module), name)
    try:
        index: TableIndex = made(**options)
    except TypeError as error:
        names = ", ".join(inspect.signature(made).parameters)
        what = f"`{kind}` does not take them: {error}"
        raise SettingError("index.options", what, f"its options are {names}") from error
    return index
