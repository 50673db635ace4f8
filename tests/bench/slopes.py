"""Whether something that is measured again and again grows: the slope by Theil and Sen, and how sure it is. PURE.

The median of the slopes between all pairs of points: up to a quarter of the points may lie anywhere. The interval is
the usual one from Kendall's tau, for points whose errors do not depend on each other; samples of memory a few seconds
apart do, so they are first put together into means of a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

_SIGMAS = 1.96


@dataclass(frozen=True, slots=True)
class Slope:
    """Units a second, with the ends of the interval that holds the true one with 95 %, and the median of the values."""

    a_second: float
    least: float
    greatest: float
    level: float

    def percent_an_hour(self) -> tuple[float, float, float]:
        """Slope, least and greatest as shares of the level."""
        scale = 360_000 / self.level if self.level else 0.0
        return self.a_second * scale, self.least * scale, self.greatest * scale


def slope(seconds: Sequence[float], values: Sequence[float], *, bin_s: float = 60.0) -> Slope | None:
    """The slope of values over time; None with less than five bins, which say nothing."""
    x, y = binned(seconds, values, bin_s)
    count = len(x)
    if count < 5:
        return None
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    half = _SIGMAS * sqrt(count * (count - 1) * (2 * count + 5) / 18)
    least = max(0, round((len(slopes) - half) / 2))
    greatest = min(len(slopes) - 1, round((len(slopes) + half) / 2))
    return Slope(
        float(np.median(slopes)), float(slopes[least]), float(slopes[greatest]), float(np.median(np.asarray(values)))
    )


def binned(seconds: Sequence[float], values: Sequence[float], bin_s: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Means by bins of time; a last bin that is less than half full is left out."""
    x, y = np.asarray(seconds, float), np.asarray(values, float)
    if not len(x):
        return x, y
    bins = ((x - x[0]) // bin_s).astype(int)
    counts = np.bincount(bins)
    kept = counts > 0
    kept[-1] &= counts[-1] * 2 >= counts.max()
    return (np.bincount(bins, x)[kept] / counts[kept], np.bincount(bins, y)[kept] / counts[kept])
