"""What all kinds but `simple` have in common: the file `state`, its opening, its rebuilding, its status.

    <folder>/state       which files of the table are read, under which numbers, and what names the kind's own files
    <folder>/rebuilding  the state of an index under rebuilding; it becomes `state` once it is whole
    <folder>/<parts>/    the kind's own files; those that no state names are deleted when the index is next opened

A state is a framed file with a magic of its kind and a dataclass as its body. It is replaced whole and durable after
each step; what it does not name counts as absent.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, listed, make_directories
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumns, KeyNames
from deduper.table.formats.files import FramedFile
from deduper.table.formats.protocol import PRIVATE, DataFile, FileIdentity
from deduper.table.index.protocol import Condition, IndexStatus, Rebuilt, condition_of

logger = logging.getLogger(__name__)

STATE = "state"
REBUILDING = "rebuilding"
"""The state of an index under rebuilding, beside the one that counts."""


@dataclass(frozen=True, slots=True)
class NumberedFile:
    """A file of the table that an index has read, under its number.

    A number goes to another file only if that has all keys of the one before, which the index then does not have.
    """

    number: int
    path: str
    size: int
    stamp: int

    @property
    def identity(self) -> FileIdentity:
        """As of the table's file."""
        return self.path, self.size, self.stamp


class PersistentState(Protocol):
    """A state; `columns` and `salt` are fixed for the life of its index."""

    @property
    def index_id(self) -> str:
        """In hex."""

    @property
    def salt(self) -> bytes:
        """That of the digests."""

    @property
    def columns(self) -> KeyColumns:
        """Those of the keys."""

    @property
    def files(self) -> Sequence[NumberedFile]:
        """The files that are read."""


_S = TypeVar("_S", bound=PersistentState)


def serving(form: FramedFile[_S], folder: Path, columns: KeyColumns) -> tuple[_S | None, str | None]:
    """(the state for a view of these columns, why there is none that serves)."""
    try:
        found = form.read(folder / STATE)
    except (CorruptionError, UnknownFormatError) as error:
        return None, f"its state cannot be read: {error}"
    if found is None:
        return None, "there is none"
    if found.columns != columns:
        return None, "it is of another key, other types or scope"
    return found, None


def numbered(known: Iterable[NumberedFile], next_number: int, files: Iterable[DataFile]) -> dict[int, DataFile]:
    """Files by their numbers; those that are not known have free ones, from `next_number` on."""
    number_of = {file.identity: file.number for file in known}
    return {number_of.get(file.identity, next_number + place): file for place, file in enumerate(files)}


class PersistentIndex(ABC, Generic[_S]):
    """An index that is open for writing: its state, and which of the kind's own files it names. See `KeyIndex`."""

    form: ClassVar[FramedFile[_S]]
    parts: ClassVar[str]
    """The folder of the kind's own files."""

    def __init__(self, folder: Path, columns: KeyColumns, state_file: str = STATE) -> None:
        self._folder = folder
        self._state_file = state_file
        self._columns = columns
        self.began_anew: str | None = None
        """Why the index had to be built; None when it was there."""
        make_directories(LOCAL, folder / self.parts)
        self._state = self._opened()
        self._sweep()

    @abstractmethod
    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """See `KeyIndex`."""

    @abstractmethod
    def _begun(self, index_id: str, salt: bytes) -> _S:
        """A state without files."""

    @abstractmethod
    def _named(self, state: _S) -> Iterable[str]:
        """The names of the kind's own files that a state names."""

    @property
    def state(self) -> _S:
        """The state as it is on disk."""
        return self._state

    def replace_old(self) -> None:
        """Puts a rebuilt index in the place of the old one, in one step, and deletes the old one's own files."""
        LOCAL.replace(self._folder / self._state_file, self._folder / STATE)
        LOCAL.fsync_dir(self._folder)
        self._state_file = STATE
        self._sweep()

    def _opened(self) -> _S:
        try:
            found = self.form.read(self._folder / self._state_file)
        except (CorruptionError, UnknownFormatError) as error:
            kept = self._folder / f"{self._state_file}.unreadable-{secrets.token_hex(4)}"
            LOCAL.replace(self._folder / self._state_file, kept)
            logger.warning("the index is built anew: %s; the state that cannot be read is kept as %s", error, kept.name)
            return self._new(f"its state could not be read: {error}")
        if found is None:
            return self._new("there was none")
        if found.columns != self._columns:
            logger.warning("the index is built anew: it is of another key, other types or another scope")
            return self._new("it was of another key")
        return found

    def _new(self, why: str) -> _S:
        self.began_anew = why
        state = self._begun(secrets.token_hex(16), secrets.token_bytes(SALT_BYTES))
        self.form.replace(self._folder / self._state_file, state)
        return state

    def _sweep(self) -> None:
        """Deletes own files that no state names: of a death, or merged."""
        # With a state that cannot be read the index begins empty at its next opening, so its files are of no use.
        other = self.form.sound(self._folder / (STATE if self._state_file == REBUILDING else REBUILDING))
        kept = {name for state in (self._state, other) if state is not None for name in self._named(state)}
        for name in listed(LOCAL, self._folder / self.parts):
            if name not in kept:
                LOCAL.remove(self._folder / self.parts / name)

    def _write(self, state: _S) -> None:
        self.form.replace(self._folder / self._state_file, state)
        self._state = state


