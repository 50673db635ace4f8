"""A thread that requests the end offsets of the source from the brokers, for the lag in the metrics.

No window waits for it. While brokers are down, the page keeps the last known lag and its time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator

from bucket_store.log.commit_log import CommitLog
from deduper.config.kafka.sections import KafkaSource
from deduper.kafka.cluster import ClusterOffsets
from deduper.kafka.offsets import TopicPartition, judged_ends
from deduper.service.metrics import JobMetrics

logger = logging.getLogger(__name__)

_ASK_EVERY_S = 10.0
_ASK_AT_MOST_EVERY_S = 1.0
_END_S = 2.0


@contextlib.contextmanager
def watched_source(source: KafkaSource, metrics: JobMetrics | None, log: CommitLog) -> Iterator[SourceWatch]:
    """Gives a watch whose `soon` is called after a window: the offsets are requested soon after, and every 10 s."""
    watch = SourceWatch(source, metrics, log)
    watch.start()
    try:
        yield watch
    finally:
        watch.end()


class SourceWatch(threading.Thread):
    """Requests offsets, without a timeout, and reports them to the metrics. A daemon: it ends with the process."""

    def __init__(self, source: KafkaSource, metrics: JobMetrics | None, log: CommitLog) -> None:
        super().__init__(name="metrics: source", daemon=True)
        self._source = source
        self._metrics = metrics
        self._log = log
        self._wanted = threading.Event()
        self._ending = threading.Event()
        self._ends: dict[TopicPartition, int] = {}

    def waiting(self) -> int | None:
        """The offsets that no window has judged, by the newest answer of the brokers; None before the first."""
        judged = judged_ends(self._log.state)
        if not self._ends:
            return None
        lags = (end - judged[place].offset for place, end in self._ends.items() if place in judged)
        return sum(lag for lag in lags if lag > 0)

    def soon(self) -> None:
        """Request the offsets soon. Never waits."""
        self._wanted.set()

    def end(self) -> None:
        """End the thread; a pending request is abandoned."""
        self._ending.set()
        self._wanted.set()
        self.join(_END_S)

    def run(self) -> None:
        """The thread."""
        try:
            brokers = ClusterOffsets(self._source)
        except Exception as exc:  # noqa: BLE001  the job reports mistakes in its options
            if self._metrics is not None:
                self._metrics.broke(exc)
            return
        if self._metrics is not None:
            self._metrics.source_watched()
        while not self._ending.is_set():
            self._wanted.clear()
            try:
                places: Iterable[TopicPartition] = judged_ends(self._log.state, self._source.reads)
                if not places and self._source.starting_offsets == "earliest":
                    first = brokers.earliest_offsets(brokers.places())
                    if self._metrics is not None:
                        self._metrics.source_begins(first)
                    places = first
                if places:
                    self._ends = brokers.latest_offsets(places)
                    if self._metrics is not None:
                        self._metrics.source_ends(self._ends)
            except Exception as exc:  # noqa: BLE001  brokers that are down are the job's to report
                logger.debug("the source's ends are not known: %s", exc)
                if self._metrics is not None:
                    self._metrics.failed("source_lag")
            self._ending.wait(_ASK_AT_MOST_EVERY_S)
            self._wanted.wait(_ASK_EVERY_S)
