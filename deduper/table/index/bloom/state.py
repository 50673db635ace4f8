"""The file `state` of a bloom index: which files it has a filter of, under which numbers, and their ranges.

A framed file: magic "BSTABBLM", version 1, and `BloomState` as its body. It is replaced whole and durable after each
step; what it does not name counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, replace_whole
from bucket_store.framing import frame
from bucket_store.wire import encode
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.formats.protocol import PRIVATE, FileIdentity
from deduper.table.framed import read_framed
from deduper.table.index.bloom.filter import FilterOwner

_MAGIC = b"BSTABBLM"
_VERSION = 1
STATE = "state"
REBUILDING = "rebuilding"
"""The state of an index under rebuilding, beside the one that counts."""
_LONGEST = 64


@dataclass(frozen=True, slots=True)
class FilteredFile:
    """A file with a filter, under its number; numbers are never used again. `size_bytes` are the filter's.

    `least` and `greatest` value of `matching.bounded_column` among its rows as texts, a date as its days; None: no
    bound.
    """

    number: int
    path: str
    size: int
    stamp: int
    keys: int
    size_bytes: int
    least: str | None
    greatest: str | None

    @property
    def identity(self) -> FileIdentity:
        """As of the table's file."""
        return self.path, self.size, self.stamp


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


def bloom_folder(table: Path) -> Path:
    """The folder of a table's index."""
    return table / PRIVATE / "bloom"


def filters_folder(folder: Path) -> Path:
    """The folder of the filters."""
    return folder / "filters"


def read_state(folder: Path, name: str = STATE) -> BloomState | None:
    """The state of an index; None when there is none.

    Raises:
        CorruptionError, UnknownFormatError: it cannot be read.
    """
    return read_framed(BloomState, folder / name, magic=_MAGIC, version=_VERSION, what="state of a bloom index")


def sound_state(folder: Path, name: str = STATE) -> BloomState | None:
    """As `read_state`; None as well when it cannot be read."""
    try:
        return read_state(folder, name)
    except (CorruptionError, UnknownFormatError):
        return None


def write_state(folder: Path, state: BloomState, name: str = STATE) -> None:
    """Replaces the state; durable on return."""
    replace_whole(LOCAL, folder / name, frame(_MAGIC, _VERSION, encode(state)))
    with LOCAL.open(folder / name) as file:
        file.sync()
    LOCAL.fsync_dir(folder)


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
