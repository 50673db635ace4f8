"""An estimate from a sample, with its interval; docs/leaks.md derives both. PURE."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deduper.as_json import AsJson

_Z = 1.959964
"""Of the standard normal distribution: 95 % lie within it, on both sides."""


@dataclass(frozen=True, slots=True)
class Estimate(AsJson):
    """A number of records, with a 95 % interval. `sampled`: records that were counted for it."""

    records: float
    low: float
    high: float
    sampled: int = 0


def of_count(total: float, squares: float, weight: float, sampled: int) -> Estimate:
    """Of a count of records: their weights in sum, and the squares of these sums by key; `weight`: 1 / p now."""
    if weight == 1:
        return Estimate(total, total, total, sampled)
    if total <= 0:
        return Estimate(0, 0, weight * _poisson_high(0), sampled)
    cluster = squares * (1 - 1 / weight) / total
    events = total / cluster
    return Estimate(total, cluster * _poisson_low(events), cluster * _poisson_high(events), sampled)


def of_difference(total: float, squares: float, weight: float) -> Estimate:
    """Of a count that may be below 0. An unseen key may always be one more, on either side."""
    if weight == 1:
        return Estimate(total, total, total)
    spread = _Z * math.sqrt(squares * (1 - 1 / weight) + weight * weight)
    return Estimate(total, total - spread, total + spread)


def _poisson_low(events: float) -> float:
    """Byar's approximation; 0 where it would turn round."""
    return float(events * max(0.0, 1 - 1 / (9 * events) - _Z / (3 * math.sqrt(events))) ** 3)


def _poisson_high(events: float) -> float:
    more = events + 1
    return float(more * (1 - 1 / (9 * more) + _Z / (3 * math.sqrt(more))) ** 3)
