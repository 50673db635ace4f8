"""PURE. Decoded fields held against the types they must have.

A checksum says that bytes are those that were written, not that what wrote them was right. What a decoder lets through
is folded, added and compared far away from the file it came from; so it takes nothing but the exact types (True is no
int), and its caller turns the TypeError into the error that names the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

Kinds = type | tuple[type, ...]

POINT = (int, float, NoneType)
"""An expiry key, or none."""

_PIECE = (int, str, str, int, int, int, int, int, int, int, int)
_PIECES = frozenset((*_PIECE, last) for last in POINT)


def fields(wire: Any, *kinds: Kinds) -> list[Any]:
    """`wire`, when it is a list of as many values as there are kinds, each of exactly its kind (or one of them).

    Raises:
        TypeError: it is not; the message says what is wrong first.
    """
    if type(wire) is not list or len(wire) != len(kinds):
        found = f"{len(wire)} fields" if type(wire) is list else type(wire).__name__
        raise TypeError(f"a list of {len(kinds)} fields, not {found}")
    for at, (value, kind) in enumerate(zip(wire, kinds, strict=True)):
        if not (type(value) in kind if isinstance(kind, tuple) else type(value) is kind):
            raise TypeError(f"field {at} is {type(value).__name__}")
    return wire


def piece_fields(wire: Any) -> list[Any]:
    """`wire`, when it is what `PieceRef.to_wire` gives. Raises TypeError. As `fields`, for a state of many pieces."""
    if type(wire) is not list or tuple(map(type, wire)) not in _PIECES:
        raise TypeError(f"the fields of a piece, not {wire!r:.200}")
    return wire


def each(wire: Any, kind: type) -> list[Any]:
    """`wire`, when it is a list of values of exactly this kind. Raises TypeError."""
    if type(wire) is not list or not _all_are(wire, kind):
        raise TypeError(f"a list of {kind.__name__}, not {wire!r:.200}")
    return wire


def counts(wire: Any) -> dict[str, int]:
    """`wire`, when it is a map from strings to ints. Raises TypeError."""
    if not _all_are(named(wire).values(), int):
        raise TypeError(f"a map to ints, not {wire!r:.200}")
    return wire  # type: ignore[no-any-return]  # just looked at


def named(wire: Any) -> dict[str, Any]:
    """`wire`, when it is a map from strings. Raises TypeError."""
    if type(wire) is not dict or not _all_are(wire, str):
        raise TypeError(f"a map from strings, not {wire!r:.200}")
    return wire


def _all_are(values: Iterable[Any], kind: type) -> bool:
    return all(type(value) is kind for value in values)
