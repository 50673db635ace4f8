"""Reports of a running job: one `BatchProgress` a window, one `RunSummary` at the end.

Both have one line for people and one JSON object for programs, and both are plain values: nothing here prints.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from deduper.leaks.figures import LeakFigures
from deduper.units import counted, span

_MOST_GROUPS = 3


MANY_ERRORS = 0.5
"""With a larger share of errors among its records a window is worth a warning: the config does not fit the data."""
MANY_EXPIRED = 0.1
"""As many expired records are worth one, too: data in order has few."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Error rows of one reason and detail; no detail where the error port is not written."""

    reason: str
    detail: str | None
    rows: int


PROGRESS = logging.getLogger("deduper.progress")
"""For people who watch a start: one line for each thing that a job waits for. `run` shows them without `--verbose`."""


@dataclass(frozen=True, slots=True)
class RemainingInput:
    """Remaining input, as `count` things of the kind `noun`, and the estimated `seconds` for it."""

    count: int
    noun: str
    seconds: float | None = None

    def __str__(self) -> str:
        return self._text(counted(self.count, self.noun))

    @property
    def short(self) -> str:
        """The same without `noun`."""
        return self._text(f"{self.count:,}")

    def _text(self, things: str) -> str:
        things = f"{things} left"
        return things if self.seconds is None or not self.count else f"{things}, {span(max(1.0, self.seconds))}"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One published window.

    `batch_id` is Spark's, `window` the store's. `latest_point` is ready to print (`ExpiryKeyScale.shown`): ISO 8601
    text for times. `seconds` are those from its batch until the next window can begin. `phases` names seconds of the
    numbered steps of a batch, in their order; `wait` is for the publication of the window before. `judge.…` are parts
    of `judge`, `task.…` sums over the shards' tasks, several of which run at once; `send` is a publication beside the
    next window, no part of `seconds`. `tables` sums the counters of the resident tables over the shards
    (`TableCounters`). `leaks` are the figures of the leak meter with this window. `errors` are the largest groups
    of error rows, `causes` what may have caused them; `expired_cause` is that of expired rows. `left` is what the
    source has more of, where that is known.
    """

    window: int
    batch_id: int
    rows: int
    unique: int
    duplicate: int
    expired: int
    error: int
    seconds: float
    rows_per_second: float
    latest_point: str | int | float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    tables: dict[str, float] = field(default_factory=dict)
    leaks: LeakFigures | None = None
    errors: tuple[ErrorGroup, ...] = ()
    causes: tuple[str, ...] = ()
    expired_cause: str | None = None
    left: RemainingInput | None = None

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`, `event` names the kind of object."""
        values = asdict(self)
        del values["leaks"]  # of all windows, not of this one; `status --json` has them
        return {"event": "window", **_rounded(values)}


STOPPED = {"drained": "source drained", "max_windows": "window limit reached", "signal": "stopped by a signal"}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run from start to stop. `windows` counts those it committed.

    `stopped_by` is `drained`, `max_windows` or `signal`; a run that fails raises instead. `error_note` says why many
    rows were errors, `expired_note` why many were expired; None if they were few. `nothing_note` is that of
    a run without a window: what was judged before, and how to begin again.
    """

    windows: int
    unique: int
    duplicate: int
    expired: int
    error: int
    seconds: float
    stopped_by: str
    error_note: str | None = None
    expired_note: str | None = None
    nothing_note: str | None = None

    @property
    def rows(self) -> int:
        """All rows judged."""
        return self.unique + self.duplicate + self.expired + self.error

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {"event": "summary", "rows": self.rows, **_rounded(asdict(self))}


class Phases:
    """Seconds of wall time by phase, in order, and in total."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Measures the block as a part of this phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @property
    def total_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began


def progress_line(progress: BatchProgress) -> str:
    """One window on one line, its columns aligned while the numbers are of ordinary size."""
    point = "" if progress.latest_point is None else f", latest {progress.latest_point}"
    return (
        f"window {progress.window:>4}  {progress.rows:>9,} rows  "
        f"unique {progress.unique:>9,}  duplicate {progress.duplicate:>9,}  "
        f"expired {progress.expired:>5,}  error {progress.error:>4,}  "
        f"{progress.seconds:.1f} s, {progress.rows_per_second:,.0f} rows/s{point}"
        f"{'' if progress.left is None else f', {progress.left}'}"
    )


def phases_line(progress: BatchProgress) -> str:
    """The seconds of a window's steps, in their order."""
    return "  ".join(f"{name} {seconds:.2f}s" for name, seconds in progress.phases.items())


def summary_line(summary: RunSummary) -> str:
    """A run on one line, and on others why many rows were errors or expired, or none was judged."""
    notes = (summary.error_note, summary.expired_note, summary.nothing_note)
    note = "".join(f"\n{text}" for text in notes if text is not None)
    return (
        f"{counted(summary.windows, 'window')}, {counted(summary.rows, 'row')} in {summary.seconds:,.1f} s: "
        f"{summary.unique:,} unique, {summary.duplicate:,} duplicate, {summary.expired:,} expired, "
        f"{summary.error:,} error; {STOPPED.get(summary.stopped_by, summary.stopped_by)}{note}"
    )


def json_line(value: dict[str, Any]) -> str:
    """One JSON object on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("seconds", "rows_per_second"):
        if name in values:
            values[name] = round(values[name], 3)
    for name in ("phases", "tables"):
        if name in values:
            values[name] = {inner: round(value, 4) for inner, value in values[name].items()}
    return values


def nothing_note(windows: int, rows: int, place: str) -> str:
    """Why a run has made no window: nothing new in the source, and what the store has judged of it before."""
    if not windows:
        return f"nothing is in {place} yet"
    before = f"{counted(windows, 'window')} with {counted(rows, 'row')}"
    return (
        f"nothing in {place} is new: {before} were judged before, and nothing is judged twice. To begin again, give "
        "`store.url` and the sinks new places; `deduper rewind` takes windows back"
    )


def expired_note(expired: int, rows: int, cause: str | None) -> str:
    """Many expired rows in one line."""
    likely = f". Likely cause: {cause}" if cause else ""
    return f"{expired / rows:.0%} of {rows:,} rows are expired{likely}. See `deduper status --over-time`"


def error_note(errors: int, rows: int, groups: Iterable[ErrorGroup], causes: Iterable[str] = ()) -> str:
    """Many errors in one line: their share, the first reasons, the likely causes, and where to look."""
    texts = (f"{group.rows:,} {group.reason}{f' ({group.detail})' if group.detail else ''}" for group in groups)
    found = "; ".join(causes)
    likely = f". Likely cause: {found}" if found else ""
    first = ", ".join(islice(texts, _MOST_GROUPS))
    return f"{errors / rows:.0%} of {rows:,} rows are errors: {first}{likely}. See `deduper errors`"
