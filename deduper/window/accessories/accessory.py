"""Optional files of a job, such as the history and the leak sample. A failure here never fails a window.

An accessory works on the owner's thread. Its file is written at most every ten seconds, and at the end of a run. After
a failure of its own it is off until the next start, with one warning. A file that cannot be written is tried again; no
window waits for a storage that is away to take it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from bucket_store.places.outages import not_waiting

logger = logging.getLogger(__name__)

WRITTEN_EVERY_S = 10.0


class Accessory:
    """One optional file; `name` is for log lines. `is_on` is true until it fails or is switched off."""

    def __init__(self, name: str, write: Callable[[], None], seconds: Callable[[], float] = time.monotonic) -> None:
        self.is_on = True
        self._name = name
        self._write = write
        self._seconds = seconds
        self._written_s = seconds()
        self._is_changed = False

    def __enter__(self) -> None:
        """An error inside the block switches the accessory off, and goes no further."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.is_on = False
        logger.warning("the %s stops until the next start; the job continues", self._name, exc_info=error)
        return True

    def changed(self) -> None:
        """Note that there is something to write, and write it if ten seconds have passed."""
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
            with not_waiting():
                self._write()
            self._is_changed = False
        except OSError as exc:
            logger.warning("the %s could not be written: %s", self._name, exc)
