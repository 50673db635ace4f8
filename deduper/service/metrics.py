"""The metrics page of a running job for Prometheus: each scrape reads one state of the job.

Two sources, and nothing is counted twice:

- the commit log's state, which is the truth: records, reasons, windows, points, pieces. Counters from it begin at the
  store's own totals, so they equal `deduper status`, go on over restarts, and a crash loses none;
- the reports after each window (`BatchProgress`), since the start of this process: seconds, rates, tables.

Labels come from closed sets, except topic and partition of the source; no value of a setting but the job's name is one.
Metrics never stop the job: the first exception is logged, all are counted.
"""

from __future__ import annotations

import functools
import logging
import platform
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Concatenate, ParamSpec

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from bucket_store.pieces.piece import PieceRef
from deduper import __version__
from deduper.config.model import Config
from deduper.core.verdict import PORT_OF_REASON, Verdict, expiry_point
from deduper.kafka.offsets import Offsets, TopicPartition, judged_ends
from deduper.service.process_memory import resident_bytes
from deduper.window.progress import BatchProgress

logger = logging.getLogger(__name__)

PHASES = ("intent", "judge", "durable", "commit", "publish", "clean", "expire")
JUDGE_PARTS = ("read", "shards", "write", "files")
TASK_STEPS = ("read", "rows", "keys", "tables", "judge", "verdicts", "piece", "ports")
FAILURES = ("window", "source_lag", "metrics")

