"""A file system that is full or read-only: Arrow's messages do not say where, Spark's not always what."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deduper.errors import CannotWriteError
from deduper.worker_errors import raised_in_worker

_NO_REASON = "Mkdirs failed"
_CODES = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
_REASONS = tuple(os.strerror(code) for code in _CODES)


@contextmanager
def telling_where(place: str | Path) -> Iterator[None]:
    """What cannot be written inside, because there is no room or no right to, is told with its place.

    Raises:
        CannotWriteError: instead of the system's error; any other passes.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno not in _CODES:
            raise
        raise CannotWriteError(f"{place}: {os.strerror(exc.errno)}") from exc


def cannot_write(error: Exception, what: str, place: Path) -> CannotWriteError | None:
    """What to raise instead of Spark's error; None when that is about something else."""
    text = str(error)
    if raised_in_worker(error) is not error:
        return None  # Ours, and it says where.
    reason = next((reason for reason in _REASONS if reason in text), None)
    if reason is None and _NO_REASON in text:
        reason = _state_of(place)
    if reason is None:
        return None
    return CannotWriteError(
        f"{place}: {reason}: Spark could not write {what} there, or its own files (`spark.local.dir`, /tmp)"
    )


def _state_of(place: Path) -> str | None:
    """What the file system itself says; None when it says nothing. Java tells only that it made no directory."""
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        state = os.statvfs(place)
    except OSError:
        return None
    if state.f_flag & os.ST_RDONLY:
        return "Read-only file system"
    return "No space left on device" if state.f_bavail == 0 else None
