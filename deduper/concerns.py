"""PURE. What a look before the start brings up: what is wrong, where, how bad, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """The job would not start, or stop at the first record: nothing is started."""
    WARNING = "warning"
    """The job runs, and something may be lost, refused or slow later."""
    NOTE = "note"
    """Could not be looked at, or is worth knowing."""


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing: `check` is a stable name, `place` a setting, a path or a server."""

    severity: Severity
    check: str
    place: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}" if self.remedy else f"{self.place}: {self.what}"

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "severity": self.severity.value,
            "check": self.check,
            "place": self.place,
            "what": self.what,
            "remedy": self.remedy or None,
        }


def error(check: str, place: str, what: str, remedy: str) -> Concern:
    """A concern that keeps the job from starting."""
    return Concern(Severity.ERROR, check, place, what, remedy)


def warning(check: str, place: str, what: str, remedy: str) -> Concern:
    """A concern that does not."""
    return Concern(Severity.WARNING, check, place, what, remedy)


def note(check: str, place: str, what: str, remedy: str = "") -> Concern:
    """What is not wrong."""
    return Concern(Severity.NOTE, check, place, what, remedy)
