"""Warns when many records of a window are errors or expired, with the likely cause; not at every window."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from deduper.window.progress import MANY_ERRORS, MANY_EXPIRED, BatchProgress, ErrorGroup, error_note, expired_note

logger = logging.getLogger(__name__)

_WARN_EVERY_S = 600.0
"""A warning is for a person; the metrics have every window."""
_MOST_GROUPS = 3
_MOST_KEPT = 1000


class ErrorWatch:
    """The errors and expired rows of a run, window by window.

    A warning is logged at the first window above a share, then for each reason at most once in 10 minutes, and a line
    when a window is below the share again. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned_s: dict[str, float] = {}
        self._open: set[str] = set()
        self._rows = self._errors = self._expired = 0
        self._groups: Counter[tuple[str, str | None]] = Counter()
        self._causes: Counter[str] = Counter()
        self._expired_causes: Counter[str] = Counter()

    def window_ended(self, progress: BatchProgress) -> None:
        """A window is published; one without rows says nothing."""
        if not progress.rows:
            return
        self._rows += progress.rows
        self._errors += progress.error
        self._expired += progress.expired
        for group in progress.errors:
            self._groups[group.reason, group.detail] += group.rows
        self._causes.update(progress.causes)
        if len(self._groups) > _MOST_KEPT:
            self._groups = Counter(dict(self._groups.most_common(_MOST_KEPT // 2)))
        self._expired_causes.update(filter(None, [progress.expired_cause]))
        if _is_many(progress.error, progress.rows):
            reason = progress.errors[0].reason if progress.errors else ""
            note = error_note(progress.error, progress.rows, progress.errors, progress.causes)
            self._flood("errors", reason, progress.window, note)
        else:
            self._over("errors", progress.window, progress.error, progress.rows)
        if progress.expired > MANY_EXPIRED * progress.rows:
            note = expired_note(progress.expired, progress.rows, progress.expired_cause)
            self._flood("expired rows", "expired", progress.window, note)
        else:
            self._over("expired rows", progress.window, progress.expired, progress.rows)

    def _flood(self, kind: str, reason: str, window: int, note: str) -> None:
        now, warned_s = self._clock(), self._warned_s.get(reason)
        if warned_s is None or now - warned_s >= _WARN_EVERY_S:
            self._warned_s[reason] = now
            self._open.add(kind)
            logger.warning("window %d: %s", window, note)

    def _over(self, kind: str, window: int, count: int, rows: int) -> None:
        if kind in self._open:
            self._open.remove(kind)
            logger.warning("window %d: fewer %s again: %s of %d rows", window, kind, f"{count / rows:.1%}", rows)

    def note(self) -> str | None:
        """The errors of the whole run; None if they are few."""
        if not _is_many(self._errors, self._rows):
            return None
        groups = [ErrorGroup(*place, rows) for place, rows in self._groups.most_common()]
        return error_note(
            self._errors, self._rows, groups, [cause for cause, _ in self._causes.most_common(_MOST_GROUPS)]
        )

    def expired_note(self) -> str | None:
        """The expired rows of the whole run; None if they are few."""
        if self._expired <= MANY_EXPIRED * self._rows:
            return None
        causes = [cause for cause, _ in self._expired_causes.most_common(1)]
        return expired_note(self._expired, self._rows, causes[0] if causes else None)


def _is_many(errors: int, rows: int) -> bool:
    return errors > MANY_ERRORS * rows
