"""The metrics page of a stream for Prometheus, and `/healthz`.

As for a job, what is committed comes from the commit log, so counters continue over restarts; seconds, and what waits,
count from the start of the process. Nothing here can stop a window.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from threading import Lock

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from deduper.config.sections import MetricsConfig
from deduper.preflight.disk_room import disk_room
from deduper.ranges.stream.pieces import EVENTS, RANGES
from deduper.ranges.stream.report import piece_rows
from deduper.ranges.stream.runner import StreamRunner
from deduper.ranges.stream.settings import INPUTS, StreamJob
from deduper.service.health import HealthFacts, complaints
from deduper.service.metrics import SECONDS_BOUNDS
from deduper.service.metrics_server import served_page

_LATE = {"late": "rejected.late", "late_retraction": "rejected.late_retraction", "closed": "ranges.closed"}
_PREFIX = "deduper_range_stream"


@contextlib.contextmanager
def serving_metrics(job: StreamJob, page: MetricsConfig, wall_clock_us: Callable[[], int]) -> Iterator[StreamMetrics]:
    """The metrics of a stream, on their page while the `with` block runs.

    Raises:
        DeduperError: the configured address cannot be listened on.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = StreamMetrics(job, wall_clock_us)
    registry.register(metrics)
    with served_page(page, registry, metrics.health):
        yield metrics


class StreamMetrics(Collector):
    """The numbers of one stream. Safe for several threads."""

    def __init__(
        self,
        job: StreamJob,
        wall_clock_us: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._wall_clock_us = wall_clock_us
        self._seconds = seconds
        self._started = seconds()
        self._lock = Lock()
        self._runner: StreamRunner | None = None
        self._begun_s: float | None = None
        self._looked_s: float | None = None
        self._window_seconds = Histogram(
            f"{_PREFIX}_window_seconds", "Wall seconds of a window", registry=None, buckets=SECONDS_BOUNDS
        )

    def opened(self, runner: StreamRunner) -> None:
        """The store is owned and recovered."""
        self._runner = runner

    @contextlib.contextmanager
    def window(self) -> Iterator[None]:
        """Measures the block: a plan of the inputs, and the window if there are rows."""
        assert self._runner is not None, "no store is open"
        begun, windows = self._seconds(), self._runner.windows
        self._begun_s = begun
        try:
            yield
        finally:
            self._begun_s = None
        self._looked_s = self._seconds()
        if self._runner.windows > windows:
            with self._lock:
                self._window_seconds.observe(self._looked_s - begun)

    # The page.

    def describe(self) -> list[Metric]:
        """Gives nothing, so that registering collects no numbers."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The page."""
        with self._lock:
            for metric in self._window_seconds.collect():
                metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
                yield metric
        if self._runner is not None:
            yield from self._of_the_store(self._runner)
            text = "Offsets of topics, or windows of a folder, that no committed window has, by the last look"
            waiting = GaugeMetricFamily(f"{_PREFIX}_waiting", text, labels=("side",))
            for side in INPUTS:
                waiting.add_metric((side,), self._runner.inputs[side].waiting)
            yield waiting
        text = "Bytes that are free on the file system of the store, and of each port of files"
        free = GaugeMetricFamily(f"{_PREFIX}_disk_free_bytes", text, labels=("place",))
        for place, room in disk_room(self._job.ports).items():
            free.add_metric((place,), room.free)
        yield free

    def _of_the_store(self, runner: StreamRunner) -> Iterator[Metric]:
        state = runner.log.state
        info = GaugeMetricFamily(f"{_PREFIX}_info", "Which stream it is", labels=("name", "store"))
        info.add_metric((self._job.name, runner.log.manifest.store_id[:8]), 1)
        yield info
        yield CounterMetricFamily(f"{_PREFIX}_windows", "Windows committed", state.next_window)
        text = "Rows of the inputs that are committed, by what became of them"
        rows = CounterMetricFamily(f"{_PREFIX}_rows", text, labels=("side", "outcome"))
        for name, count in sorted(state.totals.items()):
            side, dot, outcome = name.partition(".")
            if dot and side in INPUTS:
                rows.add_metric((side, outcome), count)
        yield rows
        text = "Ranges and retractions that came too late for earlier answers, by the reason in `late`"
        late = CounterMetricFamily(f"{_PREFIX}_late_ranges", text, labels=("reason",))
        for reason, name in _LATE.items():
            late.add_metric((reason,), state.totals.get(name, 0))
        yield late
        corrections = state.totals.get("corrections", 0)
        yield CounterMetricFamily(f"{_PREFIX}_corrections", "Answers that were corrected", corrections)
        ranges = piece_rows(state, RANGES)
        text = "Ranges that are in the state, and retractions of such"
        yield GaugeMetricFamily(f"{_PREFIX}_open_ranges", text, sum(ranges))
        yield GaugeMetricFamily(f"{_PREFIX}_levels", "Levels of ranges", len(ranges))
        remembered = sum(piece_rows(state, EVENTS))
        yield GaugeMetricFamily(f"{_PREFIX}_remembered_events", "Events that may be corrected", remembered)
        if state.latest_point is not None:
            clock_s = state.latest_point / 1e6
            yield GaugeMetricFamily(f"{_PREFIX}_clock_timestamp_seconds", "Latest time of all events", clock_s)
        if state.next_window:
            committed_s = (state.last_wall_us or 0) / 1e6
            text = "When the last window was committed, as Unix time"
            yield GaugeMetricFamily(f"{_PREFIX}_committed_timestamp_seconds", text, committed_s)

    # Health.

    def health(self) -> list[str]:
        """Everything that is wrong with the stream, in one line each; the limits are those of a job."""
        now, begun, looked, runner = self._seconds(), self._begun_s, self._looked_s, self._runner
        state = None if runner is None else runner.log.state
        is_of_topics = runner is not None and any(one.kept_in == "topics" for one in runner.inputs.values())
        facts = HealthFacts(
            up_s=now - self._started,
            running_s=0.0 if begun is None else max(0.0, now - begun),
            is_committed=runner is not None and runner.is_publishing,
            commit_s=None
            if state is None or not state.next_window
            else max(0.0, (self._wall_clock_us() - (state.last_wall_us or 0)) / 1e6),
            brokers_s=now - (self._started if looked is None else looked) if is_of_topics and begun is None else None,
            waiting=0 if runner is None else sum(one.waiting for one in runner.inputs.values()),
            free_bytes={place: room.free for place, room in disk_room(self._job.ports).items()},
        )
        return list(complaints(facts, self._job.trigger))
