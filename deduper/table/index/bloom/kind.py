"""The bloom index as a kind; see `TableIndex`."""

from __future__ import annotations

from pathlib import Path

from deduper.table.columns import KeyColumns
from deduper.table.errors import SettingError
from deduper.table.index.bloom.index import FilterIndex, FilterView
from deduper.table.index.bloom.state import FILTERS, FORM, BloomState
from deduper.table.index.kept import REBUILDING, KeptKind, Part

_FPP = 0.006
"""12 bits a key."""
_LEAST, _MOST = 0.00001, 0.5
"""41 bits a key, and 4."""


class BloomIndex(KeptKind[BloomState]):
    """A filter and a range of each file, in `_deduper/bloom` of the table's folder.

    `fpp`: of a filter that is made, the share of the keys that pass without being the file's (false positives).

    Raises:
        SettingError: of `index.options`.
    """

    kind = "bloom"
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
