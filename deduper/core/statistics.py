"""Distances in time, counted in buckets with fixed bounds: lateness, duplicate distance, age of the first copy.

    lateness   latest point before a tuple - its expiry key; 0 for a tuple at or beyond it. Expiry by event_time; all
               tuples that the clock admits or finds expired
    distance   |expiry key of a duplicate - its first copy's|, where the first copy's is known. Expiry by event_time and
               processing_time
    age        wall clock of a duplicate's window - wall clock of its first copy's window, where that is known

They are for people. No verdict depends on them, and a window that has none is committed all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray

from deduper.core import kernels
from deduper.core.clock import writable
from deduper.core.kernels import Bools, Expiries, Int64s, UInt8s

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
BOUNDS_S: Final = (
    *(0, 1, 5, 15),
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY),
)
"""Upper ends of the buckets in seconds, inclusive; a last bucket has all above. They are part of the wire form."""
_BOUNDS_US = np.array(BOUNDS_S, np.float64) * 1e6
_WIRE_VERSION = 1
_MOST_MARKS = 32
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """How many spans of time fall into each bucket of BOUNDS_S, and their sum in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    total_s: float = 0.0

    @classmethod
    def of(cls, spans_us: Iterable[tuple[float, int]]) -> Self:
        """The counts of spans that are given with how often they occur."""
        counts, total_us = [0] * (len(BOUNDS_S) + 1), 0.0
        for span_us, often in spans_us:
            counts[int(np.searchsorted(_BOUNDS_US, span_us))] += often
            total_us += span_us * often
        return cls(tuple(counts), total_us / 1e6)

    def __add__(self, other: SpanCounts) -> SpanCounts:
        return SpanCounts(
            tuple(one + another for one, another in zip(self.counts, other.counts, strict=True)),
            self.total_s + other.total_s,
        )

    def __sub__(self, other: SpanCounts) -> SpanCounts:
        """What came since `other`, which was counted earlier."""
        return SpanCounts(
            tuple(one - another for one, another in zip(self.counts, other.counts, strict=True)),
            self.total_s - other.total_s,
        )

    @property
    def count(self) -> int:
        """All spans."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper end in seconds, spans up to it), the last one infinite, as Prometheus has them."""
        return list(zip((*map(float, BOUNDS_S), float("inf")), accumulate(self.counts), strict=True))

    def quantile_s(self, share: float) -> float | None:
        """The upper end of the bucket in which this share of the spans is reached; None without spans."""
        return next((end for end, below in self.cumulative() if below and below >= share * self.count), None)


NO_SPANS: Final = SpanCounts()


@dataclass(frozen=True, slots=True)
class Statistics:
    """The spans of all windows of a store since it counts them, and the wall clock of some windows.

    `marks`: (window, wall clock in µs), ascending, at most 32, about evenly in time from the oldest live window on.
    """

    lateness: SpanCounts = NO_SPANS
    distance: SpanCounts = NO_SPANS
    age: SpanCounts = NO_SPANS
    marks: tuple[tuple[int, int], ...] = ()

    def with_window(
        self,
        window: int,
        wall_us: int,
        *,
        lateness: SpanCounts,
        distance: SpanCounts,
        duplicates: Mapping[int, int],
        exact_us: Mapping[int, int],
        first_live: int,
    ) -> Statistics:
        """Those after one more window, judged at `wall_us`.

        `duplicates` counts its duplicates by the window of their first copy. `exact_us` are known wall clocks of
        windows; for the others the marks are interpolated. Marks before the window `first_live` are dropped.
        """
        marks = _marked(self.marks, window, wall_us, first_live)
        ages = ((wall_us - _wall_us(first, exact_us, marks), often) for first, often in duplicates.items())
        return Statistics(
            lateness=self.lateness + lateness,
            distance=self.distance + distance,
            age=self.age + SpanCounts.of((max(0.0, age_us), often) for age_us, often in ages),
            marks=marks,
        )

    def since(self, earlier: Statistics) -> Statistics:
        """The spans that came since `earlier`."""
        return Statistics(
            self.lateness - earlier.lateness, self.distance - earlier.distance, self.age - earlier.age, self.marks
        )

    def to_wire(self) -> list[Any]:
        """As msgpack values: [1, lateness, distance, age, marks]; spans as [[count of each bucket], sum in seconds]."""
        spans = (self.lateness, self.distance, self.age)
        return [
            _WIRE_VERSION,
            *([list(one.counts), one.total_s] for one in spans),
            [list(mark) for mark in self.marks],
        ]

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """From msgpack values; of anything that this version does not write, those of no window."""
        try:
            version, lateness, distance, age, marks = wire
            if version != _WIRE_VERSION:
                return cls()
            return cls(
                _from_wire(lateness),
                _from_wire(distance),
                _from_wire(age),
                tuple((int(window), int(wall_us)) for window, wall_us in marks),
            )
        except (TypeError, ValueError):
            return cls()


