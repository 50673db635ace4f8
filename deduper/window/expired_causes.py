"""The likely cause of many expired rows in a window: the order of files, a clock ahead, or a short period. PURE.

For a warning; decides nothing.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from deduper.core.statistics import SpanCounts
from deduper.units import format_duration, span

AHEAD_S = 300.0
"""A latest point so far over the clock is unusual: it hides what a true clock would show."""
_LITTLE = 3
"""Half of the rows below so many periods: the period is short. Beyond, they are of another time."""


_REPLAY = "`deduper replay CONFIG` judges the source in the order of time, with a new store and new outputs"
_FILES = f"files with later times were judged before these: {_REPLAY}"
_ARRIVAL = (
    "these records were read behind later ones: a partition is far behind the others, which `source: {order: time, "
    f"slack: …}}` with a part of the period prevents, or old records were sent again; {_REPLAY}"
)
_TIME = (
    "these records were read behind later ones, in spite of `order: time`: old records were sent again, or the time "
    f"stamps of their records are not their times; {_REPLAY}"
)


def expired_cause(
    lateness: SpanCounts, period_us: int, ahead_s: float, *, behind: int, is_of_files: bool, is_in_time: bool = False
) -> str | None:
    """In words; None if no row of a window was later than the period.

    `lateness` is that of all rows by event time; `behind` of them were expired already as the window began. `ahead_s`:
    of the latest point, over the wall clock. `is_in_time`: of topics with `order: time`.
    """
    period_s = period_us / 1e6
    bounds = lateness.cumulative()
    late = [(end, upto - below) for (_, below), (end, upto) in pairwise(bounds) if end > period_s]
    rows = sum(count for _, count in late)
    if not rows:
        return None
    if ahead_s > AHEAD_S:
        return (
            f"the latest point is {span(ahead_s)} ahead of this machine's clock, so a record with a time in the future "
            "has made others expired: lower `expiry.max_ahead_of_now`, and correct the producer's clock"
        )
    if 2 * behind >= rows:
        return _FILES if is_of_files else _TIME if is_in_time else _ARRIVAL
    ends = [end for end, _ in late]
    below = accumulate(count for _, count in late)
    end = next(end for end, upto in zip(ends, below, strict=True) if 2 * upto >= rows)
    if end <= _LITTLE * period_s:
        by = f"half of them are late by {format_duration(round(end * 1e6))} at most"
        return f"{by}: the period of {format_duration(period_us)} is short for this source"
    where = "files" if is_of_files else "partitions"
    return f"old records stand among newer ones in the same {where}: sort them by time, or begin with a longer period"
