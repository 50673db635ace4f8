"""The exact index as a kind; see `TableIndex`."""

from __future__ import annotations

from pathlib import Path

from deduper.table.columns import KeyColumns
from deduper.table.index.exact.index import PieceIndex
from deduper.table.index.exact.state import FORM, IndexState
from deduper.table.index.exact.view import PieceView
from deduper.table.index.kept import REBUILDING, KeptKind, Part


class ExactIndex(KeptKind[IndexState]):
    """Every key with its file, in `_deduper/index` of the table's folder."""

    kind = "exact"
    form = FORM
    folder_name = "index"

    def open(self, root: Path, columns: KeyColumns) -> PieceIndex:
        """See `TableIndex`."""
        return PieceIndex(self.folder(root), columns)

    def view(self, root: Path, columns: KeyColumns) -> PieceView:
        """See `TableIndex`."""
        return PieceView(self.folder(root), columns)

    def _rebuilding(self, root: Path, columns: KeyColumns) -> PieceIndex:
        return PieceIndex(self.folder(root), columns, REBUILDING)

    def _parts(self, folder: Path, state: IndexState) -> list[Part]:
        return [Part(folder / ref.file, ref.entries, ref.length) for ref in state.pieces]
