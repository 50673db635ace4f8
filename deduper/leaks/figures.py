"""The results of the leak meter, for `status`, metrics and the report. PURE."""

from __future__ import annotations

from dataclasses import dataclass

from bucket_store.log.leak_sample import LeakSample
from deduper.as_json import AsJson
from deduper.leaks.estimate import Estimate, of_count, of_difference
from deduper.leaks.meter import FOUND, KINDS, LeakMeter
from deduper.leaks.stored import meter_of


@dataclass(frozen=True, slots=True)
class OtherPeriod(AsJson):
    """`lookup: all_live` with a period, in steps: shares of the records by verdict, and what it needs.

    gain: duplicates that it finds more than the job, fewer below 0. live_keys: that it remembers at the latest point.
    """

    period: int | float
    unique: float
    duplicate: float
    expired: float
    gain: Estimate
    live_keys: float


@dataclass(frozen=True, slots=True)
class LeakFigures(AsJson):
    """The estimates since `first_window`, of the windows below `next_window`.

    missed, found: copies by kind, and those that left as duplicates, estimated. records: all of the measured windows;
    seen: of sampled keys. sample: one key of so many. keys: in the sample; recent_keys: of the stream, with a copy of
    the last period, estimated. distances: (upper end in steps, None for the last class; found; missed).
    """

    first_window: int
    next_window: int
    since_us: int
    missed_windows: int
    records: int
    seen: int
    sample: int
    keys: int
    recent_keys: float
    period: int | float
    memory: int | float
    missed: dict[str, Estimate]
    found: float
    distances: tuple[tuple[float | None, float, float], ...]
    others: tuple[OtherPeriod, ...]


def figures_of(
    meter: LeakMeter,
    latest: int | float | None,
    *,
    next_window: int,
    first_window: int,
    since_us: int,
    missed_windows: int,
) -> LeakFigures:
    """The figures of a measurement, at a latest point."""
    settings, totals, weight = meter.settings, meter.totals, meter.weight
    missed = {
        name: of_count(float(totals.totals[kind]), float(totals.squares[kind]), weight, int(totals.sampled[kind]))
        for kind, name in enumerate(KINDS)
    }
    of_found, of_missed = totals.distances.tolist()
    others = tuple(
        OtherPeriod(
            period=settings.periods[each],
            unique=float(totals.answers[each, 0]),
            duplicate=float(totals.answers[each, 1]),
            expired=float(totals.answers[each, 2]),
            gain=of_difference(float(totals.gains[each]), float(totals.gain_squares[each]), weight),
            live_keys=live,
        )
        for each, live in enumerate(meter.live_keys(latest))
    )
    return LeakFigures(
        first_window=first_window,
        next_window=next_window,
        since_us=since_us,
        missed_windows=missed_windows,
        records=totals.records,
        seen=totals.seen,
        sample=2**meter.bits,
        keys=meter.count,
        recent_keys=meter.recent_keys(latest),
        period=settings.period,
        memory=settings.memory,
        missed=missed,
        found=float(totals.totals[FOUND]),
        distances=tuple(zip((*settings.edges, None), of_found, of_missed, strict=True)),
        others=others,
    )


def figures_of_sample(sample: LeakSample, latest: int | float | None) -> LeakFigures:
    """Those of a store's file.

    Raises:
        ValueError, KeyError, TypeError: see `stored.meter_of`.
    """
    return figures_of(
        meter_of(sample),
        latest,
        next_window=sample.next_window,
        first_window=sample.first_window,
        since_us=sample.since_us,
        missed_windows=sample.missed_windows,
    )
