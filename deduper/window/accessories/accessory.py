"""What a job keeps beside its windows, and what none of them may fail by: the history, the leak meter.

An accessory works on the owner's thread. Its file is written ten seconds after the last writing and at the end of a
run. At a failure of its own it stops until the next start, with one warning, and the windows go on. A file that cannot
be written is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

logger = logging.getLogger(__name__)

WRITTEN_EVERY_S = 10.0


class Accessory:
    """One of them, by its name for people. `is_on` until it fails or is switched off."""

    def __init__(self, name: str, write: Callable[[], None], seconds: Callable[[], float] = time.monotonic) -> None:
        self.is_on = True
        self._name = name
        self._write = write
        self._seconds = seconds
        self._written_s = seconds()
        self._is_changed = False

    def __enter__(self) -> None:
        """Around its work: an error ends it, and nothing else."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.is_on = False
        logger.warning("the %s stops until the next start; the job continues", self._name, exc_info=error)
        return True

    def changed(self) -> None:
        """There is something to write; written now if it is time."""
        self._is_changed = True
        if self._seconds() - self._written_s >= WRITTEN_EVERY_S:
            self._write_now()

    def close(self) -> None:
        """Write what is not written yet. Safe to repeat."""
        if self.is_on and self._is_changed:
            with self:
                self._write_now()

    def _write_now(self) -> None:
        self._written_s = self._seconds()
        try:
            self._write()
            self._is_changed = False
        except OSError as exc:
            logger.warning("the %s could not be written: %s", self._name, exc)
