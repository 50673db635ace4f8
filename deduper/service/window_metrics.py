"""The metrics page of windows, those of a job and those of a range stream: what both have, and how it is served.

What is committed comes from the commit log, so counters from it continue over restarts; seconds, and what waits, count
from the start of the process. Metrics never stop the windows: the first exception is logged, all are counted.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from deduper import __version__
from deduper.config.sections import MetricsConfig
from deduper.core.verdict import expiry_point
from deduper.preflight.connections import cannot_listen
from deduper.preflight.folders import LEAST_FREE_BYTES, disk_room
from deduper.service.logs import LogCounts
from deduper.service.process_memory import memory_room, resident_bytes
from deduper.sinks.names import HasPorts
from deduper.spark.installed import installed_pyspark
from deduper.units import approximate_size

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_WINDOW_S = 900.0
"""A window that runs longer is shown: it is stuck, or should have fewer files or offsets (`max_…_per_batch`)."""
_TRIGGERS = 3
"""While input waits, a window is committed at least once in so many triggers, if these are longer."""
_PUBLISH_S = 600.0
"""Publishing renames files and ends transactions, in seconds: minutes of it are retries of something that is away."""
_BROKERS_S = 300.0
"""The ends are asked for every few seconds, and a rolling restart of a cluster answers in between."""
_SOURCE_S = 300.0
"""A mount is renewed in less time."""


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """What a job knows of itself; seconds are ages, None where there is nothing yet.

    `running_s`: of the oldest window that is not published, 0 between windows; `is_committed`: that one is committed.
    `commit_s`: since the last commit of this store. `brokers_s`: since the brokers last reported the source's ends, or
    since they are asked; None before, and for a source of files. `away_s`: since its files cannot be listed; None while
    they can. `waits_s`: the age of the oldest record or file that no window has, 0 without one. `free_bytes`: of the
    file systems with the store and the ports.
    """

    up_s: float
    running_s: float
    is_committed: bool
    commit_s: float | None
    brokers_s: float | None
    waits_s: float
    away_s: float | None = None
    free_bytes: Mapping[str, int] = field(default_factory=dict)


def complaints(facts: HealthFacts, trigger_us: int = 0) -> Iterator[str]:
    """Everything that is wrong, the worst first; nothing for a job that is well. `trigger_us`: between two windows.

    A reason names what an operator can look at. Nothing in the job depends on the answer.
    """
    progress_s = max(_WINDOW_S, _TRIGGERS * trigger_us / 1e6)
    for place, free in facts.free_bytes.items():
        if free < LEAST_FREE_BYTES:
            yield f"disk full: {approximate_size(free)} are free for {place}"
    if facts.is_committed and facts.running_s > _PUBLISH_S:
        yield f"publishing stuck: a committed window has not been published for {facts.running_s:.0f} s"
    elif facts.running_s > _WINDOW_S:
        yield f"window stuck: one has been running for {facts.running_s:.0f} s"
    if facts.brokers_s is not None and facts.brokers_s > _BROKERS_S:
        yield f"brokers away: they have not reported the source's ends for {facts.brokers_s:.0f} s"
    if facts.away_s is not None and facts.away_s > _SOURCE_S:
        yield f"source away: its files cannot be listed for {facts.away_s:.0f} s"
    if facts.waits_s > progress_s and not facts.running_s:
        if facts.commit_s is None and facts.up_s > progress_s:
            yield f"no window was ever committed, {facts.up_s:.0f} s after the start, and input waits"
        elif facts.commit_s is not None and min(facts.commit_s, facts.up_s) > progress_s:
            yield f"no progress: no window was committed for {facts.commit_s:.0f} s, and input waits"


logger = logging.getLogger(__name__)

FAILURES = ("window", "source", "source_lag", "metrics")
SECONDS_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_P = ParamSpec("_P")
_M = TypeVar("_M", bound="WindowMetrics")
_Labels = TypeVar("_Labels", bound=tuple[str, ...])


@dataclass(frozen=True, slots=True)
class _Windows:
    """The newest values of windows. Immutable: a scrape reads one, while new reports replace it."""

    log: CommitLog | None = None
    begun_s: tuple[float, ...] = ()
    committed_s: float | None = None
    published: int | None = None


def never_stops_the_job(report: Callable[Concatenate[_M, _P], None]) -> Callable[Concatenate[_M, _P], None]:
    """A report whose exceptions do not reach the job."""

    @functools.wraps(report)
    def reported(metrics: _M, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            report(metrics, *args, **kwargs)
        except Exception as exc:  # noqa: BLE001  a job that runs is worth more than its numbers
            metrics.broke(exc)

    return reported


class WindowMetrics(Collector):
    """The numbers of the windows of one store, on the registry it is given. For several threads; the job never waits.

    `wall_clock_us` gives µs since the epoch, `seconds` a clock that never goes back. `about` are labels of the job.
    """

    def __init__(
        self,
        ports: HasPorts,
        trigger_us: int,
        about: Mapping[str, str],
        registry: CollectorRegistry,
        wall_clock_us: Callable[[], int],
        seconds: Callable[[], float],
    ) -> None:
        self._ports = ports
        self._trigger_us = trigger_us
        self._about_it = about
        self._wall_clock_us = wall_clock_us
        self._seconds = seconds
        self._lock = threading.Lock()  # held to add some numbers, or to copy them
        self._windows = _Windows()
        self._started = seconds()
        self._started_s = time.time()
        self.log_counts = LogCounts()
        self._window_seconds = Histogram(
            "deduper_window_seconds", "Wall seconds of a window", registry=None, buckets=SECONDS_BOUNDS
        )
        self._failures = counter(
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

    @never_stops_the_job
    def opened(self, log: CommitLog) -> None:
        """The store is owned and recovered: all that it has committed is published."""
        self._owned(log, log.state.next_window - 1)

    def _owned(self, log: CommitLog, published: int) -> None:
        """A store whose windows through `published` are; later ones run from here on."""
        committed = log.last_commits(1)
        self._set(
            log=log,
            published=published,
            committed_s=committed[-1].wall_us / 1e6 if committed else None,
            begun_s=(self._seconds(),) if published < log.state.next_window - 1 else (),
        )

    @contextmanager
    def window(self) -> Iterator[None]:
        """Around the making of a window, from its batch to its commit; it is running until `published`."""
        self._begun()
        try:
            yield
        except BaseException:
            self._given_up()
            raise
        self._committed()

    @never_stops_the_job
    def published(self, window: int, seconds: float) -> None:
        """The oldest window that was begun is published."""
        with self._lock:
            self._windows = replace(self._windows, published=window, begun_s=self._windows.begun_s[1:])
            self._window_seconds.observe(seconds)

    @never_stops_the_job
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

    @never_stops_the_job
    def _begun(self) -> None:
        begun_s = self._seconds()
        with self._lock:
            self._windows = replace(self._windows, begun_s=(*self._windows.begun_s, begun_s))

    @never_stops_the_job
    def _given_up(self) -> None:
        with self._lock:
            self._windows = replace(self._windows, begun_s=self._windows.begun_s[:-1])

    @never_stops_the_job
    def _committed(self) -> None:
        self._set(committed_s=self._wall_clock_us() / 1e6)

    def _set(self, **values: object) -> None:
        with self._lock:
            self._windows = replace(self._windows, **values)  # type: ignore[arg-type]  # field by field as named above

    # ---- the page

    def describe(self) -> list[Metric]:
        """Nothing: so that registering asks for no numbers."""
        return []

    def collect(self) -> list[Metric]:
        """The page. A part that fails is left out, and counted."""
        families: list[Metric] = []
        with self._lock:
            families += [_shown(metric) for one in self._counted() for metric in one.collect()]
        for part in (self._about, self._of_the_log, self._of_windows, *self._parts(), self._of_disks):
            try:
                families += part()
            except Exception as exc:  # noqa: BLE001  the rest of the page still holds
                self.broke(exc)
        with self._lock:
            return families + [_shown(metric) for one in (self._failures, self._failed_s) for metric in one.collect()]

    def _counted(self) -> Sequence[Counter | Histogram]:
        """What is counted here, read at once."""
        return (self._window_seconds,)

    def _parts(self) -> Sequence[Callable[[], Iterable[Metric]]]:
        """The other parts of the page."""
        return ()

    @property
    def _state(self) -> LogState | None:
        log = self._windows.log
        return None if log is None else log.state

    def _about(self) -> Iterator[Metric]:
        names = ("version", "python", "spark")
        values = (__version__, platform.python_version(), installed_pyspark())
        yield _info("deduper_build_info", "What runs", names, values)
        log = self._windows.log
        store = "" if log is None else log.manifest.store_id[:8]
        labels = {"name": self._ports.name, "store": store, **self._about_it}
        yield _info("deduper_job_info", "Which job it is", tuple(labels), tuple(labels.values()))
        yield GaugeMetricFamily(
            "deduper_start_timestamp_seconds", "When the process started, as Unix time", self._started_s
        )
        text = "Warnings and errors that were logged since the start"
        yield counters(
            "deduper_log_messages", text, ("level",), {(level,): n for level, n in self.log_counts.counts.items()}
        )
        room = memory_room()
        text = "Memory that is available, in the container or on the machine"
        yield GaugeMetricFamily("deduper_memory_available_bytes", text, room["available"])
        text = "Memory of the container, or of the machine"
        yield GaugeMetricFamily("deduper_memory_limit_bytes", text, room["limit"])
        memory = resident_bytes()
        yield gauges("deduper_resident_memory_bytes", "Resident bytes of the job's processes", "process", memory)

    def _of_the_log(self) -> Iterator[Metric]:
        state, published = self._state, self._windows.published
        if state is None:
            return
        yield CounterMetricFamily("deduper_windows", "Windows committed", state.next_window)
        yield GaugeMetricFamily("deduper_epoch", "Epoch of the owner", state.epoch)
        ahead_s = max(0, state.last_wall_us - self._wall_clock_us()) / 1e6
        text = "How far the wall clock of the store's records is ahead of this machine's"
        yield GaugeMetricFamily("deduper_wall_clock_ahead_seconds", text, ahead_s)
        if state.next_window > 0:
            committed = state.next_window - 1
            yield GaugeMetricFamily("deduper_committed_window", "The greatest committed window", committed)
        if published is not None:
            text = "Windows that are committed and not out on every port"
            yield GaugeMetricFamily("deduper_unpublished_windows", text, state.next_window - 1 - published)
        if published is not None and published >= 0:
            text = "The greatest window that is out on every port"
            yield GaugeMetricFamily("deduper_published_window", text, published)

    def _of_points(self, period: int | float | None) -> Iterator[Metric]:
        """The latest point, of a clock of times."""
        state = self._state
        if state is None or state.latest_point is None:
            return
        latest_us = state.latest_point
        text = "The greatest expiry key admitted, as Unix time"
        yield GaugeMetricFamily("deduper_latest_point_timestamp_seconds", text, latest_us / 1e6)
        text = "How far the latest point is behind the clock"
        lag_s = (self._wall_clock_us() - latest_us) / 1e6
        yield GaugeMetricFamily("deduper_watermark_lag_seconds", text, lag_s)
        point = None if period is None else expiry_point(latest_us, period)
        if point is not None:
            text = "Keys at or before it are expired, as Unix time"
            yield GaugeMetricFamily("deduper_expiry_point_timestamp_seconds", text, point / 1e6)

    def _of_windows(self) -> Iterator[Metric]:
        text = "How long the oldest window that is not published has been running"
        yield GaugeMetricFamily("deduper_window_running_seconds", text, self._running_s)
        if self._windows.committed_s is not None:
            text = "When the last window was committed, as Unix time"
            yield GaugeMetricFamily("deduper_last_commit_timestamp_seconds", text, self._windows.committed_s)

    def _of_disks(self) -> Iterator[Metric]:
        rooms = disk_room(self._ports)
        text = "Bytes that are free on the file system of the store, and of each port of files"
        yield gauges("deduper_disk_free_bytes", text, "place", {place: room.free for place, room in rooms.items()})
        text = "Bytes of that file system"
        yield gauges("deduper_disk_size_bytes", text, "place", {place: room.size for place, room in rooms.items()})

    @property
    def _running_s(self) -> float:
        begun_s = self._windows.begun_s
        return max(0.0, self._seconds() - begun_s[0]) if begun_s else 0.0

    # ---- health

    def health(self) -> list[str]:
        """Everything that is wrong with the job, in one line each; see `complaints`."""
        windows, state = self._windows, self._state
        up_s = self._seconds() - self._started
        committed = -1 if state is None else state.next_window - 1
        facts = HealthFacts(
            up_s=up_s,
            running_s=self._running_s,
            is_committed=windows.published is not None and committed > windows.published,
            commit_s=None if windows.committed_s is None else self._wall_clock_us() / 1e6 - windows.committed_s,
            brokers_s=self._brokers_s(),
            waits_s=self._waits_s(),
            away_s=self._away_s(),
            free_bytes={place: room.free for place, room in disk_room(self._ports).items()},
        )
        return list(complaints(facts, self._trigger_us))

    def _brokers_s(self) -> float | None:
        """See `HealthFacts`."""

    def _away_s(self) -> float | None:
        """See `HealthFacts`."""

    def _waits_s(self) -> float:
        """See `HealthFacts`."""
        return 0


def _info(name: str, text: str, labels: Sequence[str], values: Sequence[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    family.add_metric(values, 1)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with a value for each value of its label."""
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value_of_label, value in values.items():
        family.add_metric((value_of_label,), value)
    return family


