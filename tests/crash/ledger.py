"""What a session of kills amounts to: who was killed where, how long it took to be back, how long a stop took."""

from __future__ import annotations

import threading
from collections import Counter

from tests import tiers

SEED = tiers.seed()
"""Draws backends, victims, occurrences and orders."""

_lock = threading.Lock()
_kills: list[tuple[str, str, str]] = []
_recoveries: list[float] = []
_stops: list[tuple[str, float]] = []
_notes: list[str] = []


def note_kill(point: str, victim: str, backend: str) -> None:
    """Somebody was killed at a point."""
    with _lock:
        _kills.append((point, victim, backend))


def note_recovery(seconds: float) -> None:
    """From the end of a killed driver, with the next one started at once, to the next commit."""
    with _lock:
        _recoveries.append(seconds)


def note_stop(what: str, seconds: float) -> None:
    """From a signal to the end of the driver."""
    with _lock:
        _stops.append((what, seconds))


def note(line: str) -> None:
    """What is to be said at the end of the session as it is."""
    with _lock:
        _notes.append(line)


def summary() -> list[str]:
    """The lines for the end of a session."""
    if not _kills and not _stops:
        return []
    by_victim = Counter(victim for _, victim, _ in _kills)
    by_backend = Counter(backend for _, _, backend in _kills)
    lines = [
        f"{len(_kills)} kills at {len({point for point, _, _ in _kills})} points"
        f" ({_counts(by_victim)}; {_counts(by_backend)})"
    ]
    if _recoveries:
        ordered = sorted(_recoveries)
        lines.append(
            f"recovery, kill to next commit, Spark's start included: {len(ordered)} measured, p50"
            f" {percentile(ordered, 50):.1f} s, p95 {percentile(ordered, 95):.1f} s, max {ordered[-1]:.1f} s"
        )
    if _stops:
        lines.append("stops: " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in _stops))
    return lines + _notes


def percentile(ordered: list[float], percent: int) -> float:
    """The least value that so many percent of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
