"""The five rules by which keys are forgotten, as arguments of a `Deduper`. PURE.

Each is the section `expiry` of a job's file, with the same names; SEMANTICS.md says what they mean. None has a period
by default: state without an end is asked for by name, with `Never`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class EventTime:
    """Keys expire `period` after a time in the row.

    Args:
        field: a column of timestamps, or of whole numbers with a `unit`.
        period: how long a key is remembered: `24h`, `24 hours`.
        span: the width of a bucket; by default a 24th of the period, in whole seconds.
        unit: of a column of whole numbers, which count since 1970: `s`, `ms` or `us`.
        lookup: `own_bucket` finds copies with a time in the same bucket; `all_live` finds every copy.
        clock: the latest point moves with every row (`arrival`) or once a batch (`batch`).
        max_ahead_of_now: a time further ahead of the wall clock is an error; `off` for no limit.
        max_jump: a time further ahead of the latest point is an error; `off` for no limit.

    >>> EventTime("ts", period="24 hours", lookup="all_live").section()["period"]
    '24 hours'
    """

    field: str
    period: str
    span: str | None = None
    unit: Literal["s", "ms", "us"] | None = None
    lookup: Literal["own_bucket", "all_live"] = "own_bucket"
    clock: Literal["arrival", "batch"] = "arrival"
    max_ahead_of_now: str = "1h"
    max_jump: str = "off"

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        return _section("event_time", self)


@dataclass(frozen=True, slots=True)
class ProcessingTime:
    """Keys expire `period` after the batch that first had them, by the wall clock.

    >>> ProcessingTime("7d").section()
    {'by': 'processing_time', 'period': '7d'}
    """

    period: str
    span: str | None = None

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        return _section("processing_time", self)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Keys expire by a number in the row: those more than `period` behind the greatest one.

    Args:
        field: a column of numbers: int, bigint, double, or a decimal of at most 18 digits.
        period: how far behind the greatest number a key is remembered.
        span: the width of a bucket; by default a 24th of the period, or the period if that is no whole number.
        lookup, clock, max_jump: as of `EventTime`.

    >>> Ordered("sequence", period=2400).section()["span"]
    100
    """

    field: str
    period: float
    span: float | None = None
    lookup: Literal["own_bucket", "all_live"] = "own_bucket"
    clock: Literal["arrival", "batch"] = "arrival"
    max_jump: float | None = None

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        section = _section("ordered", self)
        if self.span is None:
            section["span"] = self.period // 24 if self.period > 0 and self.period % 24 == 0 else self.period
        return section


@dataclass(frozen=True, slots=True)
class Category:
    """Keys live as long as their value of a column is among the `keep` most recent ones.

    >>> Category("file_date", keep=7).section()
    {'by': 'category', 'field': 'file_date', 'live_categories': 7}
    """

    field: str
    keep: int
    remember_dropped: int | None = None

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        section = _section("category", self)
        section["live_categories"] = section.pop("keep")
        return section


@dataclass(frozen=True, slots=True)
class Never:
    """Keys are remembered for ever: the store grows with every key.

    >>> Never().section()
    {'by': 'never'}
    """

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        return _section("never", self)


Expiry = EventTime | ProcessingTime | Ordered | Category | Never


def _section(by: str, rule: Expiry) -> dict[str, Any]:
    values = {name: getattr(rule, name) for name in rule.__slots__}
    return {"by": by, **{name: value for name, value in values.items() if value is not None}}
