"""Waits for a source's brokers after a window could not be read.

The window is read again once they answer; until then one line every ten seconds reports that they do not. One deadline
counts from the first failure to the next window. Brokers that answer may still give no record of a partition in time,
to a client that they throttle for example, so each failure makes the next fetch wait twice as long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import SourceAwayError, StopRequested
from deduper.kafka.client import source_admin
from deduper.kafka.error_actions import error_of
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.retry import NOTHING_LOST, ThrottledLog
from deduper.sources.kafka.fetching import SILENCE_S

_ANSWER_S = 1.0
_PAUSE_S = 0.5
_LONGEST_SILENCE_S = 120.0


class BrokerWatch:
    """Watches the brokers of one source. Safe for any thread.

    `ask` raises a KafkaException when the brokers do not answer.
    """

    def __init__(
        self,
        source: KafkaSource,
        stop: threading.Event | None = None,
        *,
        ask: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        name: str = "source",
    ) -> None:
        """`name` is that of the source's section, for messages."""
        self._name = name
        self._deadline_s = source.deadline / 1_000_000
        self._stop = stop or threading.Event()
        self._ask = ask or _asking(source)
        self._clock = clock
        self._sleep = sleep
        self._reporter = ThrottledLog(clock)
        self._lock = threading.Lock()
        self._silent_since: float | None = None
        self._failing_since: float | None = None
        self.silence_s = SILENCE_S
        """How long a fetch waits for a record."""

    def is_over(self, failure: SourceAwayError) -> bool:
        """After a failure: whether to try again now. If not, it pauses first, and is called again.

        Raises:
            BrokerUnavailableError: the brokers are away, or the same reading fails, for longer than the deadline.
        """
        with self._lock:
            if self._failing_since is None:
                self._failing_since = self._clock()
            reason = self._is_silent()
            waited = self._clock() - self._failing_since
            if waited >= self._deadline_s:
                raise BrokerUnavailableError(
                    f"{self._name}: waited {waited:.0f} s for the brokers: {reason or failure}{NOTHING_LOST}"
                ) from failure
            self._sleep(_PAUSE_S)
            return reason is None

    def wait_for(self, failure: Exception) -> None:
        """Wait until a batch that failed may be tried again.

        Raises:
            StopRequested: a stop was requested: nothing of the batch is committed.
            BrokerUnavailableError: see `is_over`.
            Exception: `failure` itself, when its cause is not the brokers.
        """
        if not isinstance(failure, SourceAwayError):
            raise failure
        is_over = False
        while not is_over:
            is_over = self.is_over(failure)
            if self._stop.is_set():
                raise StopRequested("a stop was requested while the brokers were away") from failure
        self.silence_s = min(2 * self.silence_s, _LONGEST_SILENCE_S)

    def progressed(self) -> None:
        """A window was judged: the deadline begins again."""
        self._failing_since, self.silence_s = None, SILENCE_S

    def _is_silent(self) -> str | None:
        """Check once; the reason when there is no answer, which is logged."""
        try:
            self._ask()
        except KafkaException as exc:
            now = self._clock()
            if self._silent_since is None:
                self._silent_since = now
            waited = now - self._silent_since
            reason = error_of(exc).str()
            # The first second of a fault is not worth a line.
            if waited >= 1:
                self._reporter.warn(
                    f"{self._name}: the brokers have not answered for {waited:.0f} s ({reason}); retrying, gives up "
                    f"after {self._deadline_s:.0f} s"
                )
            return reason
        self._silent_since = None
        return None


def _asking(source: KafkaSource) -> Callable[[], object]:
    admin = source_admin(source)
    return lambda: admin.list_topics(timeout=_ANSWER_S)
