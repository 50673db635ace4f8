"""PURE. Findings of the checks before a start: what is wrong, where, how severe, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from deduper.as_json import AsJson


class Severity(StrEnum):
    """The severity of a diagnostic."""

    ERROR = "error"
    """The job would not start, or would stop at the first record: nothing is started."""
    WARNING = "warning"
    """The job runs, and something may be lost, refused or slow later."""
    NOTE = "note"
    """A check was not possible, or a hint."""


@dataclass(frozen=True, slots=True)
class Diagnostic(AsJson):
    """One result: `check` is a stable name, `place` a setting, a path or a server."""

    severity: Severity
    check: str
    place: str
    what: str
    remedy: str | None

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}" if self.remedy else f"{self.place}: {self.what}"


def near(wrong: str, known: Iterable[str]) -> str:
    """A question that comes before a remedy, if one known name is close."""
    close = difflib.get_close_matches(wrong, sorted(known), n=1)
    return f"did you mean `{close[0]}`? Else " if close else ""


def error(check: str, place: str, what: str, remedy: str) -> Diagnostic:
    """A diagnostic that keeps the job from starting."""
    return Diagnostic(Severity.ERROR, check, place, what, remedy or None)


def warning(check: str, place: str, what: str, remedy: str) -> Diagnostic:
    """A diagnostic that does not."""
    return Diagnostic(Severity.WARNING, check, place, what, remedy or None)


def note(check: str, place: str, what: str, remedy: str = "") -> Diagnostic:
    """A diagnostic without a problem."""
    return Diagnostic(Severity.NOTE, check, place, what, remedy or None)
