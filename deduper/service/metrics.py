"""The metrics page of a running job for Prometheus: each scrape reads one state of the job.

Two sources, and nothing is counted twice:

- the commit log's state, which is the truth: records, reasons, windows, points, pieces. Counters from it begin at the
  store's own totals, so they equal `deduper status`, continue over restarts, and a crash loses none;
- the reports after each window (`BatchProgress`), since the start of this process: seconds, rates, tables.

Labels come from closed sets, except topic and partition of the source; the job's name is the only setting among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from bucket_store.pieces.piece import PieceRef
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.core.statistics import SpanCounts
from deduper.core.verdict import PORT_OF_REASON, TupleVerdict
from deduper.kafka.offsets import Offsets, TopicPartition, judged_ends
from deduper.leaks.figures import LeakFigures
from deduper.service.window_metrics import WindowMetrics, counter, counters, gauges, never_stops_the_job
from deduper.window import policy
from deduper.window.accessories.leak_watch import stored_figures
from deduper.window.completeness import is_complete
from deduper.window.owner_alive import last_end
from deduper.window.progress import BatchProgress
from deduper.window.recovery import unpublished

_MOST_REPORTS = 720


class EndTimes:
    """The ends of partitions by the time of their report, for the age of the oldest record that no window has.

    The brokers report the end of a partition every few seconds. The record at an offset had come when an end beyond it
    was first reported, so its age is known to within that interval; of records from before the first report it is that
    of the report, a lower bound. For one thread at a time.
    """

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, list[tuple[float, int]]] = {}

    def add(self, at_s: float, latest: Mapping[TopicPartition, int], judged: Mapping[TopicPartition, int]) -> None:
        """The ends reported at `at_s`; reports that hold nothing beyond `judged` are forgotten.

        Of very many, every second one is forgotten, which makes the ages of old records coarser.
        """
        for place, end in latest.items():
            ends = [one for one in self._ends.get(place, ()) if judged.get(place, -1) < one[1] <= end]
            if end > judged.get(place, -1) and (not ends or end > ends[-1][1]):
                ends.append((at_s, end))
            self._ends[place] = ends if len(ends) <= _MOST_REPORTS else ends[::2]

    def waiting_since_s(self, place: TopicPartition, judged: int) -> float | None:
        """When the first record at or beyond the offset `judged` had come; None when there is none."""
        return next((at_s for at_s, end in self._ends.get(place, ()) if end > judged), None)


PHASES = ("intent", "judge", "durable", "wait", "commit", "publish", "clean", "expire", "measure", "send")
JUDGE_PARTS = ("read", "shards", "write")
TASK_STEPS = ("read", "rows", "keys", "tables", "judge", "verdicts", "piece", "ports")
ROWS_BOUNDS = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
_PHASES = {
    "": ("deduper_window_phase_seconds", "Wall seconds by step of a window, on the driver", ("phase",), PHASES),
    "judge.": (
        "deduper_judge_seconds",
        "Wall seconds by part of the phase `judge`: its three steps",
        ("part",),
        JUDGE_PARTS,
    ),
    "task.": (
        "deduper_task_seconds",
        "Seconds by step inside the tasks, summed over the tasks of the three steps",
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


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest reported values, for the gauges. Immutable: a scrape reads one, while new reports replace it."""

    last: BatchProgress | None = None
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest_s: float | None = None
    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    watched_since: float | None = None
    unaccounted: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    files_since_s: float | None = None
    away_since: float | None = None
    leaks: LeakFigures | None = None
    end_before: int | None = None


