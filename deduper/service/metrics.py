"""The metrics page of a running job for Prometheus: each scrape reads one state of the job.

Two sources, and nothing is counted twice:

- the commit log's state, which is the truth: records, reasons, windows, points, pieces. Counters from it begin at the
  store's own totals, so they equal `deduper status`, continue over restarts, and a crash loses none;
- the reports after each window (`BatchProgress`), since the start of this process: seconds, rates, tables.

Labels come from closed sets, except topic and partition of the source; the job's name is the only setting among them.
Metrics never stop the job: the first exception is logged, all are counted.
"""

from __future__ import annotations

import functools
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Concatenate, ParamSpec, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from bucket_store.pieces.piece import PieceRef
from deduper import __version__
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.statistics import SpanCounts
from deduper.core.verdict import PORT_OF_REASON, TupleVerdict, expiry_point
from deduper.kafka.offsets import Offsets, TopicPartition, judged_ends
from deduper.leaks.figures import LeakFigures
from deduper.preflight.disk_room import disk_room
from deduper.service.end_times import EndTimes
from deduper.service.health import HealthFacts, complaints
from deduper.service.log_counts import LogCounts
from deduper.service.process_memory import memory_room, resident_bytes
from deduper.window import policy
from deduper.window.accessories.leak_watch import stored_figures
from deduper.window.completeness import is_complete
from deduper.window.progress import BatchProgress

logger = logging.getLogger(__name__)

PHASES = ("intent", "judge", "durable", "wait", "commit", "publish", "clean", "expire", "measure", "send")
JUDGE_PARTS = ("read", "shards", "write")
TASK_STEPS = ("read", "rows", "keys", "tables", "judge", "verdicts", "piece", "ports")
FAILURES = ("window", "source_lag", "metrics")

