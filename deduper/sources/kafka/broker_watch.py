"""Checks, apart from Spark, that the source's brokers answer: Spark's own clients wait in silence, then fail.

After a failure that their absence explains, the work is tried again once they answer, and one line every ten seconds
reports that they do not. One deadline counts from the first failure to the next window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import StopRequested
from deduper.kafka.client import source_admin
from deduper.kafka.error_actions import error_of
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.retry import ThrottledLog
from deduper.kafka.spark_failures import may_pass
from deduper.spark.failures import innermost_cause

_ANSWER_S = 1.0
_PAUSE_S = 0.5
_LONGEST_TRY_S = 300.0
"""Spark may take so long to fail again: its clients wait for two minutes, more than once."""


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
    ) -> None:
        self._deadline_s = source.deadline / 1_000_000
        self._stop = stop or threading.Event()
        self._ask = ask or _asking(source)
        self._clock = clock
        self._sleep = sleep
        self._reporter = ThrottledLog(clock)
        self._lock = threading.Lock()
        self._silent_since: float | None = None
        self._failing_since: float | None = None
        self._last_failure = clock()

    def is_over(self, failure: Exception) -> bool:
        """After a failure: whether to try again now. If not, it pauses first, and is called again.

        Raises:
            Exception: `failure` itself, when the brokers did not cause it.
            BrokerUnavailableError: they have been away, or the same has failed, for longer than the deadline.
        """
        if not may_pass(failure):
            raise failure
        with self._lock:
            now = self._clock()
            # Long after the last failure this is a new one: a topic may have had no records for a window since.
            is_another = self._silent_since is None and now - self._last_failure > self._deadline_s + _LONGEST_TRY_S
            if self._failing_since is None or is_another:
                self._failing_since = now
            self._last_failure = now
            reason = self._is_silent()
            waited = self._clock() - self._failing_since
            if waited >= self._deadline_s:
                raise BrokerUnavailableError(
                    f"source: waited {waited:.0f} s for the brokers: {reason or innermost_cause(failure)}; nothing is "
                    "lost: bring the brokers back and start the job again"
                ) from failure
            self._sleep(_PAUSE_S)
            return reason is None

    def wait_for(self, failure: Exception) -> None:
        """Wait until a batch that failed may be tried again.

        Raises:
            StopRequested: a stop was requested: nothing of the batch is committed.
            Exception: see `is_over`.
        """
        while not self.is_over(failure):
            if self._stop.is_set():
                raise StopRequested("a stop was requested while the brokers were away") from failure

    def progressed(self) -> None:
        """A window was judged: the deadline begins again."""
        self._failing_since = None

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
                    f"source: the brokers have not answered for {waited:.0f} s ({reason}); retrying, gives up "
                    f"after {self._deadline_s:.0f} s"
                )
            return reason
        self._silent_since = None
        return None


def _asking(source: KafkaSource) -> Callable[[], object]:
    admin = source_admin(source)
    return lambda: admin.list_topics(timeout=_ANSWER_S)