SECONDS_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ROWS_BOUNDS = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
_TABLE_COUNTERS = {
    "loaded": ("deduper_tables_loaded", "Tables that were built from pieces"),
    "evicted": ("deduper_tables_evicted", "Tables that were dropped for room"),
    "expired": ("deduper_tables_expired", "Tables that were dropped because their bucket died"),
    "hits": ("deduper_table_hits", "Look-ups that a resident table answered"),
    "misses": ("deduper_table_misses", "Look-ups that met no resident table"),
    "merged": ("deduper_table_merged", "Misses that were answered from pieces, without a table"),
    "load_seconds": ("deduper_table_load_seconds", "Seconds spent building tables"),
}
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bound: `counts` has one more than `bounds`, for values above all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        """Without observations."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def with_one(self, value: float) -> Histogram:
        """With one more observation; a value on a bound counts below it, as Prometheus has it."""
        at = bisect_left(self.bounds, value)
        counts = tuple(count + (position == at) for position, count in enumerate(self.counts))
        return replace(self, counts=counts, total=self.total + value)

    def family(self, name: str, text: str) -> Metric:
        """As Prometheus takes it, cumulative."""
        buckets, below = [], 0
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            buckets.append((bound, below))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self.total)


@dataclass(frozen=True, slots=True)
class _Reported:
    """All reports so far. An immutable value: a scrape reads one, while new reports replace it."""

    log: CommitLog | None = None
    last: BatchProgress | None = None
    begun_s: float | None = None
    committed_s: float | None = None
    published: int | None = None
    seconds: Histogram = field(default_factory=lambda: Histogram.empty(SECONDS_BOUNDS))
    rows: Histogram = field(default_factory=lambda: Histogram.empty(ROWS_BOUNDS))
    phases: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, float] = field(default_factory=dict)
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest_s: float | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, float] = field(default_factory=dict)
    failed_s: Mapping[str, float] = field(default_factory=dict)


def _never_stops_the_job(
    tell: Callable[Concatenate[JobMetrics, _P], None],
) -> Callable[Concatenate[JobMetrics, _P], None]:
    """A report whose exceptions do not reach the job."""

    @functools.wraps(tell)
    def reported(metrics: JobMetrics, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            tell(metrics, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001  a job that runs is worth more than its numbers
            metrics.broke(exc)

    return reported


class JobMetrics(Collector):
    """The numbers of one job, on the registry it is given. Safe for several threads; the job's thread never waits.

    `wall_clock_us` gives µs since the epoch, `seconds` a clock that never goes back.
    """

    def __init__(
        self,
        config: Config,
        registry: CollectorRegistry,
        wall_clock_us: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._wall_clock_us = wall_clock_us
        self._seconds = seconds
        self._told = _Reported()
        self._writing = threading.Lock()
        self._has_broken = False
        registry.register(self)

    @_never_stops_the_job
    def opened(self, log: CommitLog) -> None:
        """The store is owned and recovered: all that it has committed is published."""
        committed = log.last_commits(1)
        committed_s = committed[-1].wall_us / 1e6 if committed else None
        self._tell(log=log, published=log.state.next_window - 1, committed_s=committed_s)

    @contextmanager
    def window(self) -> Iterator[None]:
        """Around a window, also one that fails."""
        self._begun(self._seconds)
        try:
            yield
        finally:
            self._begun(None)

    @_never_stops_the_job
    def window_ended(self, progress: BatchProgress) -> None:
        """A window is committed and published."""
        reported = self._told
        self._tell(
            last=progress,
            committed_s=self._wall_clock_us() / 1e6,
            published=progress.window,
            seconds=reported.seconds.with_one(progress.seconds),
            rows=reported.rows.with_one(progress.rows),
            phases=_summed(reported.phases, progress.phases),
            tables=_summed(reported.tables, progress.tables),
        )

    @_never_stops_the_job
    def source_ends(self, latest: Offsets) -> None:
        """The brokers have said where the source's partitions end."""
        self._tell(latest=dict(latest), latest_s=self._wall_clock_us() / 1e6)

    @_never_stops_the_job
    def source_files(self, *, pending: int, changed: int) -> None:
        """What the last listing of a source of files has found."""
        self._tell(files={"pending": pending, "changed": changed})

    @_never_stops_the_job
    def failed(self, kind: str) -> None:
        """Something failed; `kind` is one of FAILURES."""
        with self._writing:
            reported = self._told
            self._told = replace(
                reported,
                failures=_summed(reported.failures, {kind: 1}),
                failed_s={**reported.failed_s, kind: self._wall_clock_us() / 1e6},
            )

    def broke(self, error: Exception) -> None:
        """The metrics themselves have failed: logged once, always counted."""
        if not self._has_broken:
            self._has_broken = True
            logger.warning("metrics: the job goes on, their page may be wrong from here on", exc_info=error)
        with self._writing:
            reported = self._told
            self._told = replace(
                reported,
                failures=_summed(reported.failures, {"metrics": 1}),
                failed_s={**reported.failed_s, "metrics": time.time()},  # the job's own clock may be what broke
            )

    @_never_stops_the_job
    def _begun(self, seconds: Callable[[], float] | None) -> None:
        self._tell(begun_s=None if seconds is None else seconds())

    def _tell(self, **news: object) -> None:
        with self._writing:
            self._told = replace(self._told, **news)  # type: ignore[arg-type]  # field by field as named above

    # ---- the page

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no numbers."""
        return []

    def collect(self) -> list[Metric]:
        """The page. What cannot be made is left out, and counted."""
        families: list[Metric] = []
        for part in (self._about, self._of_the_store, self._of_windows, self._of_the_source):
            try:
                families += part(self._told)
            except Exception as exc:  # noqa: BLE001  the rest of the page still holds
                self.broke(exc)
        return families + list(_of_failures(self._told))

    def _about(self, reported: _Reported) -> Iterator[Metric]:
        names = ("version", "python", "spark")
        values = (__version__, platform.python_version(), version("pyspark"))
        yield _info("deduper_build_info", "What runs", names, values)
        config = self._config
        store = "" if reported.log is None else reported.log.manifest.store_id[:8]
        yield _info(
            "deduper_job_info",
            "Which job it is",
            ("name", "store", "source", "expiry"),
            (config.name, store, config.source.format, config.expiry.by),
        )
        memory = resident_bytes()
        yield _gauges("deduper_resident_memory_bytes", "Resident bytes of the job's processes", "process", memory)

    def _of_the_store(self, reported: _Reported) -> Iterator[Metric]:
        if reported.log is None:
            return
        state = reported.log.state
        yield _counters(
            "deduper_records",
            "Records judged and committed",
            ("verdict",),
            {(verdict.port,): state.totals.get(verdict.port, 0) for verdict in Verdict},
        )
        yield _counters(
            "deduper_reasons",
            "Records that are not unique, by the reason",
            ("verdict", "reason"),
            {(port, reason): state.reason_totals.get(reason, 0) for reason, port in PORT_OF_REASON.items()},
        )
        yield CounterMetricFamily("deduper_windows", "Windows committed", state.next_window)
        live = [ref for refs in state.pieces.values() for ref in refs]
        retired = [piece.ref for piece in state.retired]
        yield GaugeMetricFamily("deduper_store_entries", "Keys in live pieces", sum(ref.entries for ref in live))
        pieces = {"live": len(live), "retired": len(retired)}
        yield _gauges("deduper_store_pieces", "Pieces; retired ones wait for their grace", "state", pieces)
        lengths = {"live": _bytes(live), "retired": _bytes(retired)}
        yield _gauges("deduper_store_bytes", "Bytes of pieces", "state", lengths)
        yield GaugeMetricFamily("deduper_epoch", "Epoch of the owner", state.epoch)
        ahead_s = max(0, state.last_wall_us - self._wall_clock_us()) / 1e6
        text = "How far the wall clock of the store's records is ahead of this machine's"
        yield GaugeMetricFamily("deduper_wall_clock_ahead_seconds", text, ahead_s)
        if state.next_window > 0:
            committed = state.next_window - 1
            yield GaugeMetricFamily("deduper_committed_window", "The greatest committed window", committed)
        if reported.published is not None and reported.published >= 0:
            text = "The greatest window that is out on every port"
            yield GaugeMetricFamily("deduper_published_window", text, reported.published)
        yield from self._of_points(state)

    def _of_points(self, state: LogState) -> Iterator[Metric]:
        if not self._config.expiry_key_scale.is_time or state.latest_point is None:
            return
        latest_us = state.latest_point
        text = "The greatest expiry key admitted, as Unix time"
        yield GaugeMetricFamily("deduper_latest_point_timestamp_seconds", text, latest_us / 1e6)
        text = "How far the latest point is behind the clock"
        lag_s = (self._wall_clock_us() - latest_us) / 1e6
        yield GaugeMetricFamily("deduper_watermark_lag_seconds", text, lag_s)
        period = self._config.period_steps
        point = None if period is None else expiry_point(latest_us, period)
        if point is not None:
            text = "What lies at or before it is expired, as Unix time"
            yield GaugeMetricFamily("deduper_expiry_point_timestamp_seconds", text, point / 1e6)

    def _of_windows(self, reported: _Reported) -> Iterator[Metric]:
        running = 0.0 if reported.begun_s is None else max(0.0, self._seconds() - reported.begun_s)
        yield GaugeMetricFamily(
            "deduper_window_running_seconds", "How long the window at hand has been running", running
        )
        if reported.committed_s is not None:
            text = "When the last window was committed, as Unix time"
            yield GaugeMetricFamily("deduper_last_commit_timestamp_seconds", text, reported.committed_s)
        yield reported.seconds.family("deduper_window_seconds", "Wall seconds of a window")
        yield reported.rows.family("deduper_window_rows", "Records of a window")
        yield _counters(
            "deduper_window_phase_seconds",
            "Wall seconds by step of a window, on the driver",
            ("phase",),
            {(phase,): reported.phases.get(phase, 0.0) for phase in PHASES},
        )
        yield _counters(
            "deduper_judge_seconds",
            "Wall seconds by part of the step `judge`: its three jobs, then ports of other formats",
            ("part",),
            {(part,): reported.phases.get(f"judge.{part}", 0.0) for part in JUDGE_PARTS},
        )
        yield _counters(
            "deduper_task_seconds",
            "Seconds by step inside the tasks, summed over the tasks of the three jobs",
            ("step",),
            {(step,): reported.phases.get(f"task.{step}", 0.0) for step in TASK_STEPS},
        )
        for name, (metric, text) in _TABLE_COUNTERS.items():
            yield CounterMetricFamily(metric, text, reported.tables.get(name, 0))
        if reported.last is not None:
            rate = reported.last.rows_per_second
            yield GaugeMetricFamily("deduper_rows_per_second", "Records a second of the last window", rate)
            tables = reported.last.tables
            text = "Tables that lie ready, over all shards"
            yield GaugeMetricFamily("deduper_tables_resident", text, tables.get("resident_tables", 0))
            text = "Bytes of the tables that lie ready"
            yield GaugeMetricFamily("deduper_tables_resident_bytes", text, tables.get("resident_bytes", 0))

    def _of_the_source(self, reported: _Reported) -> Iterator[Metric]:
        if reported.files:
            text = "Files that were listed and are not judged yet"
            yield GaugeMetricFamily("deduper_source_pending_files", text, reported.files["pending"])
            text = "Files that were changed after they were judged; they are not read again"
            yield GaugeMetricFamily("deduper_source_changed_files", text, reported.files["changed"])
        ends = {} if reported.log is None else judged_ends(reported.log.state)
        if not ends:
            return
        places = ("topic", "partition")
        judged = GaugeMetricFamily("deduper_source_judged_offset", "Up to where windows are committed", labels=places)
        for place, end in ends.items():
            judged.add_metric((place.topic, str(place.partition)), end.offset)
        yield judged
        if reported.latest_s is None:
            return
        lag = GaugeMetricFamily("deduper_source_lag_records", "Offsets that no committed window has", labels=places)
        for place, end in ends.items():
            if place in reported.latest:
                # Judged offsets may be newer than the end offsets.
                lag.add_metric((place.topic, str(place.partition)), max(0, reported.latest[place] - end.offset))
        yield lag
        text = "When the brokers said where the source ends, as Unix time"
        yield GaugeMetricFamily("deduper_source_lag_timestamp_seconds", text, reported.latest_s)


def _of_failures(reported: _Reported) -> Iterator[Metric]:
    yield _counters(
        "deduper_errors",
        "Failures that the job has seen since its start",
        ("kind",),
        {(kind,): reported.failures.get(kind, 0) for kind in FAILURES},
    )
    text = "When something of the kind failed last, as Unix time"
    yield _gauges("deduper_last_error_timestamp_seconds", text, "kind", reported.failed_s)


def _info(name: str, text: str, labels: Sequence[str], values: Sequence[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    family.add_metric(values, 1)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value_of_label, value in values.items():
        family.add_metric((value_of_label,), value)
    return family


def _counters(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values_of_labels, value in values.items():
        family.add_metric(values_of_labels, value)
    return family


def _summed(before: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: before.get(name, 0) + more.get(name, 0) for name in before.keys() | more.keys()}


def _bytes(refs: Sequence[PieceRef]) -> int:
    return sum(ref.length for ref in refs)
