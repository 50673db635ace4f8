"""The results of the leak meter, for `status`, metrics and the report: estimates from the sample, with intervals.

docs/leaks.md derives estimates and intervals. PURE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bucket_store.log.leak_sample import LeakSample
from deduper.as_json import AsJson
from deduper.leaks.meter import FOUND, KINDS, LeakMeter, meter_of

_Z = 1.959964
"""Of the standard normal distribution: 95 % lie within it, on both sides."""


@dataclass(frozen=True, slots=True)
class Estimate(AsJson):
    """A number of records, with a 95 % interval. `sampled`: records that were counted for it."""

    records: float
    low: float
    high: float
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class LeakFigures(AsJson):
    """The estimates since `first_window`, of the windows below `next_window`.

    missed, found: copies by kind, and those that left as duplicates, estimated. records: all of the measured windows;
    seen: of sampled keys. sample: one key of so many. keys: in the sample. distances: (upper end in steps, None for
    the last class; found; missed).
    """

    first_window: int
    next_window: int
    since_us: int
    missed_windows: int
    records: int
    seen: int
    sample: int
    keys: int
    period: int | float
    memory: int | float
    missed: dict[str, Estimate]
    found: float
    distances: tuple[tuple[float | None, float, float], ...]


def figures_of(
    meter: LeakMeter, *, next_window: int, first_window: int, since_us: int, missed_windows: int
) -> LeakFigures:
    """The figures of a measurement."""
    settings, totals, weight = meter.settings, meter.totals, meter.weight
    missed = {
        name: of_count(float(totals.totals[kind]), float(totals.squares[kind]), weight, int(totals.sampled[kind]))
        for kind, name in enumerate(KINDS)
    }
    of_found, of_missed = totals.distances.tolist()
    return LeakFigures(
        first_window=first_window,
        next_window=next_window,
        since_us=since_us,
        missed_windows=missed_windows,
        records=totals.records,
        seen=totals.seen,
        sample=2**meter.bits,
        keys=meter.count,
        period=settings.period,
        memory=settings.memory,
        missed=missed,
        found=float(totals.totals[FOUND]),
        distances=tuple(zip((*settings.edges, None), of_found, of_missed, strict=True)),
    )


def figures_of_sample(sample: LeakSample) -> LeakFigures:
    """Those of a store's file.

    Raises:
        ValueError, KeyError, TypeError: see `meter_of`.
    """
    return figures_of(
        meter_of(sample),
        next_window=sample.next_window,
        first_window=sample.first_window,
        since_us=sample.since_us,
        missed_windows=sample.missed_windows,
    )


def of_count(total: float, squares: float, weight: float, sampled: int) -> Estimate:
    """Of a count of records: their weights in sum, and the squares of these sums by key; `weight`: 1 / p now."""
    if weight == 1:
        return Estimate(total, total, total, sampled)
    if total <= 0:
        return Estimate(0, 0, weight * _poisson_high(0), sampled)
    cluster = squares * (1 - 1 / weight) / total
    events = total / cluster
    return Estimate(total, cluster * _poisson_low(events), cluster * _poisson_high(events), sampled)


def _poisson_low(events: float) -> float:
    """Byar's approximation; 0 where it would turn round."""
    return float(events * max(0.0, 1 - 1 / (9 * events) - _Z / (3 * math.sqrt(events))) ** 3)


def _poisson_high(events: float) -> float:
    more = events + 1
    return float(more * (1 - 1 / (9 * more) + _Z / (3 * math.sqrt(more))) ** 3)
