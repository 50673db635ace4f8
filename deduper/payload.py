"""The parts of a record that are compared, one by one: its *leaves*. PURE.

A leaf is a scalar, an array or a map, named by its path (`page`, `meta.device.os`). An object is no value of its own
but its fields, at any depth: so one that is null equals one whose fields are all null, and the order of fields has no
effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from deduper.columns import Column, ColumnType

Path = tuple[str, ...]
"""The names from a column down to a leaf."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a record that is compared as one value."""

    path: Path
    kind: ColumnType

    @property
    def name(self) -> str:
        """The path as it is written."""
        return ".".join(self.path)


MOST_VERSIONS: Final = 64
"""So many payloads of one key a store can tell apart: its digests are made for them."""
USUAL_VERSIONS: Final = 8

WHOLE_VALUE: Final = Leaf(("value",), ColumnType("binary", "binary"))
"""The value of a topic's record, as it came."""


def leaves(columns: Sequence[Column], above: Path = ()) -> Iterator[Leaf]:
    """All leaves of some columns, or of the fields of an object."""
    for column in columns:
        path = (*above, column.name)
        if column.type.name == "struct" and column.type.parts:
            yield from leaves(column.type.parts, path)
        else:
            yield Leaf(path, column.type)


def leaves_named(name: str, columns: Sequence[Column], above: Path = ()) -> tuple[Leaf, ...]:
    """The leaves of a column, or of a field of objects, by its path; none if there is no such part.

    A column whose own name has a point comes before a field of that path.
    """
    for column in columns:
        if column.name == name:
            return tuple(leaves([column], above))
    for column in columns:
        if column.type.name == "struct" and name.startswith(f"{column.name}."):
            found = leaves_named(name[len(column.name) + 1 :], column.type.parts, (*above, column.name))
            if found:
                return found
    return ()


def identity(chosen: Sequence[Leaf]) -> str:
    """Names the parts that a fingerprint is made of: their paths and types, in any order."""
    text = "\n".join(sorted("\x00".join((*leaf.path, leaf.kind.text)) for leaf in chosen))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
