"""The exact index as a kind; see `TableIndex`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.table.columns import KeyColumns, KeyNames
from deduper.table.formats.protocol import DataFile
from deduper.table.index.exact.index import PieceIndex
from deduper.table.index.exact.state import REBUILDING, STATE, index_folder, read_state, sound_state
from deduper.table.index.exact.view import PieceView
from deduper.table.index.protocol import Condition, IndexStatus, Rebuilt, condition_of


class ExactIndex:
    """Every key with its file, in `_deduper/index` of the table's folder."""

    kind = "exact"

    def open(self, root: Path, columns: KeyColumns) -> PieceIndex:
        """See `TableIndex`."""
        return PieceIndex(index_folder(root), columns)

    def view(self, root: Path, columns: KeyColumns) -> PieceView:
        """See `TableIndex`."""
        return PieceView(index_folder(root), columns)

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        """See `TableIndex`. The new one is made beside the old one, and its state replaces the old one's."""
        index = PieceIndex(index_folder(root), columns, REBUILDING)
        read = index.catch_up(root, files)
        failpoints.hit("index.rebuilt")
        index.replace_old()
        pieces = index.state.pieces
        return Rebuilt(
            read, sum(ref.entries for ref in pieces), sum(ref.length for ref in pieces), index.began_anew is None
        )

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        """See `TableIndex`."""
        folder = index_folder(root)
        anew = read_state(folder, REBUILDING)
        rebuilding = None if anew is None else sum(ref.entries for ref in anew.pieces)
        present = {file.identity for file in files}
        try:
            state = read_state(folder)
        except (CorruptionError, UnknownFormatError) as error:
            why = f"{error}; the next load builds the index"
            return IndexStatus(Condition.UNREADABLE, why, len(files), 0, rebuilding=rebuilding)
        if state is None:
            why = "the next load builds the index from the table"
            return IndexStatus(Condition.ABSENT, why, len(files), 0, rebuilding=rebuilding)
        indexed = {file.identity for file in state.files}
        added, removed = len(present - indexed), len(indexed - present)
        condition, why = condition_of(added, removed), ""
        if state.columns.names != names:
            condition, why = Condition.OTHER_KEY, "it is of another key or scope, and the next load builds it anew"
        elif wrong := [ref.file for ref in state.pieces if _size(folder / ref.file) != ref.length]:
            condition = Condition.DAMAGED
            why = f"{folder / wrong[0]} is gone or cut; delete {folder}, the next load builds it"
        return IndexStatus(
            condition,
            why or None,
            added,
            removed,
            pieces=len(state.pieces),
            keys=sum(ref.entries for ref in state.pieces),
            size_bytes=(_size(folder / STATE) or 0) + sum(ref.length for ref in state.pieces),
            rebuilding=rebuilding,
        )

    def columns_of(self, root: Path) -> KeyColumns | None:
        """See `TableIndex`."""
        state = sound_state(index_folder(root))
        return None if state is None else state.columns


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
