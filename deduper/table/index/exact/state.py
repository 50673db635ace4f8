"""The state of an exact index: which files it has read, under which numbers, and its pieces; see `kept`.

Magic "BSTABKEY", version 1, and `IndexState` as the body.
"""

from __future__ import annotations

from dataclasses import dataclass

from bucket_store.pieces.piece import PieceRef
from deduper.table.columns import KeyColumns
from deduper.table.index.kept import NumberedFile, StateFile


@dataclass(frozen=True, slots=True)
class IndexState:
    """An index. `pieces` are from old to young; `columns` and `salt` are fixed for its life."""

    index_id: str
    salt: bytes
    columns: KeyColumns
    next_number: int
    files: tuple[NumberedFile, ...]
    pieces: tuple[PieceRef, ...]


FORM = StateFile(IndexState, b"BSTABKEY", 1, "state of an index")
read_state, write_state = FORM.read, FORM.write
