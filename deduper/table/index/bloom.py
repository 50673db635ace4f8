"""The bloom index: of each file a filter of its keys, and the range of one key column; other files are not read.

    <folder>/state                    a framed file: magic "BSTABBLM", version 1, `BloomState` as the body
    <folder>/filters/<id>-<n>.filter  see `bloom_filter`; id of the index, number of the data file

Order of a step: the new filters are durable, then the state that names them; see `persistent`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, place_new
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import IndexDamagedError, SettingError
from deduper.table.formats.files import FramedFile
from deduper.table.formats.protocol import DataFile
from deduper.table.index.bloom_filter import (
    FilterOwner,
    add_keys,
    bits_for,
    empty_words,
    encode_filter,
    may_have,
    read_filter,
)
from deduper.table.index.keys import FileKeys, Int64s
from deduper.table.index.matching import bounded_column, bounds_of, value_of
from deduper.table.index.persistent import (
    REBUILDING,
    STATE,
    NumberedFile,
    Part,
    PersistentIndex,
    PersistentKind,
    numbered,
    serving,
)
from deduper.table.index.protocol import AddedKeys, Differences, WrittenFile
from deduper.table.index.reading import grouped, key_parts, opened, rows_of
from deduper.table.index.simple import Lookup, ReadKeys

FILTERS = "filters"
_LONGEST = 64
_STEP_ROWS = 4 << 20
"""About so many keys are read for a state: an interrupted building continues after the last one."""
_THREADS = 4
_FPP = 0.006
"""12 bits a key."""
_LEAST, _MOST = 0.00001, 0.5
"""41 bits a key, and 4."""


@dataclass(frozen=True, slots=True)
class FilteredFile(NumberedFile):
    """A file with a filter. `size_bytes` are the filter's.

    `least` and `greatest` value of `matching.bounded_column` among its rows as texts, a date as its days; None: no
    bound.
    """

    keys: int
    size_bytes: int
    least: str | None
    greatest: str | None


@dataclass(frozen=True, slots=True)
class BloomState:
    """An index; `columns` and `salt` are fixed for its life."""

    index_id: str
    salt: bytes
    columns: KeyColumns
    next_number: int
    files: tuple[FilteredFile, ...]

    def name(self, file: FilteredFile) -> str:
        """The filter's file of a file."""
        return f"{self.index_id}-{file.number}.filter"

    def owner(self, file: FilteredFile) -> FilterOwner:
        """Whose the filter of a file is."""
        return FilterOwner(self.index_id, file.number, file.keys)


FORM = FramedFile(BloomState, b"BSTABBLM", 1, "state of a bloom index")


def bound_texts(bounds: tuple[Any, Any] | None) -> tuple[str | None, str | None]:
    """Bounds as the state has them. A long least one is cut, so it is less; a long greatest one bounds nothing."""
    if bounds is None:
        return None, None
    least, greatest = map(str, bounds)
    return least[:_LONGEST], greatest if len(greatest) <= _LONGEST else None


def bound_value(text: str | None, column: KeyColumn) -> Any:
    """A bound for comparing, as `matching.value_of`."""
    if text is None or column.type == "string":
        return text
    return int(text)


