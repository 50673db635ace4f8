"""What a session of kills amounts to: who was killed where, how long it took to be back, how long a stop took."""

from __future__ import annotations

from collections import Counter

from tests import tiers

SEED = tiers.seed()
"""Draws backends, victims, occurrences and orders."""

_kills: list[tuple[str, str, str]] = []
_recoveries: list[float] = []
_stops: list[tuple[str, float]] = []


def note_kill(point: str, victim: str, backend: str) -> None:
    """Somebody was killed at a point."""
    _kills.append((point, victim, backend))


def note_recovery(seconds: float) -> None:
    """From the end of a killed driver, with the next one started at once, to the next commit."""
    _recoveries.append(seconds)


def note_stop(what: str, seconds: float) -> None:
    """From a signal to the end of the driver."""
    _stops.append((what, seconds))


def summary() -> list[str]:
    """The lines for the end of a session."""
    lines = []
    if _kills:
        points, victims, backends = (Counter(values) for values in zip(*_kills, strict=True))
        lines.append(f"{len(_kills)} kills at {len(points)} points ({_counts(victims)}; {_counts(backends)})")
    if _recoveries:
        ordered = sorted(_recoveries)
        p50, p95 = (ordered[len(ordered) * percent // 100] for percent in (50, 95))
        lines.append(
            f"recovery, kill to next commit, Spark's start included: {len(ordered)} measured, p50 {p50:.1f} s,"
            f" p95 {p95:.1f} s, max {ordered[-1]:.1f} s"
        )
    if _stops:
        lines.append("stops: " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in _stops))
    return lines


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
