"""The job: a source gives batches, a `WindowRunner` makes windows of them, until the source ends or a stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from pyspark.sql import SparkSession

from bucket_store.places.outages import waiting
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.errors import DeduperError, StopRequested
from deduper.preflight.checks import require
from deduper.preflight.results import Start
from deduper.service.current_step import CurrentStep
from deduper.service.error_watch import ErrorWatch
from deduper.service.followed_files import FollowedFiles
from deduper.service.kernels import load_kernels
from deduper.service.stop import Stop, restoring_handlers
from deduper.service.stream import WindowStream
from deduper.service.windows import Reports, Windows
from deduper.sinks.open import open_topics
from deduper.sinks.publish_state import OnUnknown
from deduper.sources.files.folding import FilesToFold
from deduper.sources.open import open_files, open_topics_source, session_settings
from deduper.sources.protocol import PlannedSource
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.hdfs_tokens import TokenSource, tokens_are_needed
from deduper.spark.session import (
    JVM_ERRORS,
    end_session,
    has_ended,
    kill_children,
    require_promises,
    start_session,
)
from deduper.spark_promises import DEFAULT_MASTER, have_spare_cores, is_one_process
from deduper.window.completeness import require_none_open
from deduper.window.exchange_folder import query_folder
from deduper.window.last_known import noting
from deduper.window.opened import opened_runner
from deduper.window.owner_alive import keep_signal, telling_owner_of_port
from deduper.window.present_clock import wall_clock_us
from deduper.window.progress import BatchProgress, RunSummary, nothing_note
from deduper.window.recovery import Ownership, owned_store, recover, require_of_job
from deduper.window.table_folder import table_settings

if TYPE_CHECKING:
    from deduper.service.lag_watch import SourceWatch
    from deduper.service.metrics import JobMetrics

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

Opened = tuple[FilesToFold | None, Callable[[Windows], PlannedSource]]
"""The judged files of a source of files, and the source."""
OpenSource = Callable[[Config, Ownership, Stop, SparkSession, LogsIn], Opened]


def run(
    config: Config,
    *,
    once: bool,
    max_windows: int | None = None,
    take_over: bool = False,
    on_progress: Callable[[BatchProgress], None],
    session: SparkSession | None = None,
    unpublished: OnUnknown = OnUnknown.REFUSE,
    clock: Callable[[], int] = wall_clock_us,
    opened: OpenSource | None = None,
) -> RunSummary:
    """Run the job until the source is drained (`once`, or the trigger `available_now`), `max_windows`, or a signal.

    Called from the main thread: SIGTERM and SIGINT finish the running window and stop. A `session` that is given is
    used as it is and left running, if it has the settings that promises rest on; without one, the job starts its own.
    `unpublished` decides on a window whose publication the Kafka cluster has forgotten.
    `clock` gives the wall clock in µs since the epoch. `opened` opens another source than the job's own.

    Raises:
        DeduperError, StoreError: see `deduper.errors.exit_code_of`.
    """
    start = Start(config, take_over=take_over, waits=True, seeds=opened is not None)
    stop, step = Stop(), CurrentStep()
    step.begin("the checks of the start")
    drain = once or config.trigger == "available_now"
    with (
        contextlib.ExitStack() as waits,
        restoring_handlers(),
        step.watched(),
        _required(start, stop, waits) as started,
        _metrics(start, clock) as metrics,
        owned_store(
            config, take_over=take_over, wall_clock_us=clock, silent=start.silent, why=lambda: stop.reason
        ) as owned,
        _Engine(config, session, owned, stop, step) as engine,
        open_topics(
            config.topic_ports,
            config.source.deadline if isinstance(config.source, KafkaSource) else 0,  # there are none then
            owned.log,
            unpublished,
            stop.event,
            engine.session if engine.have_spare_cores else None,
            engine.logged_in,
        ) as topics,
    ):
        step.begin("the store is recovered")
        if opened is None:  # once more: a seed or replay may have been begun since the checks
            require_none_open(owned.log)
            require_of_job(owned.log)
        if metrics is not None:
            metrics.recovering(owned.log)
        recover(config, owned, topics)
        with _source_watch(config, metrics, owned) if opened is None else contextlib.nullcontext() as watch:
            if metrics is not None:
                metrics.opened(owned.log)
            spark = engine.session()
            stop.listen()
            files, source_for = (opened or _open_source)(config, owned, stop, spark, engine.logged_in)
            opened_windows = opened_runner(
                config,
                owned,
                spark,
                engine.logged_in,
                clock,
                by_tasks=engine.have_spare_cores,
                topics=topics,
                files=files,
            )
            with opened_windows as runner:
                if not config.store.is_local:
                    on_progress = noting(config.store.url, on_progress)
                reports = Reports(on_progress, metrics, watch, ErrorWatch())
                executors = not is_one_process(spark.sparkContext.master or DEFAULT_MASTER)
                windows = Windows(owned.log, runner, reports, stop, step, max_windows, by_executors=executors)
                try:
                    stream = WindowStream(source_for(windows), windows, stop, step, spark, _scratch(config, owned))
                    _run(stream, windows, stop, spark, config, drain=drain)
                finally:
                    # After a failure a publication may be under way: from here on it waits for no broker or storage.
                    stop.event.set()
                    waits.close()
    return RunSummary(
        windows=reports.windows,
        **reports.totals,
        seconds=time.perf_counter() - started,
        stopped_by=stop.reason,
        error_note=reports.errors.note(),
        expired_note=reports.errors.expired_note(),
        nothing_note=_nothing(config, owned) if not reports.windows and stop.reason == "drained" else None,
    )


@contextlib.contextmanager
def _required(start: Start, stop: Stop, waits: contextlib.ExitStack) -> Iterator[float]:
    """The moment after the checks of a start. Storages that are away are waited for, until `waits` is closed."""
    waits.enter_context(waiting(start.config.store.deadline / 1e6, stop.event, StopRequested))
    with _owner_of_port(start):
        require(start)
    yield time.perf_counter()


def _nothing(config: Config, owned: Ownership) -> str:
    state = owned.log.state
    return nothing_note(state.next_window, sum(state.totals.values()), str(config.source.place))


def _open_source(config: Config, owned: Ownership, stop: Stop, session: SparkSession, logged_in: LogsIn) -> Opened:
    """The job's own source."""
    del session, logged_in
    if isinstance(config.source, FilesSource):
        files, to_fold = open_files(config, config.source, owned.log)
        return to_fold, lambda windows: FollowedFiles(files, windows.listed, windows.source_away)
    topics = open_topics_source(config, owned.log, stop.event)
    return None, lambda _: topics


