"""Everything deduper raises, and the exit code each error ends the process with.

Each class ends with the operator's next step. Errors of bucket_store keep their classes; `exit_code_of` covers these.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from bucket_store import errors as store_errors


class ExitCode(IntEnum):
    """The exit status of the process, for its supervisor."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNHEALTHY = 3
    INTEGRITY = 4
    FENCED = 5
    BUG = 70
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One phrase for help texts and documentation."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "ok",
    ExitCode.FAILED: "failed; the message says why",
    ExitCode.USAGE: "wrong usage or configuration",
    ExitCode.UNHEALTHY: "unhealthy, or a check failed",
    ExitCode.INTEGRITY: "stored bytes or counts are wrong; do not restart before you know why",
    ExitCode.FENCED: "another owner has the store; do not restart",
    ExitCode.BUG: "a bug in deduper; please report it",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}

NO_RESTART = frozenset({ExitCode.USAGE, ExitCode.UNHEALTHY, ExitCode.INTEGRITY, ExitCode.FENCED})
"""Ends that no restart mends, so supervisors leave these to a person."""


class DeduperError(Exception):
    """Root of all errors of this package. The operator: read the message; the state is as the last commit left it."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class UsageError(DeduperError):
    """A wrong command line. The operator: correct it."""

    exit_code = ExitCode.USAGE


class CheckFailedError(DeduperError):
    """A requested check failed. The operator: follow the findings above the message."""

    exit_code = ExitCode.UNHEALTHY


class IntegrityError(DeduperError):
    """Counts or identities that must agree do not. The operator: do not restart; keep the store and the message."""

    exit_code = ExitCode.INTEGRITY


class CannotWriteError(DeduperError):
    """A file system is full or read-only. The operator: free some space or make it writable, then start again."""


class RowsGoneError(DeduperError):
    """The records that a reading task left on its host are gone, or are others than those that were judged.

    The operator: nothing, the window is judged again; should it recur, look for what empties temporary folders.
    """


class SourceAwayError(DeduperError):
    """A source cannot be read now, so nothing of it is judged or written off.

    The operator: bring back the mount, the rights, or the brokers. A running job looks again, at every trigger or as
    soon as the brokers answer; for files `--once` is to be started again.
    """


class OwnerAliveError(DeduperError):
    """Another process owns the store and is alive.

    The operator: leave it alone, or stop it first; `--take-over` fences it.
    """

    exit_code = ExitCode.FENCED


class OldCheckpointError(DeduperError):
    """Spark asks for a batch before the last one that the store has judged, or has planned that one anew.

    The operator: put the newest checkpoint back, or follow one of the other ways in the message.
    """

    exit_code = ExitCode.INTEGRITY


class NewCheckpointError(UsageError):
    """A query that the store does not know, and `on_new_checkpoint="refuse"`. The operator: see the three ways."""


class UnfinishedWindowError(DeduperError):
    """Rows of `split` were judged, and nobody knows whether they were used. The operator: see the message."""


class PortTakenError(DeduperError):
    """Another process listens on the metrics' port. The operator: see which, or choose another port."""


class StopRequested(Exception):
    """Ends a batch after a stop was asked for: nothing of it is committed, and Spark must not count it as done."""


_STORE_CODES: tuple[tuple[type[store_errors.StoreError], ExitCode], ...] = (
    (store_errors.CorruptionError, ExitCode.INTEGRITY),
    (store_errors.UnknownFormatError, ExitCode.INTEGRITY),
    (store_errors.FencedError, ExitCode.FENCED),
    (store_errors.SettingsChangedError, ExitCode.USAGE),
    (store_errors.UnsafeStorageError, ExitCode.USAGE),
    (store_errors.StoreMissingError, ExitCode.USAGE),
    (store_errors.StoreError, ExitCode.FAILED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code an error ends the process with; BUG for every unplanned error.

    Errors of the operating system and of Spark are failures of the surroundings, not bugs. Spark's are known by their
    module's name, because importing pyspark only to name its classes would cost every command a second.
    """
    if isinstance(error, DeduperError):
        return error.exit_code
    for kind, code in _STORE_CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return ExitCode.FAILED
    return ExitCode.BUG


NO_ROOM = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
"""Errors of writing: no space left, read-only, over quota."""


@contextmanager
def telling_where(place: str | Path) -> Iterator[None]:
    """Errors of writing inside, on a full or read-only file system, name their place.

    Raises:
        CannotWriteError: instead of the system's error; any other passes.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno not in NO_ROOM:
            raise
        # A storage elsewhere says which quota, and what to do.
        reason = exc.strerror if "://" in str(exc.filename) else os.strerror(exc.errno)
        raise CannotWriteError(f"{place}: {reason}") from exc