class JobMetrics(WindowMetrics):
    """The numbers of one job. Safe for several threads; the job's thread never waits."""

    def __init__(
        self,
        config: Config,
        registry: CollectorRegistry,
        wall_clock_us: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._newest = _Newest()
        self._end_times = EndTimes()
        self._window_rows = Histogram("deduper_window_rows", "Records of a window", registry=None, buckets=ROWS_BOUNDS)
        self._phases = {prefix: counter(*described) for prefix, described in _PHASES.items()}
        self._tables = {name: Counter(*described, registry=None) for name, described in _TABLES.items()}
        about = {"source": config.source.format, "expiry": config.expiry.by}
        trigger_us = 0 if isinstance(config.trigger, str) else config.trigger
        super().__init__(config, trigger_us, about, registry, wall_clock_us, seconds)

    @never_stops_the_job
    def recovering(self, log: CommitLog) -> None:
        """The store is owned; its committed windows without a mark are being published, until `opened`."""
        self._owned(log, min(unpublished(log), default=log.state.next_window) - 1)

    @never_stops_the_job
    def opened(self, log: CommitLog) -> None:
        """The store is owned and recovered: all that it has committed is published."""
        super().opened(log)
        self._report(leaks=stored_figures(log.root))
        if log.state.epoch > 1:
            end = last_end(log.root, log.state.epoch - 1)
            self._report(end_before=-1 if end is None else end.exit_code)

    @never_stops_the_job
    def window_ended(self, progress: BatchProgress) -> None:
        """The oldest window that was begun is published."""
        self.published(progress.window, progress.seconds)
        with self._lock:
            out = progress.unique + progress.duplicate + progress.expired + progress.error
            unaccounted = self._newest.unaccounted + progress.rows - out
            self._newest = replace(self._newest, last=progress, unaccounted=unaccounted, leaks=progress.leaks)
            self._window_rows.observe(progress.rows)
            for prefix, (_, _, _, names) in _PHASES.items():
                for name in names:
                    self._phases[prefix].labels(name).inc(progress.phases.get(prefix + name, 0))
            for name, counted in self._tables.items():
                counted.inc(progress.tables.get(name, 0))

    @never_stops_the_job
    def source_watched(self) -> None:
        """From here on the brokers are asked for the ends of the source's partitions."""
        self._report(watched_since=self._seconds())

    @never_stops_the_job
    def source_ends(self, latest: Offsets) -> None:
        """The brokers have reported the ends of the source's partitions."""
        at_s = self._wall_clock_us() / 1e6
        self._end_times.add(at_s, latest, self._judged())
        self._report(latest=dict(latest), latest_s=at_s)

    @never_stops_the_job
    def source_begins(self, earliest: Offsets) -> None:
        """Where the first window will begin in each partition: all beyond it waits."""
        self._report(earliest=dict(earliest))

    @never_stops_the_job
    def source_files(self, *, pending: int, since_s: float | None, changed: int) -> None:
        """The files of a source, after a listing or a window of it. `since_s`: when the oldest that waits had come."""
        self._report(files={"pending": pending, "changed": changed}, files_since_s=since_s, away_since=None)

    @never_stops_the_job
    def source_away(self) -> None:
        """The files of a source cannot be listed, or read."""
        self.failed("source")
        if self._newest.away_since is None:
            self._report(away_since=self._seconds())

    def _report(self, **values: object) -> None:
        with self._lock:
            self._newest = replace(self._newest, **values)  # type: ignore[arg-type]  # field by field as named above

    # ---- the page

    def _counted(self) -> Sequence[Counter | Histogram]:
        return (self._window_seconds, self._window_rows, *self._phases.values(), *self._tables.values())

    def _parts(self) -> Sequence[Callable[[], Iterable[Metric]]]:
        newest = self._newest
        return (
            self._of_the_store,
            lambda: self._of_reports(newest),
            lambda: self._of_the_source(newest),
            lambda: _of_leaks(newest),
        )

    def _of_the_store(self) -> Iterator[Metric]:
        state = self._state
        if state is None:
            return
        yield counters(
            "deduper_records",
            "Records judged and committed",
            ("verdict",),
            {(verdict.port,): state.totals.get(verdict.port, 0) for verdict in TupleVerdict},
        )
        yield counters(
            "deduper_reasons",
            "Records that have a reason, by the reason",
            ("verdict", "reason"),
            {(port, reason): state.reason_totals.get(reason, 0) for reason, port in PORT_OF_REASON.items()},
        )
        live = [ref for refs in state.pieces.values() for ref in refs]
        retired = [piece.ref for piece in state.retired]
        yield GaugeMetricFamily("deduper_store_entries", "Keys in live pieces", sum(ref.entries for ref in live))
        pieces = {"live": len(live), "retired": len(retired)}
        yield gauges("deduper_store_pieces", "Pieces; retired ones wait for their grace", "state", pieces)
        dead = len(policy.dead_pieces(self._config, state))
        overdue = max(0, dead + 1 - policy.DELETION_BATCH * self._config.store.shards)
        text = "Live pieces with dead keys alone, beyond those that one deletion waits for; 0 between windows"
        yield GaugeMetricFamily("deduper_store_overdue_pieces", text, overdue)
        lengths = {"live": _bytes(live), "retired": _bytes(retired)}
        yield gauges("deduper_store_bytes", "Bytes of pieces", "state", lengths)
        text = "1 if the history of the store covers the period, so that unique is final; else 0: unique so far"
        yield GaugeMetricFamily("deduper_history_complete", text, is_complete(self._config, state))
        if self._newest.end_before is not None:
            text = "Exit code of the owner before this one; -1 if it left none: it was killed, or its machine failed"
            yield GaugeMetricFamily("deduper_last_exit_code", text, self._newest.end_before)
        if self._config.expiry_key_scale.is_time:
            yield from self._of_points(self._config.period_steps)
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

    def _of_reports(self, newest: _Newest) -> Iterator[Metric]:
        text = "Records read - records in one of the four ports, of all windows since the start: always 0"
        yield GaugeMetricFamily("deduper_unaccounted_records", text, newest.unaccounted)
        if newest.last is not None:
            rate = newest.last.rows_per_second
            yield GaugeMetricFamily("deduper_rows_per_second", "Records a second of the last window", rate)
            tables = newest.last.tables
            text = "Resident tables, over all shards"
            yield GaugeMetricFamily("deduper_tables_resident", text, tables.get("resident_tables", 0))
            text = "Bytes of the resident tables"
            yield GaugeMetricFamily("deduper_tables_resident_bytes", text, tables.get("resident_bytes", 0))

    def _of_the_source(self, newest: _Newest) -> Iterator[Metric]:
        if isinstance(self._config.source, FilesSource):
            text = "For how long the files of the source cannot be listed; 0 while they can"
            yield GaugeMetricFamily("deduper_source_away_seconds", text, self._away_s() or 0)
        if newest.files:
            text = "Files that were listed and are not judged yet"
            yield GaugeMetricFamily("deduper_source_pending_files", text, newest.files["pending"])
            text = "Age of the oldest of them, by its modification time; no older than the listing that did not have it"
            yield GaugeMetricFamily("deduper_source_pending_seconds", text, self._file_waits_s(newest))
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
        for place, age_s in self._record_waits_s().items():
            ages.add_metric((place.topic, str(place.partition)), age_s)
        yield ages
        text = "When the brokers reported the ends of the source, as Unix time"
        yield GaugeMetricFamily("deduper_source_lag_timestamp_seconds", text, newest.latest_s)

    def _judged(self) -> dict[TopicPartition, int]:
        """The offset up to which each partition is judged; before the first window, where that will begin."""
        state = self._state
        ends = {} if state is None else judged_ends(state)
        return {place: end.offset for place, end in ends.items()} or dict(self._newest.earliest)

    # ---- health

    def _brokers_s(self) -> float | None:
        since, latest_s = self._newest.watched_since, self._newest.latest_s
        if since is None:
            return None
        watched_s = self._seconds() - since
        return watched_s if latest_s is None else min(watched_s, self._wall_clock_us() / 1e6 - latest_s)

    def _away_s(self) -> float | None:
        since = self._newest.away_since
        return None if since is None else self._seconds() - since

    def _waits_s(self) -> float:
        return max(self._file_waits_s(self._newest), *self._record_waits_s().values(), 0)

    def _file_waits_s(self, newest: _Newest) -> float:
        since_s = newest.files_since_s
        return 0 if since_s is None else max(0, self._wall_clock_us() / 1e6 - since_s)

    def _record_waits_s(self) -> dict[TopicPartition, float]:
        """By partition whose end is known; 0 where nothing waits."""
        now_s, latest = self._wall_clock_us() / 1e6, self._newest.latest
        since_s = {
            place: self._end_times.waiting_since_s(place, end)
            for place, end in self._judged().items()
            if place in latest
        }
        return {place: 0 if at_s is None else max(0, now_s - at_s) for place, at_s in since_s.items()}


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
        yield gauges(f"deduper_leak_estimate{name}_records", of_text, "kind", values)
    yield counters(
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


def _bytes(refs: Sequence[PieceRef]) -> int:
    return sum(ref.length for ref in refs)
