"""Waits for a passing fault: one deadline, and one line of log every ten seconds that names the cause.

A stop ends a wait that has lasted for some seconds: the next start does the rest, and nothing is lost. Needs no Kafka
client, because jobs on files import it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from deduper.errors import StopRequested
from deduper.kafka.errors import BrokerUnavailableError

logger = logging.getLogger(__name__)

LOG_EVERY_S = 10.0
STOPPING_S = 5.0
"""A wait continues so long after a stop: when a broker only restarts, the window can be finished."""

NOTHING_LOST = "; nothing is lost: bring the brokers back and start the job again"
"""The last words of the message when a wait ends without success."""

_PAUSE_S = 0.2


class ThrottledLog:
    """One line of log at most every ten seconds, for all waits together. Safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: float | None = None

    def warn(self, text: str) -> None:
        """Log the text, unless the last line is younger than ten seconds."""
        with self._lock:
            now = self._clock()
            if self._last is not None and now - self._last < LOG_EVERY_S:
                return
            self._last = now
        logger.warning("%s", text)


class RetryDeadline:
    """The deadline of a sequence of waits; progress restarts it. For one thread."""

    def __init__(
        self,
        subject: str,
        deadline_s: float,
        throttled: ThrottledLog,
        *,
        stop: threading.Event | None = None,
        when_stopped: str = "the window is committed, and the next start publishes what is missing",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stop = stop or threading.Event()
        self._when_stopped = when_stopped
        self._subject = subject
        self._deadline_s = deadline_s
        self._reporter = throttled
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._first_repeat: float | None = None

    def progressed(self) -> None:
        """A step succeeded: the deadline begins again."""
        self._since = None

    def wait(self, what: str, reason: str, pause_s: float = _PAUSE_S) -> float:
        """Pause, because `what` is still missing; gives how long the wait has lasted.

        Raises:
            BrokerUnavailableError: longer than the deadline.
            StopRequested: longer than some seconds, and a stop was requested.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        waited = now - self._since
        self._report(what, reason, waited)
        self._sleep(pause_s)
        return waited

    def repeat(self, reason: str) -> None:
        """Pause before everything is repeated from the start; steps that succeeded in between do not count.

        Raises:
            BrokerUnavailableError: the first time was longer ago than the deadline.
            StopRequested: the first time was some seconds ago, and a stop was requested.
        """
        now = self._clock()
        if self._first_repeat is None:
            self._first_repeat = now
        self._report("the transaction to succeed", reason, now - self._first_repeat)
        self._sleep(_PAUSE_S)

    def _report(self, what: str, reason: str, waited_s: float) -> None:
        if waited_s >= self._deadline_s:
            raise BrokerUnavailableError(f"{self._subject}: waited {waited_s:.0f} s for {what}: {reason}{NOTHING_LOST}")
        if waited_s >= STOPPING_S and self._stop.is_set():
            raise StopRequested(f"{self._subject}: stopped while waiting for {what} ({reason}): {self._when_stopped}")
        # The first second or so of a fault has no line: a new leader is found within it.
        if waited_s >= 1:
            self._reporter.warn(
                f"{self._subject}: waiting for {what} for {waited_s:.0f} s ({reason}); retrying, gives up "
                f"after {self._deadline_s:.0f} s"
            )
