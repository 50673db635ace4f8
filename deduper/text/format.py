"""The declared columns of lines of text, and the error of a line that is no record."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.arrow_columns import DeclaredColumn
from deduper.log_formats import LOGS


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
