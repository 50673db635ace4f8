"""The bloom index as a kind; see `TableIndex`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.table.columns import KeyColumns, KeyNames
from deduper.table.formats.protocol import DataFile
from deduper.table.index.bloom.index import FilterIndex, FilterView
from deduper.table.index.bloom.state import (
    REBUILDING,
    STATE,
    BloomState,
    bloom_folder,
    filters_folder,
    read_state,
    sound_state,
)
from deduper.table.index.protocol import Condition, IndexStatus, Rebuilt, condition_of


class BloomIndex:
    """A filter and a range of each file, in `_deduper/bloom` of the table's folder."""

    kind = "bloom"

    def open(self, root: Path, columns: KeyColumns) -> FilterIndex:
        """See `TableIndex`."""
        return FilterIndex(bloom_folder(root), columns)

    def view(self, root: Path, columns: KeyColumns) -> FilterView:
        """See `TableIndex`."""
        return FilterView(bloom_folder(root), columns)

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        """See `TableIndex`. The new one is made beside the old one, and its state replaces the old one's."""
        index = FilterIndex(bloom_folder(root), columns, REBUILDING)
        read = index.catch_up(root, files)
        failpoints.hit("index.rebuilt")
        index.replace_old()
        return Rebuilt(read, _keys(index.state), _bytes(index.state), index.began_anew is None)

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        """See `TableIndex`."""
        folder = bloom_folder(root)
        anew = read_state(folder, REBUILDING)
        rebuilding = None if anew is None else _keys(anew)
        try:
            state = read_state(folder)
        except (CorruptionError, UnknownFormatError) as error:
            why = f"{error}; the next load builds the index"
            return IndexStatus(Condition.UNREADABLE, why, len(files), 0, rebuilding=rebuilding)
        if state is None:
            why = "the next load builds the index from the table"
            return IndexStatus(Condition.ABSENT, why, len(files), 0, rebuilding=rebuilding)
        present, indexed = ({file.identity for file in of} for of in (files, state.files))
        added, removed = len(present - indexed), len(indexed - present)
        condition, why = condition_of(added, removed), ""
        sizes = {file: _size(filters_folder(folder) / state.name(file)) for file in state.files}
        if state.columns.names != names:
            condition, why = Condition.OTHER_KEY, "it is of another key or scope, and the next load builds it anew"
        elif wrong := [state.name(file) for file, size in sizes.items() if size != file.size_bytes]:
            condition = Condition.DAMAGED
            why = f"{filters_folder(folder) / wrong[0]} is gone or cut; delete {folder}, the next load builds it"
        return IndexStatus(
            condition,
            why or None,
            added,
            removed,
            pieces=len(state.files),
            keys=_keys(state),
            size_bytes=(_size(folder / STATE) or 0) + _bytes(state),
            rebuilding=rebuilding,
        )

    def columns_of(self, root: Path) -> KeyColumns | None:
        """See `TableIndex`."""
        state = sound_state(bloom_folder(root))
        return None if state is None else state.columns


def _keys(state: BloomState) -> int:
    return sum(file.keys for file in state.files)


def _bytes(state: BloomState) -> int:
    return sum(file.size_bytes for file in state.files)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
