"""The bloom index as a kind; see `TableIndex`."""

from __future__ import annotations

from pathlib import Path

from deduper.table.columns import KeyColumns
from deduper.table.index.bloom.index import FilterIndex, FilterView
from deduper.table.index.bloom.state import FILTERS, FORM, BloomState
from deduper.table.index.kept import REBUILDING, KeptKind, Part


class BloomIndex(KeptKind[BloomState]):
    """A filter and a range of each file, in `_deduper/bloom` of the table's folder."""

    kind = "bloom"
    form = FORM
    folder_name = "bloom"

    def open(self, root: Path, columns: KeyColumns) -> FilterIndex:
        """See `TableIndex`."""
        return FilterIndex(self.folder(root), columns)

    def view(self, root: Path, columns: KeyColumns) -> FilterView:
        """See `TableIndex`."""
        return FilterView(self.folder(root), columns)

    def _rebuilding(self, root: Path, columns: KeyColumns) -> FilterIndex:
        return FilterIndex(self.folder(root), columns, REBUILDING)

    def _parts(self, folder: Path, state: BloomState) -> list[Part]:
        return [Part(folder / FILTERS / state.name(file), file.keys, file.size_bytes) for file in state.files]