def _run(
    stream: WindowStream, windows: Windows, stop: Stop, session: SparkSession, config: Config, *, drain: bool
) -> None:
    """Run the query to its end, and raise the failure that ended it."""
    try:
        stream.run(config.name, drain=drain, trigger_ms=_trigger_ms(config))
        if windows.failure is None:
            windows.wait_until_published()
        if windows.failure is not None:
            raise windows.failure
        if not stop.is_by_signal:
            windows.finish()
    except JVM_ERRORS as exc:
        if not has_ended(session, after_signal=stop.is_by_signal):
            raise
        windows.wait_until_published()
        failure = windows.failure or exc
        if not isinstance(failure, JVM_ERRORS):
            raise failure from exc
        if not stop.is_by_signal:
            reason = "Spark's JVM has ended: killed, or out of memory; nothing is lost, start the job again"
            raise DeduperError(reason) from exc
        # A supervisor's signal goes to all processes of a job: the JVM ends with the window half done.
        logger.warning("the JVM was ended too; the next start judges the window that it had begun")


class _Engine:
    """The job's Spark session: started at its first use, ended with the job. A given one is left running.

    A start that publishes nothing by Spark claims and recovers the store without waiting for it.
    """

    def __init__(
        self, config: Config, given: SparkSession | None, owned: Ownership, stop: Stop, step: CurrentStep
    ) -> None:
        self._config = config
        self._given = given
        self._owned = owned
        self._stop = stop
        self._step = step
        self._session: SparkSession | None = None
        self._logs_in: LogsIn | None = None

    def session(self) -> SparkSession:
        """The session. Its first use is on the main thread."""
        if self._session is None and self._given is not None:
            require_promises(self._given, self._config.spark)
            self._session = self._given
        elif self._session is None:
            # Kernels are compiled while the JVM starts, which is another process, and before workers want them.
            with ThreadPoolExecutor(1, "kernels") as beside:
                kernels = beside.submit(load_kernels, self._config)
                with self._step.of("Spark is starting", "which takes some seconds"):
                    self._session = start_session(self._config.name, session_settings(self._config))
                kernels.result()
        return self._session

    def logged_in(self, function: Callable[..., _T], /) -> Callable[..., _T]:
        """See `LogsIn`: with tokens of HDFS, where executors have no login to it."""
        if self._logs_in is None:
            self._logs_in = needs_none
            if tokens_are_needed(self._config.spark, self._config.hdfs_clusters):
                self._logs_in = TokenSource(self.session(), self._config.hdfs_clusters).logged_in
        return self._logs_in(function)

    @property
    def have_spare_cores(self) -> bool:
        """Whether executors can send while they judge: on one core the two take turns, and the driver had better send.

        Known before there is a session.
        """
        if self._given is not None:
            context = self._given.sparkContext
            return have_spare_cores(context.master or DEFAULT_MASTER, context.getConf().get("spark.executor.cores"))
        asked = {name: str(value) for name, value in self._config.spark.items()}
        return have_spare_cores(asked.get("spark.master", DEFAULT_MASTER), asked.get("spark.executor.cores"))

    def __enter__(self) -> Self:
        if self._given is None:
            self._stop.end_at_once(self._signalled)
        return self

    def _signalled(self, number: signal.Signals) -> None:
        log = self._owned.log
        keep_signal(log.root, log.state.epoch, number)
        kill_children()

    def __exit__(self, *_: object) -> None:
        if self._session is not None and self._given is None:
            end_session(self._session)


