"""A deduper as SEMANTICS.md describes it: one tuple after the other, big ints and dicts, slow and plain.

`verdicts` judges rows as a `Deduper` would, without Spark and without a store: for tests of your own rules. The tests
of the service hold it against the `Oracle` below, which shares nothing with it. Windows go in, as lists of source
partitions, as lists of rows in source order; what comes out has the same shape: (port, reason, first copy) of every
row, the first copy being (window, source partition, position, expiry key), None unless the row is a duplicate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from deduper.config.expiry import ExpiryConfig
from deduper.query.rules import Expiry
from deduper.units import UNIT_US

Answer = tuple[str, str, tuple[int, int, int, Any] | None]


@dataclass(frozen=True)
class Settings:
    """What the user sets; times are microseconds. `ahead`, `jump`: the guards, None is off."""

    by: str
    period: Any = 0
    span: Any = 0
    lookup: str = "own_bucket"
    clock: str = "arrival"
    ahead: int | None = None
    jump: Any = None
    null_keys: str = "error"
    live_categories: int = 1
    remember_dropped: int = 10_000


@dataclass(frozen=True)
class Row:
    """A parsed record: the values of its dedup key, and its expiry key or category."""

    key: tuple[Any, ...]
    expiry: Any = None


class Oracle:
    """Remembers, and judges window after window."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.window = 0
        self.latest: Any = None  # committed
        self.moved_us = 0  # wall clock of the window in which it last moved, or in which the clock came back
        self.seen: dict[Any, tuple[int, int, int, Any]] = {}  # (bucket, key) -> first copy
        self.live: list[str] = []  # categories, the one longest here first
        self.dropped: list[str] = []

    def judge(self, partitions: list[list[Row]], now_us: int) -> list[list[Answer]]:
        """Judges and commits one window."""
        s = self.settings
        answers: list[list[Answer]] = []
        point = now_us  # of processing time: goes on from where it stands when the wall clock comes back from far ahead
        if s.by == "processing_time" and self.latest is not None:
            point = self.latest + max(0, now_us - self.moved_us)
        clocks = [self.latest]
        for partition, rows in enumerate(partitions):
            answers.append([])
            clock, moved = self.latest, False
            for position, row in enumerate(rows):
                expiry = point if s.by == "processing_time" else row.expiry
                before = self.latest if s.clock == "batch" else clock
                if s.by == "processing_time":
                    before = point
                quiet = max(0, now_us - self.moved_us) if s.by == "event_time" and not moved else 0
                refused = self._refused(row, expiry, before, now_us, quiet)
                if refused is not None:
                    answers[-1].append((*refused, None))
                    continue
                if s.by in ("event_time", "ordered") and (clock is None or expiry > clock):
                    clock, moved = expiry, s.clock == "arrival"
                memory = self._memory(row, expiry)
                first = self.seen.get(memory)
                all_live = s.lookup == "all_live" or s.by == "processing_time"
                if first is not None and all_live and before is not None and first[3] <= before - s.period:
                    first = None
                if first is None:
                    self.seen[memory] = (self.window, partition, position, expiry)
                    answers[-1].append(("unique", "", None))
                else:
                    reason = "same_window" if first[0] == self.window else "earlier_window"
                    answers[-1].append(("duplicate", reason, first))
            clocks.append(clock)
        if s.by == "processing_time":
            clocks = [point]
        greatest = max((clock for clock in clocks if clock is not None), default=None)
        if greatest != self.latest or now_us < self.moved_us:
            self.latest, self.moved_us = greatest, now_us
        self.window += 1
        return answers

    def _refused(self, row: Row, expiry: Any, before: Any, now_us: int, quiet: int) -> tuple[str, str] | None:
        """The port and the reason of a tuple whose key is not looked up; a new category takes its place here."""
        s = self.settings
        if s.null_keys == "error" and None in row.key:
            return "error", "null_key"
        if s.by in ("never", "processing_time"):
            return None
        if expiry is None:
            return "error", "null_expiry"
        if s.by == "category":
            if expiry in self.dropped:
                return "expired", "category_dropped"
            if expiry not in self.live:
                self._arrive(expiry)
            return None
        if not math.isfinite(expiry):
            return "error", "bad_expiry"
        if s.ahead is not None and expiry > now_us + s.ahead:
            return "error", "ahead_of_now"
        if s.jump is not None and before is not None and expiry > before + s.jump + quiet:
            return "error", "jump_too_far"
        if before is not None and expiry <= before - s.period:
            return "expired", "older_than_period"
        return None

    def _arrive(self, value: str) -> None:
        self.live.append(value)
        if len(self.live) > self.settings.live_categories:
            gone = self.live.pop(0)
            self.dropped.append(gone)
            self.dropped = self.dropped[max(0, len(self.dropped) - self.settings.remember_dropped) :]
            self.seen = {memory: first for memory, first in self.seen.items() if memory[0] != gone}

    def _memory(self, row: Row, expiry: Any) -> tuple[Any, ...]:
        """Where a key is looked for; equal keys give equal places (0.0 == -0.0 as they are; NaN needs help)."""
        s = self.settings
        key = tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in row.key)
        if s.by == "category":
            return expiry, key
        if s.by in ("event_time", "ordered") and s.lookup == "own_bucket":
            return (math.floor(expiry / s.span) if isinstance(expiry, float) else expiry // s.span), key
        return "everywhere", key


class Judged(NamedTuple):
    """The verdict on a row: port, reason (empty for unique rows), and of a duplicate (batch, row) of its first copy."""

    port: str
    reason: str
    first: tuple[int, int] | None


def verdicts(
    batches: Iterable[Sequence[Mapping[str, Any]]],
    *,
    key: str | Sequence[str],
    expiry: Expiry,
    null_keys: Literal["error", "allow"] = "error",
    now: datetime | None = None,
) -> list[list[Judged]]:
    """What a `Deduper` with these settings says of rows, batch by batch; each batch is one partition.

    Args:
        batches: rows as mappings from columns to values; times are `datetime` (UTC if they have no zone).
        key, expiry, null_keys: as of a `Deduper`.
        now: the wall clock at all batches, for `max_ahead_of_now` and `ProcessingTime`; by default that of the machine.

    >>> from deduper import EventTime
    >>> at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    >>> rows = [{"id": 1, "ts": at}, {"id": 1, "ts": at + timedelta(hours=1)}, {"id": 2, "ts": at - timedelta(days=1)}]
    >>> rule = EventTime("ts", period="24h", lookup="all_live")
    >>> for judged in verdicts([rows], key="id", expiry=rule, now=at)[0]:
    ...     print(judged.port, judged.reason, judged.first)
    unique  None
    duplicate same_window (0, 0)
    expired older_than_period None
    """
    section: Any = TypeAdapter(ExpiryConfig).validate_python(expiry.section())
    names = [key] if isinstance(key, str) else list(key)
    oracle = Oracle(
        Settings(
            by=section.by,
            period=getattr(section, "period", 0),
            span=getattr(section, "span", 0),
            lookup=getattr(section, "lookup", "own_bucket"),
            clock=getattr(section, "clock", "arrival"),
            ahead=getattr(section, "max_ahead_of_now", None),
            jump=getattr(section, "max_jump", None),
            null_keys=null_keys,
            live_categories=getattr(section, "live_categories", 1),
            remember_dropped=getattr(section, "remember_dropped", 10_000),
        )
    )
    now_us = _micros(datetime.now(UTC) if now is None else now)
    found = []
    for batch in batches:
        rows = [Row(tuple(row[name] for name in names), _expiry_key(section, row)) for row in batch]
        (answers,) = oracle.judge([rows], now_us)
        found.append([Judged(port, why, None if of is None else (of[0], of[2])) for port, why, of in answers])
    return found


def _expiry_key(section: Any, row: Mapping[str, Any]) -> Any:
    value = row[section.field] if hasattr(section, "field") else None
    if isinstance(value, datetime):
        return _micros(value)
    unit = getattr(section, "unit", None)
    return value if unit is None or value is None else value * UNIT_US[unit]


def _micros(time: datetime) -> int:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
