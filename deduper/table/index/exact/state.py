"""The file `state` of an index: which files it has read, under which numbers, and its pieces.

A framed file: magic "BSTABKEY", version 1, and `IndexState` as its body. It is replaced whole and durable after each
step; what it does not name counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, replace_whole
from bucket_store.framing import frame
from bucket_store.pieces.piece import PieceRef
from bucket_store.wire import encode
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import PRIVATE, FileIdentity
from deduper.table.framed import read_framed

_MAGIC = b"BSTABKEY"
_VERSION = 1
STATE = "state"
REBUILDING = "rebuilding"
"""The state of an index under rebuilding, beside the one that counts."""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file whose keys are in the pieces, under its number. Numbers are never used again."""

    number: int
    path: str
    size: int
    stamp: int

    @property
    def identity(self) -> FileIdentity:
        """As of the table's file."""
        return self.path, self.size, self.stamp


@dataclass(frozen=True, slots=True)
class IndexState:
    """An index. `pieces` are from old to young; `columns` and `salt` are fixed for its life."""

    index_id: str
    salt: bytes
    columns: KeyColumns
    next_number: int
    files: tuple[IndexedFile, ...]
    pieces: tuple[PieceRef, ...]


def read_state(folder: Path, name: str = STATE) -> IndexState | None:
    """The state of an index; None when there is none.

    Raises:
        CorruptionError, UnknownFormatError: it cannot be read.
    """
    return read_framed(IndexState, folder / name, magic=_MAGIC, version=_VERSION, what="state of an index")


def sound_state(folder: Path, name: str = STATE) -> IndexState | None:
    """As `read_state`; None as well when it cannot be read."""
    try:
        return read_state(folder, name)
    except (CorruptionError, UnknownFormatError):
        return None


def index_folder(table: Path) -> Path:
    """The folder of a table's index."""
    return table / PRIVATE / "index"


def write_state(folder: Path, state: IndexState, name: str = STATE) -> None:
    """Replaces the state; durable on return."""
    replace_whole(LOCAL, folder / name, frame(_MAGIC, _VERSION, encode(state)))
    with LOCAL.open(folder / name) as file:
        file.sync()
    LOCAL.fsync_dir(folder)
