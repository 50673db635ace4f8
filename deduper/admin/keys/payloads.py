"""The parts of a payload in which two output rows differ. PURE.

Rows come from ports of any format, so values are compared as plain ones: a time in Parquet is its text in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deduper.columns import ColumnType
from deduper.payload import Leaf, leaves
from deduper.sinks import plain_values


def differing(payload: Sequence[Leaf], one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the leaves whose values differ, by the rules of fingerprints; `one` and `other` are records."""
    return tuple(leaf.name for leaf in payload if _compared(one, leaf) != _compared(other, leaf))


def _compared(record: Mapping[str, Any], leaf: Leaf) -> Any:
    value = _at(record, leaf)
    try:
        return _plain(value, leaf.kind)
    except (ValueError, KeyError, ArithmeticError):  # written while the column had another type
        return str(value)


def _at(record: Any, leaf: Leaf) -> Any:
    for name in leaf.path:
        record = None if record is None else record.get(name)
    return record


def _plain(value: Any, kind: ColumnType) -> Any:
    if kind.name == "struct":
        return tuple(_plain(_at(value, leaf), leaf.kind) for leaf in leaves(kind.parts))
    if value is None:
        return None
    if kind.name == "array":
        return tuple(_plain(one, kind.parts[0].type) for one in value)
    if kind.name == "map":
        of_key, of_value = (part.type for part in kind.parts)
        entries = value.items() if isinstance(value, Mapping) else value
        return frozenset((_plain(key, of_key), _plain(one, of_value)) for key, one in entries)
    plain: Any = plain_values.of_row(value, kind)
    return "NaN" if plain != plain else plain
