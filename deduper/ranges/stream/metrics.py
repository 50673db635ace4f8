"""The metrics page of a range stream for Prometheus: that of all windows, and the numbers of ranges and events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from deduper.ranges.stream.pieces import EVENTS, RANGES, named_pieces
from deduper.ranges.stream.runner import StreamRunner
from deduper.ranges.stream.settings import INPUTS, StreamJob
from deduper.service.window_metrics import WindowMetrics, counters, gauges

_LATE = {"late": "rejected.late", "late_retraction": "rejected.late_retraction", "closed": "ranges.closed"}
_PREFIX = "deduper_range_stream"


class StreamMetrics(WindowMetrics):
    """The numbers of one stream. Safe for several threads."""

    def __init__(
        self,
        job: StreamJob,
        registry: CollectorRegistry,
        wall_clock_us: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._runner: StreamRunner | None = None
        self._looked_s: float | None = None
        super().__init__(job, job.trigger, {}, registry, wall_clock_us, seconds)

    def follow(self, runner: StreamRunner) -> None:
        """The store is owned and recovered, and the inputs are open."""
        self.opened(runner.log)
        self._runner = runner
        self.looked()

    def looked(self) -> None:
        """The inputs were planned."""
        self._looked_s = self._seconds()

    def _parts(self) -> Sequence[Callable[[], Iterable[Metric]]]:
        return () if self._runner is None else (self._of_rows, lambda: self._of_points(self._job.period))

    def _of_rows(self) -> Iterator[Metric]:
        assert self._runner is not None, "no part before that"
        state = self._runner.log.state
        outcomes = {
            (side, outcome): count
            for name, count in sorted(state.totals.items())
            for side, dot, outcome in (name.partition("."),)
            if dot and side in INPUTS
        }
        text = "Rows of the inputs that are committed, by what became of them"
        yield counters(f"{_PREFIX}_rows", text, ("side", "outcome"), outcomes)
        text = "Ranges and retractions that came too late for earlier answers, by the reason in `late`"
        late = {(reason,): state.totals.get(name, 0) for reason, name in _LATE.items()}
        yield counters(f"{_PREFIX}_late_ranges", text, ("reason",), late)
        corrections = state.totals.get("corrections", 0)
        yield CounterMetricFamily(f"{_PREFIX}_corrections", "Answers that were corrected", corrections)
        ranges = named_pieces(state, RANGES)
        text = "Ranges that are in the state, and retractions of such"
        yield GaugeMetricFamily(f"{_PREFIX}_open_ranges", text, sum(piece.rows for piece in ranges))
        yield GaugeMetricFamily(f"{_PREFIX}_levels", "Levels of ranges", len(ranges))
        remembered = sum(piece.rows for piece in named_pieces(state, EVENTS))
        yield GaugeMetricFamily(f"{_PREFIX}_remembered_events", "Events that may be corrected", remembered)
        text = "Offsets of topics, or windows of a folder, that no committed window has, by the last look"
        waiting = {side: one.waiting for side, one in self._runner.inputs.items()}
        yield gauges(f"{_PREFIX}_waiting", text, "side", waiting)

    def _brokers_s(self) -> float | None:
        inputs = {} if self._runner is None else self._runner.inputs
        if self._running_s or self._looked_s is None or all(one.kind != "topics" for one in inputs.values()):
            return None
        return self._seconds() - self._looked_s

    def _waits_s(self) -> float:
        # For how long is not known.
        return math.inf if self._runner is not None and any(one.waiting for one in self._runner.inputs.values()) else 0