def _or_no_spans(counting: Callable[_P, SpanCounts]) -> Callable[_P, SpanCounts]:
    """A counting that gives no spans when it fails: verdicts matter more."""

    @functools.wraps(counting)
    def counted(*args: _P.args, **kwargs: _P.kwargs) -> SpanCounts:
        try:
            return counting(*args, **kwargs)
        except Exception:  # noqa: BLE001  fewer spans than rows show it
            return NO_SPANS

    return counted


@_or_no_spans
def lateness(
    expiry: Expiries, latest_before: Expiries | int | float | None, has_latest: Bools | None, admission: UInt8s
) -> SpanCounts:
    """The lateness of the rows that the clock admitted or found expired; `admission` is the one after the clock.

    `latest_before`: the clock before each row, where `has_latest`; without `has_latest` one number for all rows, None
    while unset.
    """
    if has_latest is None:
        has_latest = np.full(1, latest_before is not None)
        latest_before = np.full(1, latest_before or 0, expiry.dtype)
    counts = np.zeros(len(BOUNDS_S) + 1, np.int64)
    total_us = kernels.count_lateness(
        writable(expiry, expiry.dtype.type),
        np.asarray(latest_before),
        has_latest,
        writable(admission, np.uint8),
        _BOUNDS_US,
        counts,
    )
    return SpanCounts(tuple(counts.tolist()), total_us / 1e6)


@_or_no_spans
def distances(first_copy: Int64s, expiry: Expiries, match_expiry: Expiries, *, keeps_expiry: bool) -> SpanCounts:
    """The distances of the duplicates from their first copies, as `kernels.judge_groups` names them.

    `keeps_expiry`: `match_expiry` has the first copies' of earlier windows; without it only those of this window count.
    """
    counts = np.zeros(len(BOUNDS_S) + 1, np.int64)
    total_us = kernels.count_distances(first_copy, expiry, match_expiry, keeps_expiry, _BOUNDS_US, counts)
    return SpanCounts(tuple(counts.tolist()), total_us / 1e6)


def warm() -> None:
    """Compiles, or loads from the cache, the kernels of both countings."""
    one: NDArray[np.int64] = np.zeros(1, np.int64)
    lateness(one, 0, None, np.zeros(1, np.uint8))
    distances(one, one, one, keeps_expiry=False)


def _from_wire(spans: Any) -> SpanCounts:
    counts, total_s = spans
    if len(counts) != len(BOUNDS_S) + 1:
        raise ValueError(f"{len(counts)} buckets")
    return SpanCounts(tuple(map(int, counts)), float(total_s))


def _marked(
    marks: Sequence[tuple[int, int]], window: int, wall_us: int, first_live: int
) -> tuple[tuple[int, int], ...]:
    kept = [mark for mark in marks if first_live <= mark[0] < window]
    kept.append((window, wall_us))
    if len(kept) > _MOST_MARKS:
        # The one whose neighbours are nearest to each other is missed least.
        least = min(range(1, len(kept) - 1), key=lambda at: kept[at + 1][1] - kept[at - 1][1])
        del kept[least]
    return tuple(kept)


def _wall_us(window: int, exact_us: Mapping[int, int], marks: Sequence[tuple[int, int]]) -> float:
    if window in exact_us:
        return exact_us[window]
    windows, walls_us = zip(*marks, strict=True)
    return float(np.interp(window, windows, walls_us))