def counters(name: str, text: str, labels: Sequence[str], values: Mapping[_Labels, float]) -> Metric:
    """A counter with a value for each of the values of its labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values_of_labels, value in values.items():
        family.add_metric(values_of_labels, value)
    return family


def counter(name: str, text: str, labels: Sequence[str], values: Sequence[str]) -> Counter:
    """A counter that shows all its labels from the first scrape on."""
    made = Counter(name, text, labels, registry=None)
    for value in values:
        made.labels(value)
    return made


def _shown(metric: Metric) -> Metric:
    """A metric without its times of creation, and with the bounds of its buckets as they have always been written."""
    metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    for sample in metric.samples:
        if sample.labels.get("le", "+Inf") != "+Inf":
            sample.labels["le"] = repr(float(sample.labels["le"]))
    return metric


Health: TypeAlias = Callable[[], list[str]]
_END_S = 2.0
_S = TypeVar("_S")


@contextlib.contextmanager
def serving_metrics(
    settings: _S,
    page: MetricsConfig,
    wall_clock_us: Callable[[], int],
    kind: Callable[[_S, CollectorRegistry, Callable[[], int]], _M],
) -> Iterator[_M]:
    """The metrics of a job, or of a range stream, on their page, with `/healthz`, while the `with` block runs.

    The port is bound before the store is claimed: a job whose page cannot be served disturbs no other. Threads of its
    own serve the page, so no window waits for a scrape.

    Raises:
        DeduperError: the configured address cannot be listened on.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = kind(settings, registry, wall_clock_us)
    with _served_page(page, registry, metrics.health), metrics.log_counts.attached():
        yield metrics


@contextlib.contextmanager
def _served_page(settings: MetricsConfig, registry: CollectorRegistry, health: Health) -> Iterator[None]:
    """The page of a registry while the `with` block runs; `health` gives everything that is wrong, in one line each.

    Raises:
        DeduperError: the configured address cannot be listened on.
    """
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as exc:
        raise cannot_listen(settings, exc) from exc
    server.set_app(_with_health(make_wsgi_app(registry), health))
    logger.info("metrics: http://%s:%d/metrics", settings.host, settings.port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_END_S)


def _with_health(page: WSGIApplication, health: Health) -> WSGIApplication:
    """The page, and two answers in one line each.

    `/healthz`: 200 `ok`, or 503 and what is wrong; `/livez`: 200 while the process answers. A job that waits for
    brokers is alive and not healthy: a restart would not help it.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/healthz", "/livez"):
            return page(environ, start_response)
        wrong = health() if path == "/healthz" else []
        start_response(
            "503 Service Unavailable" if wrong else "200 OK",
            [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")],
        )
        return [("; ".join(wrong) or "ok").encode() + b"\n"]

    return answer