class FilterIndex(PersistentIndex[BloomState]):
    """See `KeyIndex`."""

    form = FORM
    parts = FILTERS

    def __init__(self, folder: Path, columns: KeyColumns, fpp: float, state_file: str = STATE) -> None:
        self._key_bits = bits_for(fpp)
        super().__init__(folder, columns, state_file)

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
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
                LOCAL.remove(self._folder / FILTERS / name)
        return len(missing)

    def version(self, root: Path, files: Iterable[DataFile]) -> FilteredKeys:
        """See `KeyIndex`."""
        return FilteredKeys(
            root, self._columns, numbered(self._state.files, self._state.next_number, files), self._folder, self._state
        )

    def _begun(self, index_id: str, salt: bytes) -> BloomState:
        return BloomState(index_id, salt, self._columns, 0, ())

    def _named(self, state: BloomState) -> Iterable[str]:
        return map(state.name, state.files)

    def _add(self, root: Path, files: Sequence[DataFile]) -> None:
        """Makes the filters of files; the state names them all at once."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-reader") as pool:
            new = enumerate(files, self._state.next_number)
            added = tuple(pool.map(lambda one: self._filtered(root, *one), new))
        failpoints.hit("index.piece")
        number = self._state.next_number + len(files)
        self._write(replace(self._state, next_number=number, files=self._state.files + added))
        failpoints.hit("index.state")

    def _filtered(self, root: Path, number: int, file: DataFile) -> FilteredFile:
        """A file with its filter, which is placed. Thread-safe."""
        with opened(root, file) as opened_file:
            footer = opened_file.footer
        words = empty_words(footer.num_rows, self._key_bits)
        keys = 0
        for part in key_parts(root, number, file, self._columns, self._state.salt):
            add_keys(words, part.hi)
            keys += part.count
        made = FilteredFile(number, file.path, file.size, file.stamp, keys, 0, *self._bounds(footer))
        data = encode_filter(self._state.owner(made), words)
        path = self._folder / FILTERS / self._state.name(made)
        LOCAL.remove(path)  # of an interrupted step
        place_new(LOCAL, path, data)
        return replace(made, size_bytes=len(data))

    def _bounds(self, footer: pq.FileMetaData) -> tuple[str | None, str | None]:
        column = bounded_column(self._columns)
        return (None, None) if column is None else bound_texts(bounds_of(footer, column))


class FilterView:
    """See `IndexView`."""

    def __init__(self, folder: Path, columns: KeyColumns) -> None:
        self._folder = folder
        self._columns = columns
        found, self.absent = serving(FORM, folder, columns)
        state = found or BloomState("", bytes(SALT_BYTES), columns, 0, ())
        self._state = state
        self.salt = state.salt
        self.next_number = state.next_number

    def numbered(self, files: Iterable[DataFile]) -> dict[int, DataFile]:
        """See `IndexView`."""
        return numbered(self._state.files, self.next_number, files)

    def version(self, root: Path, files: Sequence[DataFile]) -> FilteredKeys:
        """See `IndexView`. Files that the index lacks may have any key."""
        return FilteredKeys(root, self._columns, self.numbered(files), self._folder, self._state, is_view=True)

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
        """See `IndexView`. Keys that do not pass the filter of their file are missing; a filter has no entries.

        A write deletes a filter after the state that does not name it.
        """
        filtered = {file.number: file for file in self._state.files}
        missing: Counter[int] = Counter()
        for number in np.unique(read.file).tolist():
            words = _words(self._folder, self._state, filtered[number])
            if words is None:
                now = FORM.sound(self._folder / STATE)
                if now is None or self._state.name(filtered[number]) not in map(now.name, now.files):
                    continue
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

    def narrowed(self, number: int, places: tuple[int, int], lookup: Lookup) -> Int64s:
        """See `ReadKeys`."""
        file = self._filtered.get(number)
        if file is None:
            return super().narrowed(number, places, lookup)
        in_range = self._in_range(file, places, lookup)
        if not len(in_range):
            return in_range
        words = _words(self._folder, self._state, file)
        if words is None:
            if self._is_view:
                return in_range  # a write has dropped the file since the view was taken
            raise _gone(self._folder, self._state, file)
        return in_range[may_have(words, lookup.keys.digests[in_range, 0])]

    def _in_range(self, file: FilteredFile, places: tuple[int, int], lookup: Lookup) -> Int64s:
        """The places of values within the file's range, which is a slice of the sorted values: no tree is needed."""
        if self.bounded is None:
            return np.arange(*places)
        least, greatest = (bound_value(text, self.bounded) for text in (file.least, file.greatest))
        by_value, values = lookup.ordered(places, self.bounded)
        begin = 0 if least is None else bisect_left(values, least, key=value_of)
        end = len(values) if greatest is None else bisect_right(values, greatest, key=value_of)
        return np.arange(*places) if end - begin == len(values) else np.sort(by_value[begin:end])


def _words(folder: Path, state: BloomState, file: FilteredFile) -> NDArray[np.uint32] | None:
    """The filter of a file; None when it is gone.

    Raises:
        IndexDamagedError: it is damaged.
    """
    try:
        return read_filter(folder / FILTERS / state.name(file), state.owner(file))
    except FileNotFoundError:
        return None
    except (CorruptionError, UnknownFormatError) as error:
        raise IndexDamagedError(f"{error}; delete {folder}: the next load builds the index anew") from error


def _gone(folder: Path, state: BloomState, file: FilteredFile) -> IndexDamagedError:
    path = folder / FILTERS / state.name(file)
    return IndexDamagedError(f"{path}: is gone; delete {folder}: the next load builds the index anew")


class BloomIndex(PersistentKind[BloomState]):
    """A filter and a range of each file, in `_deduper/bloom` of the table's folder.

    `fpp`: of a filter that is made, the share of the keys that pass without being the file's (false positives).

    Raises:
        SettingError: of `index.options`.
    """

    form = FORM
    folder_name = "bloom"

    def __init__(self, fpp: float = _FPP) -> None:
        if isinstance(fpp, bool) or not isinstance(fpp, int | float) or not _LEAST <= fpp <= _MOST:
            what = f"`fpp` is {fpp!r}, and is the share of absent keys for which a file is read all the same"
            raise SettingError("index.options", what, f"write a number from {_LEAST:.5f} to {_MOST}")
        self._fpp = fpp

    def open(self, root: Path, columns: KeyColumns) -> FilterIndex:
        """See `TableIndex`."""
        return FilterIndex(self.folder(root), columns, self._fpp)

    def view(self, root: Path, columns: KeyColumns) -> FilterView:
        """See `TableIndex`."""
        return FilterView(self.folder(root), columns)

    def _rebuilding(self, root: Path, columns: KeyColumns) -> FilterIndex:
        return FilterIndex(self.folder(root), columns, self._fpp, REBUILDING)

    def _parts(self, folder: Path, state: BloomState) -> list[Part]:
        return [Part(folder / FILTERS / state.name(file), file.keys, file.size_bytes) for file in state.files]
