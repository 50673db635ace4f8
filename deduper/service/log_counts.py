"""Counts of the log lines that a job writes, by level and by the module that writes them: for its metrics."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator

PACKAGES = ("deduper", "bucket_store")
LEVELS = ("warning", "error")


class LogCounts(logging.Handler):
    """Counts warnings and errors. The names of modules are a closed set, so they serve as labels."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts: Counter[tuple[str, str]] = Counter(
            {(level, package): 0 for level in LEVELS for package in PACKAGES}
        )
        self._counting = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        with self._counting:
            self._counts[level, record.name] += 1

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Lines by (level, name of the logger)."""
        with self._counting:
            return dict(self._counts)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Around the job whose lines are counted."""
        loggers = [logging.getLogger(package) for package in PACKAGES]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)