SECONDS_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ROWS_BOUNDS = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
_PHASES = {
    "": ("deduper_window_phase_seconds", "Wall seconds by step of a window, on the driver", ("phase",), PHASES),
    "judge.": (
        "deduper_judge_seconds",
        "Wall seconds by part of the step `judge`: its three jobs",
        ("part",),
        JUDGE_PARTS,
    ),
    "task.": (
        "deduper_task_seconds",
        "Seconds by step inside the tasks, summed over the tasks of the three jobs",
        ("step",),
        TASK_STEPS,
    ),
}
"""Counters of a window's phases, by the prefix of the phases' names."""
_TABLES = {
    "loaded": ("deduper_tables_loaded", "Tables that were built from pieces"),
    "evicted": ("deduper_tables_evicted", "Tables that were dropped for room"),
    "expired": ("deduper_tables_expired", "Tables that were dropped because their bucket died"),
    "hits": ("deduper_table_hits", "Look-ups that a resident table answered"),
    "misses": ("deduper_table_misses", "Look-ups that met no resident table"),
    "merged": ("deduper_table_merged", "Misses that were answered from pieces, without a table"),
    "load_seconds": ("deduper_table_load_seconds", "Seconds spent building tables"),
    "cache_hits": ("deduper_piece_cache_hits", "Reads of pieces that the hosts' copies answered"),
    "cache_misses": ("deduper_piece_cache_misses", "Reads of pieces from a store elsewhere"),
    "fetched_bytes": ("deduper_piece_fetched_bytes", "Bytes of pieces read from a store elsewhere"),
}
_P = ParamSpec("_P")
_Labels = TypeVar("_Labels", bound=tuple[str, ...])


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest reported values, for the gauges. Immutable: a scrape reads one, while new reports replace it."""

    log: CommitLog | None = None
    last: BatchProgress | None = None
    begun_s: tuple[float, ...] = ()
    committed_s: float | None = None
    published: int | None = None
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest_s: float | None = None
    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    unaccounted: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    leaks: LeakFigures | None = None


def _never_stops_the_job(
    report: Callable[Concatenate[JobMetrics, _P], None],
) -> Callable[Concatenate[JobMetrics, _P], None]:
    """A report whose exceptions do not reach the job."""

    @functools.wraps(report)
    def reported(metrics: JobMetrics, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            report(metrics, *args, **kwargs)
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
        self._lock = threading.Lock()  # held to add some numbers, or to copy them
        self._newest = _Newest()
        self._started = seconds()
        self._started_s = time.time()
        self._end_times = EndTimes()
        self.log_counts = LogCounts()
        self._window_seconds = Histogram(
            "deduper_window_seconds", "Wall seconds of a window", registry=None, buckets=SECONDS_BOUNDS
        )
        self._window_rows = Histogram("deduper_window_rows", "Records of a window", registry=None, buckets=ROWS_BOUNDS)
        self._phases = {prefix: _counter(*described) for prefix, described in _PHASES.items()}
        self._tables = {name: Counter(*described, registry=None) for name, described in _TABLES.items()}
        self._failures = _counter(
            "deduper_errors", "Failures that the job has seen since its start", ("kind",), FAILURES
        )
        self._failed_s = Gauge(
            "deduper_last_error_timestamp_seconds",
            "When something of the kind failed last, as Unix time",
            ("kind",),
            registry=None,
        )
        self._has_broken = False
        registry.register(self)

    @_never_stops_the_job
    def opened(self, log: CommitLog) -> None:
        """The store is owned and recovered: all that it has committed is published."""
        committed = log.last_commits(1)
        committed_s = committed[-1].wall_us / 1e6 if committed else None
        self._set(log=log, published=log.state.next_window - 1, committed_s=committed_s)
        self._set(leaks=stored_figures(log.root, log.state.latest_point))

    @contextmanager
    def window(self) -> Iterator[None]:
        """Around the making of a window, from its batch to its commit; it is running until `window_ended`."""
        self._begun()
        try:
            yield
        except BaseException:
            self._given_up()
            raise
        self._committed()

    @_never_stops_the_job
    def window_ended(self, progress: BatchProgress) -> None:
        """The oldest window that was begun is published."""
        with self._lock:
            begun_s = self._newest.begun_s[1:]
            out = progress.unique + progress.duplicate + progress.expired + progress.error
            unaccounted = self._newest.unaccounted + progress.rows - out
            self._newest = replace(
                self._newest,
                last=progress,
                published=progress.window,
                begun_s=begun_s,
                unaccounted=unaccounted,
                leaks=progress.leaks,
            )
            self._window_seconds.observe(progress.seconds)
            self._window_rows.observe(progress.rows)
            for prefix, (_, _, _, names) in _PHASES.items():
                for name in names:
                    self._phases[prefix].labels(name).inc(progress.phases.get(prefix + name, 0))
            for name, counter in self._tables.items():
                counter.inc(progress.tables.get(name, 0))

    @_never_stops_the_job
    def source_ends(self, latest: Offsets) -> None:
        """The brokers have reported the ends of the source's partitions."""
        at_s = self._wall_clock_us() / 1e6
        self._end_times.add(at_s, latest, self._judged())
        self._set(latest=dict(latest), latest_s=at_s)

    @_never_stops_the_job
    def source_begins(self, earliest: Offsets) -> None:
        """Where the first window will begin in each partition: all beyond it waits."""
        self._set(earliest=dict(earliest))

    @_never_stops_the_job
    def source_files(self, *, pending: int, changed: int) -> None:
        """A source of files was listed."""
        self._set(files={"pending": pending, "changed": changed})

    @_never_stops_the_job
    def failed(self, kind: str) -> None:
        """Something failed; `kind` is one of FAILURES."""
        self._count_failure(kind, self._wall_clock_us() / 1e6)

    def broke(self, error: Exception) -> None:
        """The metrics themselves have failed: logged once, always counted."""
        if not self._has_broken:
            self._has_broken = True
            logger.warning("metrics: the job continues, their page may be wrong from here on", exc_info=error)
        self._count_failure("metrics", time.time())  # the job's own clock may be what broke

    def _count_failure(self, kind: str, seconds: float) -> None:
        with self._lock:
            self._failures.labels(kind).inc()
            self._failed_s.labels(kind).set(seconds)

    @_never_stops_the_job
    def _begun(self) -> None:
        begun_s = self._seconds()
        with self._lock:
            self._newest = replace(self._newest, begun_s=(*self._newest.begun_s, begun_s))

    @_never_stops_the_job
    def _given_up(self) -> None:
        with self._lock:
            self._newest = replace(self._newest, begun_s=self._newest.begun_s[:-1])

    @_never_stops_the_job
    def _committed(self) -> None:
        self._set(committed_s=self._wall_clock_us() / 1e6)

    def _set(self, **values: object) -> None:
        with self._lock:
            self._newest = replace(self._newest, **values)  # type: ignore[arg-type]  # field by field as named above

    # ---- the page

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no numbers."""
        return []

    def collect(self) -> list[Metric]:
        """The page. A part that fails is left out, and counted."""
        families: list[Metric] = []
        with self._lock:
            newest = self._newest
            counted = (self._window_seconds, self._window_rows, *self._phases.values(), *self._tables.values())
            families += [_shown(metric) for one in counted for metric in one.collect()]
        parts = (self._about, self._of_the_store, self._of_windows, self._of_the_source, self._of_disks, _of_leaks)
        for part in parts:
            try:
                families += part(newest)
            except Exception as exc:  # noqa: BLE001  the rest of the page still holds
                self.broke(exc)
        with self._lock:
            return families + [_shown(metric) for one in (self._failures, self._failed_s) for metric in one.collect()]

    def _about(self, newest: _Newest) -> Iterator[Metric]:
        names = ("version", "python", "spark")
        values = (__version__, platform.python_version(), version("pyspark"))
        yield _info("deduper_build_info", "What runs", names, values)
        config = self._config
        store = "" if newest.log is None else newest.log.manifest.store_id[:8]
        yield _info(
            "deduper_job_info",
            "Which job it is",
            ("name", "store", "source", "expiry"),
            (config.name, store, config.source.format, config.expiry.by),
        )
        yield GaugeMetricFamily(
            "deduper_start_timestamp_seconds", "When the process started, as Unix time", self._started_s
        )
        text = "Warnings and errors that were logged since the start, by the module that logged them"
        yield _counters("deduper_log_messages", text, ("level", "logger"), self.log_counts.counts)
        room = memory_room()
        text = "Memory that is available, in the container or on the machine"
        yield GaugeMetricFamily("deduper_memory_available_bytes", text, room["available"])
        text = "Memory of the container, or of the machine"
        yield GaugeMetricFamily("deduper_memory_limit_bytes", text, room["limit"])
        memory = resident_bytes()
        yield _gauges("deduper_resident_memory_bytes", "Resident bytes of the job's processes", "process", memory)

    def _of_the_store(self, newest: _Newest) -> Iterator[Metric]:
        if newest.log is None:
            return
        state = newest.log.state
        yield _counters(
            "deduper_records",
            "Records judged and committed",
            ("verdict",),
            {(verdict.port,): state.totals.get(verdict.port, 0) for verdict in TupleVerdict},
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
        dead = len(policy.dead_pieces(self._config, state))
        overdue = max(0, dead + 1 - policy.DELETION_BATCH * self._config.store.shards)
        text = "Live pieces with dead keys alone, beyond those that one deletion waits for; 0 between windows"
        yield GaugeMetricFamily("deduper_store_overdue_pieces", text, overdue)
        lengths = {"live": _bytes(live), "retired": _bytes(retired)}
        yield _gauges("deduper_store_bytes", "Bytes of pieces", "state", lengths)
        text = "1 if the history of the store covers the period, so that unique is final; else 0: unique so far"
        yield GaugeMetricFamily("deduper_history_complete", text, is_complete(self._config, state))
        yield GaugeMetricFamily("deduper_epoch", "Epoch of the owner", state.epoch)
        ahead_s = max(0, state.last_wall_us - self._wall_clock_us()) / 1e6
        text = "How far the wall clock of the store's records is ahead of this machine's"
        yield GaugeMetricFamily("deduper_wall_clock_ahead_seconds", text, ahead_s)
        if state.next_window > 0:
            committed = state.next_window - 1
            yield GaugeMetricFamily("deduper_committed_window", "The greatest committed window", committed)
        if newest.published is not None:
            text = "Windows that are committed and not out on every port"
            behind = state.next_window - 1 - newest.published
            yield GaugeMetricFamily("deduper_unpublished_windows", text, behind)
        if newest.published is not None and newest.published >= 0:
            text = "The greatest window that is out on every port"
            yield GaugeMetricFamily("deduper_published_window", text, newest.published)
        yield from self._of_points(state)
        yield from self._of_spans(state)

    def _of_spans(self, state: LogState) -> Iterator[Metric]:
        statistics = policy.statistics_of(state)
        by = self._config.expiry.by
        if by == "event_time":
            text = "Latest point before a record - its expiry key; 0 if it was not behind; without errors"
            yield _spans("deduper_lateness_seconds", text, statistics.lateness)
        if self._config.expiry_key_scale.is_time:
            text = "Distance of a duplicate's expiry key from its first copy's, where that is known"
            yield _spans("deduper_duplicate_distance_seconds", text, statistics.distance)
        if self._config.store.first_seen:
            text = "Age of a duplicate's first copy: from the time of its window"
            yield _spans("deduper_first_copy_age_seconds", text, statistics.age)

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
            text = "Keys at or before it are expired, as Unix time"
            yield GaugeMetricFamily("deduper_expiry_point_timestamp_seconds", text, point / 1e6)

    def _of_windows(self, newest: _Newest) -> Iterator[Metric]:
        running = max(0.0, self._seconds() - newest.begun_s[0]) if newest.begun_s else 0.0
        text = "How long the oldest window that is not published has been running"
        yield GaugeMetricFamily("deduper_window_running_seconds", text, running)
        text = "Records read - records in one of the four ports, of all windows since the start: always 0"
        yield GaugeMetricFamily("deduper_unaccounted_records", text, newest.unaccounted)
        if newest.committed_s is not None:
            text = "When the last window was committed, as Unix time"
            yield GaugeMetricFamily("deduper_last_commit_timestamp_seconds", text, newest.committed_s)
        if newest.last is not None:
            rate = newest.last.rows_per_second
            yield GaugeMetricFamily("deduper_rows_per_second", "Records a second of the last window", rate)
            tables = newest.last.tables
            text = "Resident tables, over all shards"
            yield GaugeMetricFamily("deduper_tables_resident", text, tables.get("resident_tables", 0))
            text = "Bytes of the resident tables"
            yield GaugeMetricFamily("deduper_tables_resident_bytes", text, tables.get("resident_bytes", 0))

    def _of_the_source(self, newest: _Newest) -> Iterator[Metric]:
        if newest.files:
            text = "Files that were listed and are not judged yet"
            yield GaugeMetricFamily("deduper_source_pending_files", text, newest.files["pending"])
            text = "Files that were changed after they were judged; they are not read again"
            yield GaugeMetricFamily("deduper_source_changed_files", text, newest.files["changed"])
        ends = self._judged()
        if not ends:
            return
        places = ("topic", "partition")
        judged = GaugeMetricFamily("deduper_source_judged_offset", "Up to where windows are committed", labels=places)
        for place, end in ends.items():
            judged.add_metric((place.topic, str(place.partition)), end)
        yield judged
        if newest.latest_s is None:
            return
        lag = GaugeMetricFamily("deduper_source_lag_records", "Offsets that no committed window has", labels=places)
        for place, end in ends.items():
            if place in newest.latest:
                # Judged offsets may be newer than the end offsets.
                lag.add_metric((place.topic, str(place.partition)), max(0, newest.latest[place] - end))
        yield lag
        text = "Age of the oldest record that no committed window has, by when the brokers first reported it"
        ages = GaugeMetricFamily("deduper_source_lag_seconds", text, labels=places)
        now_s = self._wall_clock_us() / 1e6
        for place, end in ends.items():
            if place in newest.latest:
                since_s = self._end_times.waiting_since_s(place, end)
                ages.add_metric((place.topic, str(place.partition)), 0 if since_s is None else max(0, now_s - since_s))
        yield ages
        text = "When the brokers reported the ends of the source, as Unix time"
        yield GaugeMetricFamily("deduper_source_lag_timestamp_seconds", text, newest.latest_s)

    def _of_disks(self, _: _Newest) -> Iterator[Metric]:
        rooms = disk_room(self._config)
        text = "Bytes that are free on the file system of the store, and of each port of files"
        yield _gauges("deduper_disk_free_bytes", text, "place", {place: room.free for place, room in rooms.items()})
        text = "Bytes of that file system"
        yield _gauges("deduper_disk_size_bytes", text, "place", {place: room.size for place, room in rooms.items()})

    def _judged(self) -> dict[TopicPartition, int]:
        """The offset up to which each partition is judged; before the first window, where that will begin."""
        log = self._newest.log
        ends = {} if log is None else judged_ends(log.state)
        return {place: end.offset for place, end in ends.items()} or dict(self._newest.earliest)

    # ---- health

    def health(self) -> list[str]:
        """Everything that is wrong with the job, in one line each; see `health`."""
        with self._lock:
            newest = self._newest
        now_s = self._wall_clock_us() / 1e6
        up_s = self._seconds() - self._started
        lag = {place: newest.latest[place] - end for place, end in self._judged().items() if place in newest.latest}
        committed = -1 if newest.log is None else newest.log.state.next_window - 1
        of_topics = isinstance(self._config.source, KafkaSource)
        facts = HealthFacts(
            up_s=up_s,
            running_s=max(0.0, self._seconds() - newest.begun_s[0]) if newest.begun_s else 0.0,
            is_committed=newest.published is not None and committed > newest.published,
            commit_s=None if newest.committed_s is None else now_s - newest.committed_s,
            brokers_s=None
            if not of_topics
            else up_s
            if newest.latest_s is None
            else min(up_s, now_s - newest.latest_s),
            waiting=max(0, *lag.values(), newest.files.get("pending", 0), 0),
            free_bytes={place: room.free for place, room in disk_room(self._config).items()},
        )
        trigger = self._config.trigger
        return list(complaints(facts, 0 if isinstance(trigger, str) else trigger))


def _spans(name: str, text: str, spans: SpanCounts) -> Metric:
    buckets = [("+Inf" if bound == float("inf") else repr(bound), float(count)) for bound, count in spans.cumulative()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=spans.total_s)


def _of_leaks(newest: _Newest) -> Iterator[Metric]:
    leaks = newest.leaks
    if leaks is None:
        return
    text = "Copies that were not found, by kind: an estimate since the leak meter began"
    for name, of, of_text in (
        ("", "records", text),
        ("_low", "low", "Lower end of the estimate's 95 % interval"),
        ("_high", "high", "Upper end of the estimate's 95 % interval"),
    ):
        values = {kind: getattr(estimate, of) for kind, estimate in leaks.missed.items()}
        yield _gauges(f"deduper_leak_estimate{name}_records", of_text, "kind", values)
    yield _counters(
        "deduper_leak_sampled_records",
        "Copies of sampled keys that were not found",
        ("kind",),
        {(kind,): estimate.sampled for kind, estimate in leaks.missed.items()},
    )
    yield CounterMetricFamily("deduper_leak_seen_records", "Records of sampled keys", leaks.seen)
    yield GaugeMetricFamily("deduper_leak_sample_ratio", "Share of keys in the sample", 1 / leaks.sample)
    yield GaugeMetricFamily("deduper_leak_sample_keys", "Keys that the sample remembers", leaks.keys)
    text = "Windows that the leak meter has not seen"
    yield GaugeMetricFamily("deduper_leak_missed_windows", text, leaks.missed_windows)


def _info(name: str, text: str, labels: Sequence[str], values: Sequence[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    family.add_metric(values, 1)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value_of_label, value in values.items():
        family.add_metric((value_of_label,), value)
    return family


def _counters(name: str, text: str, labels: Sequence[str], values: Mapping[_Labels, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values_of_labels, value in values.items():
        family.add_metric(values_of_labels, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], values: Sequence[str]) -> Counter:
    """A counter that shows all its labels from the first scrape on."""
    counter = Counter(name, text, labels, registry=None)
    for value in values:
        counter.labels(value)
    return counter


def _shown(metric: Metric) -> Metric:
    """A metric without its times of creation, and with the bounds of its buckets as they have always been written."""
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    for sample in metric.samples:
        if sample.labels.get("le", "+Inf") != "+Inf":
            sample.labels["le"] = repr(float(sample.labels["le"]))
    return metric


def _bytes(refs: Sequence[PieceRef]) -> int:
    return sum(ref.length for ref in refs)
