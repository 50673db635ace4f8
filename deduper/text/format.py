"""The declared columns of lines of text, and the error of a line that is no record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from deduper.arrow_columns import DeclaredColumn
from deduper.log_formats import LOGS

_T = TypeVar("_T")


class Malformed(ValueError):
    """A line that is not one whole record; the text says why, without values of the line."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """What a line holds: `columns`, by name in JSON and logs and, all scalar, in their order in CSV.

    `zone` is the session's, for times without one. `delimiter` is the sign between the fields of CSV, `log` the name of
    a log's format, by `log_formats`; both None: JSON.
    """

    columns: tuple[DeclaredColumn, ...]
    zone: str
    delimiter: str | None = None
    log: str | None = None

    @classmethod
    def of(cls, form: str, columns: tuple[DeclaredColumn, ...], zone: str, delimiter: str = ",") -> TextFormat:
        """By the name of a format in the settings."""
        return cls(columns, zone, delimiter if form == "csv" else None, form if form in LOGS else None)


def per_format(make: Callable[[TextFormat], _T]) -> Callable[[TextFormat], _T]:
    """A function that makes something of a format, and makes it once.

    It knows a format by its identity: to compare formats takes longer than to parse a line.
    """
    known: dict[int, tuple[TextFormat, _T]] = {}

    def made(text: TextFormat) -> _T:
        found = known.get(id(text))
        if found is None or found[0] is not text:
            if len(known) >= 64:
                known.clear()
            found = known[id(text)] = text, make(text)
        return found[1]

    return made
