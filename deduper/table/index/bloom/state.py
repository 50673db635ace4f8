"""The state of a bloom index: which files it has a filter of, under which numbers, and their ranges; see `kept`.

Magic "BSTABBLM", version 1, and `BloomState` as the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.index.bloom.filter import FilterOwner
from deduper.table.index.kept import NumberedFile, StateFile

FILTERS = "filters"
_LONGEST = 64


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


FORM = StateFile(BloomState, b"BSTABBLM", 1, "state of a bloom index")
read_state, write_state = FORM.read, FORM.write


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
