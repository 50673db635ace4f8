"""A file system that is full or read-only, met by Spark: its messages do not say where."""

from __future__ import annotations

from pathlib import Path

from deduper.errors import DeduperError
from deduper.worker_errors import raised_in_worker

_REASONS = ("No space left on device", "Read-only file system", "Disk quota exceeded")


class CannotWriteError(DeduperError):
    """Spark could not write. The operator: make room, or the place writable, and start again; nothing is lost."""


def cannot_write(error: Exception, what: str, place: Path) -> CannotWriteError | None:
    """What to raise instead of Spark's error; None when that is about something else."""
    text = str(error)
    if raised_in_worker(error) is not error:
        return None  # Ours, and it says where.
    reason = next((reason for reason in _REASONS if reason in text), None)
    if reason is None:
        return None
    return CannotWriteError(
        f"{place}: {reason}: Spark could not write {what} there, or its own files (`spark.local.dir`, /tmp)"
    )
