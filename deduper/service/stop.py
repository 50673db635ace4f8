"""Requests to stop a job before its source ends: a signal, a limit, another owner. One flag, set once, with its reason.

SIGTERM and SIGINT request a stop: the current window is finished first. A second signal ends the process at once, which
is as safe as a power cut. Before Spark has started there is no window to finish, and the first signal ends the process
at once: an exception could be caught by a call into the JVM on its way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether the job is to stop, and why. Safe for all threads.

    `event` is set by the first request; rooms that only wait for a stop take that.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._signals = 0
        self.reason = "drained"

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested."""
        return self.event.is_set()

    @property
    def is_by_signal(self) -> bool:
        """Whether a signal has arrived, even after another reason."""
        return self._signals > 0

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a stop is requested; whether one is."""
        return self.event.wait(seconds)

    def request(self, reason: str) -> None:
        """Request a stop; the first reason counts."""
        if not self.event.is_set():
            self.reason = reason
            self.event.set()

    def end_at_once(self, clean_up: Callable[[signal.Signals], None]) -> None:
        """Until `listen`, a signal ends the process, after `clean_up`. In the main thread only, as `listen`."""

        def end(number: int, _: FrameType | None) -> None:
            clean_up(signal.Signals(number))
            os._exit(128 + number)

        for number in _SIGNALS:
            signal.signal(number, end)

    def listen(self) -> None:
        """From here on a signal requests a stop. In the main thread only; `restoring_handlers` undoes it."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        logger.warning("%s: finishing the current window, then stopping", signal.Signals(number).name)
        self.request("signal")


@contextlib.contextmanager
def restoring_handlers() -> Iterator[None]:
    """Restore the signal handlers that this block or PySpark replaces. Main thread only."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
