"""Everything deduper raises, and the exit code each error ends the process with.

Each class ends with what the operator does. Errors of bucket_store keep their classes; `exit_code_of` knows them too.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar

from bucket_store import errors as store_errors
from deduper.problems import Problem, render


class ExitCode(IntEnum):
    """What the process tells its supervisor."""

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


class DeduperError(Exception):
    """Root of all errors of this package. The operator: read the message; the state is as the last commit left it."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class UsageError(DeduperError):
    """A command that cannot mean what was asked. The operator: correct the command line."""

    exit_code = ExitCode.USAGE


class ConfigError(DeduperError):
    """All the mistakes of a configuration at once. The operator: correct them; nothing was started."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(render(self.problems))


class CheckFailedError(DeduperError):
    """A check that was asked for did not pass. The operator: follow the findings above the message."""

    exit_code = ExitCode.UNHEALTHY


class IntegrityError(DeduperError):
    """Counts or identities that must agree do not. The operator: do not restart; keep the store and the message."""

    exit_code = ExitCode.INTEGRITY


class CannotWriteError(DeduperError):
    """A file system is full or read-only. The operator: make room, or the place writable, and start again."""


class OwnerAliveError(DeduperError):
    """Another process owns the store and is alive.

    The operator: leave it alone, or stop it first; `--take-over` fences it.
    """

    exit_code = ExitCode.FENCED


_STORE_CODES: tuple[tuple[type[store_errors.StoreError], ExitCode], ...] = (
    (store_errors.CorruptionError, ExitCode.INTEGRITY),
    (store_errors.UnknownFormatError, ExitCode.INTEGRITY),
    (store_errors.FencedError, ExitCode.FENCED),
    (store_errors.SettingsChangedError, ExitCode.USAGE),
    (store_errors.StoreMissingError, ExitCode.USAGE),
    (store_errors.StoreError, ExitCode.FAILED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code an error ends the process with; BUG for every error nobody has planned for.

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