@dataclass(frozen=True, slots=True)
class Part:
    """One of a kind's own files, as a state names it, and its keys; on a server it takes no bytes here."""

    path: Path
    keys: int
    size_bytes: int


class PersistentKind(ABC, Generic[_S]):
    """A kind that keeps something; see `TableIndex`."""

    form: ClassVar[FramedFile[_S]]
    folder_name: ClassVar[str]

    def folder(self, root: Path) -> Path:
        """The folder of a table's index."""
        return root / PRIVATE / self.folder_name

    @abstractmethod
    def _rebuilding(self, root: Path, columns: KeyColumns) -> PersistentIndex[_S]:
        """The index under rebuilding."""

    @abstractmethod
    def _parts(self, folder: Path, state: _S) -> list[Part]:
        """The kind's own files that a state names."""

    def _checked(self, folder: Path, state: _S) -> tuple[Sequence[NumberedFile], tuple[Condition, str] | None]:
        """(the files whose keys the index has, its condition and why if something is wrong)."""
        for part in self._parts(folder, state):
            if _size(part.path) != part.size_bytes:
                why = f"{part.path} is gone or cut; delete {folder}, the next load builds it"
                return state.files, (Condition.DAMAGED, why)
        return state.files, None

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        """See `TableIndex`. The new one is made beside the old one, and its state replaces the old one's."""
        index = self._rebuilding(root, columns)
        read = index.catch_up(root, files)
        failpoints.hit("index.rebuilt")
        index.replace_old()
        parts = self._parts(self.folder(root), index.state)
        return Rebuilt(read, _keys(parts), _bytes(parts), index.began_anew is None)

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        """See `TableIndex`."""
        folder = self.folder(root)
        anew = self.form.read(folder / REBUILDING)
        rebuilding = None if anew is None else _keys(self._parts(folder, anew))
        try:
            state = self.form.read(folder / STATE)
        except (CorruptionError, UnknownFormatError) as error:
            why = f"{error}; the next load builds the index"
            return IndexStatus(Condition.UNREADABLE, why, len(files), 0, rebuilding=rebuilding)
        if state is None:
            why = "the next load builds the index from the table"
            return IndexStatus(Condition.ABSENT, why, len(files), 0, rebuilding=rebuilding)
        that_count, wrong = self._checked(folder, state)
        if wrong is not None and self.form.sound(folder / STATE) != state:
            return self.status(root, names, files)  # a write has made the next one meanwhile
        present, indexed = ({file.identity for file in of} for of in (files, that_count))
        added, removed = len(present - indexed), len(indexed - present)
        condition, why = wrong or (condition_of(added, removed), "")
        if state.columns.names != names:
            condition, why = Condition.OTHER_KEY, "it is of another key or scope, and the next load builds it anew"
        parts = self._parts(folder, state)
        return IndexStatus(
            condition,
            why or None,
            added,
            removed,
            pieces=len(parts),
            keys=_keys(parts),
            size_bytes=(_size(folder / STATE) or 0) + _bytes(parts),
            rebuilding=rebuilding,
        )

    def columns_of(self, root: Path) -> KeyColumns | None:
        """See `TableIndex`."""
        state = self.form.sound(self.folder(root) / STATE)
        return None if state is None else state.columns


def _keys(parts: Iterable[Part]) -> int:
    return sum(part.keys for part in parts)


def _bytes(parts: Iterable[Part]) -> int:
    return sum(part.size_bytes for part in parts)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
