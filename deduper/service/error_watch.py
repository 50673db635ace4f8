"""Warns when many records of a window are errors, with the reasons and the likely cause; not at every window."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from deduper.window.progress import MANY_ERRORS, BatchProgress, ErrorGroup, error_note

logger = logging.getLogger(__name__)

_WARN_EVERY_S = 600.0
"""A warning is for a person; the metrics have every window."""
_MOST_GROUPS = 3
_MOST_KEPT = 1000


class ErrorWatch:
    """The errors of a run, window by window.

    A warning is logged at the first window above the share, then at most once in 10 minutes, and a line when a window
    is below it again. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned_s: float | None = None
        self._is_open = False
        self._rows = self._errors = 0
        self._groups: Counter[tuple[str, str | None]] = Counter()
        self._causes: Counter[str] = Counter()

    def window_ended(self, progress: BatchProgress) -> None:
        """A window is published; one without rows says nothing."""
        if not progress.rows:
            return
        self._rows += progress.rows
        self._errors += progress.error
        for group in progress.errors:
            self._groups[group.reason, group.detail] += group.rows
        self._causes.update(progress.causes)
        if len(self._groups) > _MOST_KEPT:
            self._groups = Counter(dict(self._groups.most_common(_MOST_KEPT // 2)))
        if _is_many(progress.error, progress.rows):
            now = self._clock()
            if self._warned_s is None or now - self._warned_s >= _WARN_EVERY_S:
                self._warned_s, self._is_open = now, True
                note = error_note(progress.error, progress.rows, progress.errors, progress.causes)
                logger.warning("window %d: %s", progress.window, note)
        elif self._is_open:
            self._is_open = False
            share = f"{progress.error / progress.rows:.1%}"
            logger.warning("window %d: fewer errors again: %s of %d rows", progress.window, share, progress.rows)

    def note(self) -> str | None:
        """The errors of the whole run; None if they are few."""
        if not _is_many(self._errors, self._rows):
            return None
        groups = [ErrorGroup(*place, rows) for place, rows in self._groups.most_common()]
        return error_note(
            self._errors, self._rows, groups, [cause for cause, _ in self._causes.most_common(_MOST_GROUPS)]
        )


def _is_many(errors: int, rows: int) -> bool:
    return errors > MANY_ERRORS * rows