@contextlib.contextmanager
def _metrics(start: Start, clock: Callable[[], int]) -> Iterator[JobMetrics | None]:
    if start.config.metrics is None:
        yield None
        return
    from deduper.service.metrics import JobMetrics
    from deduper.service.window_metrics import serving_metrics

    with contextlib.ExitStack() as served:
        with _owner_of_port(start):
            metrics = served.enter_context(serving_metrics(start.config, start.config.metrics, clock, JobMetrics))
        yield metrics


def _owner_of_port(start: Start) -> contextlib.AbstractContextManager[None]:
    """Of two starts in one instant, the first has the port, and the second ends with 5, as beside a running job."""
    if start.take_over:
        return contextlib.nullcontext()
    return telling_owner_of_port(start.config.store.place, start.silent)


def _scratch(config: Config, owned: Ownership) -> contextlib.AbstractContextManager[Path]:
    tables = table_settings(config)
    return query_folder(tables.memory_dir, tables.disk_dir, owned.log.manifest.store_id)


def _trigger_ms(config: Config) -> int:
    return 0 if isinstance(config.trigger, str) else config.trigger // 1000


def _source_watch(
    config: Config, metrics: JobMetrics | None, owned: Ownership
) -> contextlib.AbstractContextManager[SourceWatch | None]:
    if not isinstance(config.source, KafkaSource):
        return contextlib.nullcontext()
    from deduper.service.lag_watch import watched_source

    return watched_source(config.source, metrics, owned.log)
