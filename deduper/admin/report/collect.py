"""The numbers of a report, from the committed state, the history and the sample of the leak meter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bucket_store.log.history import Sample, read_history
from deduper import __version__
from deduper.admin.health import Health
from deduper.admin.open_store import OpenStore
from deduper.admin.status import finite_quantile, store_status
from deduper.as_json import AsJson
from deduper.config.sections import PORTS
from deduper.core.statistics import BOUNDS_S, SpanCounts
from deduper.leaks.figures import LeakFigures
from deduper.units import format_duration, format_time
from deduper.window import policy
from deduper.window.accessories.history_watch import (
    BYTES,
    ENTRIES,
    FILES,
    JUDGED,
    LATEST,
    LEAK,
    SECONDS,
)

_MOST_POINTS = 120
KIND_TEXTS = {
    "lookup": "unique, though a copy less than a period away was seen, in another bucket",
    "period": "unique, though a copy a period or more away was seen",
    "expired": "expired, though a copy was seen",
}
"""The kinds of missed copies, in words; docs/leaks.md."""
_LEVEL_NAMES = ("window", "minute", "hour")


@dataclass(frozen=True, slots=True)
class Point(AsJson):
    """Some windows one after another: what came with them, and how the store was after them.

    first_window, next_window: half open. begun: wall clock of the last one. seconds: of the windows. watermark_lag_s:
    wall clock - latest point, for times. partitions: records by topic partition, or `files`: source partitions.
    leaks: by kind (estimate, low, high), since the meter began.
    """

    first_window: int
    next_window: int
    wall_us: int
    counts: dict[str, int]
    seconds: float
    entries: int
    size_bytes: int
    watermark_lag_s: float | None
    partitions: dict[str, int]
    leaks: dict[str, tuple[float, float, float]]

    @property
    def rows(self) -> int:
        """Of all ports."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Course(AsJson):
    """A stretch of time. `level`: what a sample of it is; `points` may be several samples together."""

    level: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Spans(AsJson):
    """A distribution of spans of time: (upper end in seconds, None for the last; how many), and two quantiles."""

    buckets: tuple[tuple[int | None, int], ...]
    median_s: float | None
    p99_s: float | None

    @property
    def count(self) -> int:
        """All of them."""
        return sum(count for _, count in self.buckets)


@dataclass(frozen=True, slots=True)
class JobReport(AsJson):
    """Everything that the page and the summary show; nothing of a record's values but the latest point."""

    made: str
    version: str
    name: str
    store_id: str
    created: str
    key: tuple[str, ...]
    expiry: str
    lookup: str
    is_time: bool
    windows: int
    rows: int
    counts: dict[str, int]
    reasons: dict[str, int]
    latest_point: str | int | float | None
    entries: int
    pieces: int
    size_bytes: int
    lateness: Spans
    distance: Spans
    age: Spans
    health: Health
    leaks: LeakFigures | None
    courses: tuple[Course, ...]


def report_of(store: OpenStore, *, now_us: int | None = None) -> JobReport:
    """The report of a store as it is now."""
    status, settings, statistics = store_status(store, last=0), store.settings, policy.statistics_of(store.log.state)
    field = settings.get("expiry.field")
    return JobReport(
        made=format_time((time.time_ns() // 1_000_000_000 * 1_000_000) if now_us is None else now_us),
        version=__version__,
        name=store.root.name if store.config is None else store.config.name,
        store_id=status.store_id,
        created=status.created,
        key=tuple(column.name for column in store.key_columns),
        expiry=f"{settings['expiry.by']}{f' on {field.split()[0]}' if field else ''}",
        lookup=str(settings["expiry.lookup"]),
        is_time=store.scale.is_time,
        windows=status.windows,
        rows=status.rows,
        counts=status.counts,
        reasons=status.reasons,
        latest_point=status.latest_point,
        entries=status.entries,
        pieces=status.pieces,
        size_bytes=sum(piece.length for pieces in store.log.state.pieces.values() for piece in pieces),
        lateness=_spans(statistics.lateness),
        distance=_spans(statistics.distance),
        age=_spans(statistics.age),
        health=status.health,
        leaks=status.leaks,
        courses=_courses(read_history(store.root, status.store_id), is_time=store.scale.is_time),
    )


def shown_steps(steps: float | None, *, is_time: bool) -> str:
    """A distance of expiry keys for people."""
    if steps is None:
        return "more"
    return format_duration(int(steps)) if is_time else f"{steps:,.6g}"


def _spans(spans: SpanCounts) -> Spans:
    return Spans(
        tuple(zip((*BOUNDS_S, None), spans.counts, strict=True)),
        finite_quantile(spans, 0.5),
        finite_quantile(spans, 0.99),
    )


def _courses(levels: Sequence[Sequence[Sample]], *, is_time: bool) -> tuple[Course, ...]:
    """The finest level that begins with the history, and before it the finer one of its end."""
    oldest = min((samples[0].next_window for samples in levels if samples), default=None)
    if oldest is None:
        return ()
    whole = next(level for level, samples in enumerate(levels) if samples and samples[0].next_window <= oldest)
    shown = [whole] if whole == 0 else [whole - 1, whole]
    return tuple(Course(_LEVEL_NAMES[level], _points(levels[level], is_time=is_time)) for level in shown)


def _points(samples: Sequence[Sample], *, is_time: bool) -> tuple[Point, ...]:
    """The differences of the samples, several of them together where they are many."""
    step = max(1, -(-(len(samples) - 1) // _MOST_POINTS))
    # From the end: the first point may have fewer samples than the others.
    first = (len(samples) - 1) % step
    chosen = [*samples[: 1 if first else 0], *samples[first::step]]
    return tuple(_point(before, after, is_time=is_time) for before, after in pairwise(chosen))


def _point(before: Sample, after: Sample, *, is_time: bool) -> Point:
    def grown(name: str) -> int | float:
        return max(0, after.values.get(name, 0) - before.values.get(name, 0))

    judged = [name for name in after.values if name.startswith(JUDGED) and name in before.values]
    partitions = {name.removeprefix(JUDGED): int(grown(name)) for name in judged}
    if FILES in after.values:
        partitions[FILES] = int(grown(FILES))
    latest = after.values.get(LATEST)
    return Point(
        first_window=before.next_window,
        next_window=after.next_window,
        wall_us=after.wall_us,
        counts={port: int(grown(port)) for port in PORTS},
        seconds=float(grown(SECONDS)),
        entries=int(after.values.get(ENTRIES, 0)),
        size_bytes=int(after.values.get(BYTES, 0)),
        watermark_lag_s=(after.wall_us - latest) / 1e6 if is_time and latest is not None else None,
        partitions=partitions,
        leaks={
            name.removeprefix(LEAK): (value, after.values.get(f"{name}.low", 0), after.values.get(f"{name}.high", 0))
            for name, value in after.values.items()
            if name.startswith(LEAK) and name.count(".") == 1
        },
    )
