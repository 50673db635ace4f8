"""The thread that asks the brokers where the source ends, for the lag that the metrics show.

No window waits for it, and it does not wait for brokers that are down: what it does not learn shows as a lag that was
last known some time ago.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from bucket_store.commit_log import CommitLog
from deduper.config_kafka import KafkaSource
from deduper.kafka_lag import LatestOffsets
from deduper.kafka_offsets import judged_ends
from deduper.metrics import JobMetrics

logger = logging.getLogger(__name__)

_ASK_EVERY_S = 10.0
_ASK_AT_MOST_EVERY_S = 1.0
_END_S = 2.0


@contextlib.contextmanager
def watched_source(source: KafkaSource, metrics: JobMetrics, log: CommitLog) -> Iterator[Callable[[], None]]:
    """Gives what to call after a window: soon after, and every ten seconds, the brokers are asked for the ends."""
    watch = _SourceWatch(source, metrics, log)
    watch.start()
    try:
        yield watch.soon
    finally:
        watch.end()


class _SourceWatch(threading.Thread):
    """Asks, however long an answer takes, and tells the metrics. It dies with the process, whatever it waits for."""

    def __init__(self, source: KafkaSource, metrics: JobMetrics, log: CommitLog) -> None:
        super().__init__(name="metrics: source", daemon=True)
        self._source = source
        self._metrics = metrics
        self._log = log
        self._wanted = threading.Event()
        self._ending = threading.Event()

    def soon(self) -> None:
        """There is something new. Never waits."""
        self._wanted.set()

    def end(self) -> None:
        """Ask no more; an answer that is still waited for is left behind."""
        self._ending.set()
        self._wanted.set()
        self.join(_END_S)

    def run(self) -> None:
        """The thread."""
        try:
            latest = LatestOffsets(self._source)
        except Exception as exc:  # noqa: BLE001  the job says what is wrong with its options
            self._metrics.broke(exc)
            return
        while not self._ending.is_set():
            self._wanted.clear()
            try:
                places = judged_ends(self._log.state)
                if places:
                    self._metrics.source_ends(latest.ask(places))
            except Exception as exc:  # noqa: BLE001  brokers that are down are the job's to report
                logger.debug("the source's ends are not known: %s", exc)
                self._metrics.failed("source_lag")
            self._ending.wait(_ASK_AT_MOST_EVERY_S)
            self._wanted.wait(_ASK_EVERY_S)
