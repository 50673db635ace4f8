"""A bloom index in its folder: brought up to the files of a version, and asked for keys.

    <folder>/state                   see `state`
    <folder>/rebuilding              the state of an index under rebuilding; it becomes `state` once it is whole
    <folder>/filters/<id>-<n>.filter see `filter`; id of the index, number of the data file

Order of a step: the new filters are durable, then the state that names them. Filters that no state names are deleted
when the index is next opened.
"""

from __future__ import annotations

import logging
import secrets
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, listed, make_directories, place_new
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumns
from deduper.table.errors import IndexDamagedError
from deduper.table.formats.protocol import DataFile
from deduper.table.index.bloom.filter import encode_filter, filter_words, may_have, read_filter
from deduper.table.index.bloom.state import (
    REBUILDING,
    STATE,
    BloomState,
    FilteredFile,
    bound_texts,
    bound_value,
    filters_folder,
    read_state,
    sound_state,
    write_state,
)
from deduper.table.index.candidates import Asked, ReadKeys
from deduper.table.index.entries import FileKeys, SortedKeys
from deduper.table.index.keys import Int64s
from deduper.table.index.matching import bounded_column, bounds_of, value_of
from deduper.table.index.protocol import Differences
from deduper.table.index.reading import grouped, opened, read_keys, rows_of

logger = logging.getLogger(__name__)

_STEP_ROWS = 4 << 20
"""About so many keys are read for a state: an interrupted building continues after the last one."""


class FilterIndex:
    """See `KeyIndex`."""

    def __init__(self, folder: Path, columns: KeyColumns, state_file: str = STATE) -> None:
        self._folder = folder
        self._columns = columns
        self._state_file = state_file
        self.began_anew: str | None = None
        make_directories(LOCAL, filters_folder(folder))
        self._state = self._opened()
        self._sweep()

    @property
    def state(self) -> BloomState:
        """The state as it is on disk."""
        return self._state

    def add_loaded(self, files: Sequence[DataFile], keys: SortedKeys) -> None:
        """See `KeyIndex`. The files are read, for the ranges of their values."""

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """See `KeyIndex`. A file that the table has no more loses its filter; should it come back, it is read again."""
        present = {file.identity for file in files}
        known = {file.identity for file in self._state.files}
        missing = [file for file in files if file.identity not in known]
        for group in grouped(missing, rows_of(root, missing), _STEP_ROWS):
            self._add(root, group)
        kept = tuple(file for file in self._state.files if file.identity in present)
        if len(kept) < len(self._state.files):
            gone = [self._state.name(file) for file in self._state.files if file.identity not in present]
            self._write(replace(self._state, files=kept))
            for name in gone:
                LOCAL.remove(filters_folder(self._folder) / name)
        return len(missing)

    def replace_old(self) -> None:
        """Puts a rebuilt index in the place of the old one, in one step, and deletes the old one's filters."""
        LOCAL.replace(self._folder / self._state_file, self._folder / STATE)
        LOCAL.fsync_dir(self._folder)
        self._state_file = STATE
        self._sweep()

    def version(self, root: Path, files: Iterable[DataFile]) -> FilteredKeys:
        """See `KeyIndex`."""
        return FilteredKeys(root, self._columns, _numbered(self._state, files), self._folder, self._state)

    def _opened(self) -> BloomState:
        try:
            found = read_state(self._folder, self._state_file)
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

    def _new(self, why: str) -> BloomState:
        self.began_anew = why
        state = BloomState(secrets.token_hex(16), secrets.token_bytes(SALT_BYTES), self._columns, 0, ())
        write_state(self._folder, state, self._state_file)
        return state

    def _sweep(self) -> None:
        # A state that cannot be read begins anew when it is next opened, so its filters are of no use.
        other = sound_state(self._folder, STATE if self._state_file == REBUILDING else REBUILDING)
        states = [state for state in (self._state, other) if state is not None]
        kept = {state.name(file) for state in states for file in state.files}
        for name in listed(LOCAL, filters_folder(self._folder)):
            if name not in kept:
                LOCAL.remove(filters_folder(self._folder) / name)

    def _write(self, state: BloomState) -> None:
        write_state(self._folder, state, self._state_file)
        self._state = state

    def _add(self, root: Path, files: Sequence[DataFile]) -> None:
        """Makes the filters of files; the state names them all at once."""
        numbered = list(enumerate(files, self._state.next_number))
        added = []
        for (number, file), keys in zip(
            numbered, read_keys(root, numbered, self._columns, self._state.salt), strict=True
        ):
            words = filter_words(keys.hi)
            least, greatest = self._bounds(root, file)
            made = FilteredFile(number, file.path, file.size, file.stamp, keys.count, 0, least, greatest)
            data = encode_filter(self._state.owner(made), words)
            path = filters_folder(self._folder) / self._state.name(made)
            LOCAL.remove(path)  # of an interrupted step
            place_new(LOCAL, path, data)
            added.append(replace(made, size_bytes=len(data)))
        failpoints.hit("index.piece")
        number = self._state.next_number + len(files)
        self._write(replace(self._state, next_number=number, files=(*self._state.files, *added)))
        failpoints.hit("index.state")

    def _bounds(self, root: Path, file: DataFile) -> tuple[str | None, str | None]:
        column = bounded_column(self._columns)
        if column is None:
            return None, None
        with opened(root, file) as parquet:
            return bound_texts(bounds_of(parquet.metadata, column))


