"""The present step of a job, for people who watch: a line before a long one, and one every ten seconds of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from deduper.window.progress import PROGRESS

_LINE_S = 10.0


class CurrentStep:
    """The step of one job. Steps come one after another; any thread may begin the next one.

    `watched` runs the thread that prints how long a step has lasted; outside of it none is printed.
    """

    def __init__(self, line_s: float = _LINE_S) -> None:
        self._line_s = line_s
        self._is_over = threading.Event()
        self._now: tuple[str, float] | None = None

    def begin(self, text: str, note: str | None = None) -> None:
        """Begin the step `text`. With a `note` it is long: both are printed before it begins."""
        if note is not None:
            PROGRESS.info("%s, %s", text, note)
        self._now = text, time.monotonic()

    @contextmanager
    def of(self, text: str, note: str | None = None) -> Iterator[None]:
        """Around a step, as `begin`."""
        self.begin(text, note)
        try:
            yield
        finally:
            self._now = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Prints the lines of steps that last, until the end of the block."""
        thread = threading.Thread(target=self._watch, name="current-step", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _watch(self) -> None:
        """Looks ten times in the time of a line: most steps take milliseconds, and cost no switch of threads."""
        seen, due = None, 0.0
        while not self._is_over.wait(self._line_s / 10):
            now = self._now
            if now is None:
                continue
            text, since = now
            if now is not seen:
                seen, due = now, since + self._line_s
            if time.monotonic() >= due:
                due += self._line_s
                PROGRESS.info("%s: %.0f s so far", text, time.monotonic() - since)