class FilterView:
    """See `IndexView`."""

    def __init__(self, folder: Path, columns: KeyColumns) -> None:
        self.absent: str | None = None
        self._folder = folder
        self._columns = columns
        state: BloomState | None = None
        try:
            state = read_state(folder)
        except (CorruptionError, UnknownFormatError) as error:
            self.absent = f"its state cannot be read: {error}"
        else:
            if state is None:
                self.absent = "there is none"
            elif state.columns != columns:
                self.absent = "it is of another key, other types or scope"
        if state is None or self.absent is not None:
            state = BloomState("", bytes(SALT_BYTES), columns, 0, ())
        self._state = state
        self.salt = state.salt
        self.next_number = state.next_number

    def numbered(self, files: Iterable[DataFile]) -> list[tuple[int, DataFile]]:
        """See `IndexView`."""
        return list(_numbered(self._state, files).items())

    def version(self, root: Path, files: Sequence[DataFile]) -> FilteredKeys:
        """See `IndexView`. Files that the index lacks may have any key."""
        files_of = _numbered(self._state, files)
        return FilteredKeys(root, self._columns, files_of, self._folder, self._state, is_view=True)

    def buckets(self) -> Iterable[int]:
        """See `IndexView`. A filter lists none."""
        return ()

    def differences(
        self,
        bucket: int,  # noqa: ARG002  the interface's
        among: tuple[int, int],  # noqa: ARG002  the same
        read: FileKeys,
        indexed: NDArray[np.bool_],  # noqa: ARG002  the same
    ) -> Differences:
        """See `IndexView`. Keys that do not pass the filter of their file are missing; a filter has no entries."""
        filtered = {file.number: file for file in self._state.files}
        missing: Counter[int] = Counter()
        for number in np.unique(read.file).tolist():
            words = _words(self._folder, self._state, filtered[number])
            if words is None:
                raise _gone(self._folder, self._state, filtered[number])
            lost = int((~may_have(words, read.hi[read.file == number])).sum())
            if lost:
                missing[number] = lost
        return Differences(missing)


class FilteredKeys(ReadKeys):
    """Keys of a version; a file is read if its range and its filter let a key pass."""

    def __init__(
        self,
        root: Path,
        columns: KeyColumns,
        files: Mapping[int, DataFile],
        folder: Path,
        state: BloomState,
        *,
        is_view: bool = False,
    ) -> None:
        super().__init__(root, columns, state.salt, files)
        self._folder = folder
        self._state = state
        self._filtered = {file.number: file for file in state.files}
        self._is_view = is_view

    def narrowed(self, number: int, places: tuple[int, int], asked: Asked) -> Int64s:
        """See `ReadKeys`."""
        file = self._filtered.get(number)
        if file is None:
            return super().narrowed(number, places, asked)
        in_range = self._in_range(file, places, asked)
        if not len(in_range):
            return in_range
        words = _words(self._folder, self._state, file)
        if words is None:
            if self._is_view:
                return in_range  # a write has dropped the file since the view was taken
            raise _gone(self._folder, self._state, file)
        return in_range[may_have(words, asked.keys.digests[in_range, 0])]

    def _in_range(self, file: FilteredFile, places: tuple[int, int], asked: Asked) -> Int64s:
        """The places of values within the file's range, which is a slice of the sorted values: no tree is needed."""
        if self.bounded is None:
            return np.arange(*places)
        least, greatest = (bound_value(text, self.bounded) for text in (file.least, file.greatest))
        by_value, values = asked.ordered(places, self.bounded)
        begin = 0 if least is None else bisect_left(values, least, key=value_of)
        end = len(values) if greatest is None else bisect_right(values, greatest, key=value_of)
        return np.arange(*places) if end - begin == len(values) else np.sort(by_value[begin:end])


def _words(folder: Path, state: BloomState, file: FilteredFile) -> NDArray[np.uint32] | None:
    """The filter of a file; None when it is gone.

    Raises:
        IndexDamagedError: it is damaged.
    """
    try:
        return read_filter(filters_folder(folder) / state.name(file), state.owner(file))
    except FileNotFoundError:
        return None
    except (CorruptionError, UnknownFormatError) as error:
        raise IndexDamagedError(f"{error}; delete {folder}: the next load builds the index anew") from error


def _gone(folder: Path, state: BloomState, file: FilteredFile) -> IndexDamagedError:
    path = filters_folder(folder) / state.name(file)
    return IndexDamagedError(f"{path}: is gone; delete {folder}: the next load builds the index anew")


def _numbered(state: BloomState, files: Iterable[DataFile]) -> dict[int, DataFile]:
    """The files by their numbers; those that the index lacks have free ones."""
    known = {file.identity: file.number for file in state.files}
    return {known.get(file.identity, state.next_number + place): file for place, file in enumerate(files)}
