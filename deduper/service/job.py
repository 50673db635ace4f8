"""The job: a source gives batches, a `WindowRunner` makes windows of them, until the source ends or a stop.

The job lists files itself, at every trigger (`file_loop`). A stream of Spark's watches topics; its callback holds a
lock while it works, so that a stop falls between two batches. A batch that comes after the stop flag was raised ends in
an exception, never in a return: Spark would count it as done.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.maintenance.worker_process import MaintenanceWorker
from deduper.config.kafka import KafkaSource
from deduper.config.model import Config
from deduper.errors import DeduperError, SourceAwayError, StopRequested
from deduper.service.file_loop import LOOK_SECONDS, FileLoop
from deduper.service.stop import Stop, restoring_handlers
from deduper.sinks.open import open_topics
from deduper.sinks.publish_state import OnUnknown
from deduper.sources.files.batch import FileBatches
from deduper.sources.open import check_source, open_source, session_settings
from deduper.sources.protocol import SourceBatch, StreamedSource
from deduper.spark.failures import cannot_write, innermost_cause, raised_in_worker
from deduper.spark.java import require_java
from deduper.spark.session import end_session, has_ended, kill_children, require_promises, start_session
from deduper.window.attempt import WindowJudge
from deduper.window.jobs import SparkJobs
from deduper.window.progress import BatchProgress, RunSummary
from deduper.window.recovery import Ownership, owned_store, reason_to_stop
from deduper.window.runner import Batch, WindowRunner
from deduper.window.table_folder import table_settings

if TYPE_CHECKING:
    from deduper.service.metrics import JobMetrics

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25  # PySpark takes fractions, its annotation does not


def wall_clock_us() -> int:
    """The machine's wall clock, µs since the epoch."""
    return time.time_ns() // 1000


def run(
    config: Config,
    *,
    once: bool,
    max_batches: int | None,
    take_over: bool,
    on_progress: Callable[[BatchProgress], None],
    session: SparkSession | None = None,
    unpublished: OnUnknown = OnUnknown.REFUSE,
    clock: Callable[[], int] = wall_clock_us,
) -> RunSummary:
    """Run the job until the source is drained (`once`, or the trigger says so), `max_batches` windows, or a signal.

    Called from the main thread: SIGTERM and SIGINT finish the running window and stop. A `session` that is given is
    used as it is and left running, if it has the settings that promises rest on; without one, the job starts its own.
    `unpublished` decides on a window whose publication the Kafka cluster has forgotten.
    `clock` gives the wall clock in µs since the epoch.

    Raises:
        DeduperError, StoreError: see `deduper.errors.exit_code_of`.
    """
    require_java()
    check_source(config)
    started = time.perf_counter()
    stop = Stop()

    @functools.cache  # ports may ask for it before the stream does, and from its thread
    def the_session() -> SparkSession:
        if session is not None:
            require_promises(session, config.spark)
            return session
        stop.end_at_once(kill_children)
        return start_session(config.name, session_settings(config))

    with (
        restoring_handlers(),
        _metrics(config, clock) as metrics,
        owned_store(
            config,
            take_over=take_over,
            wall_clock_us=clock,
            open_topics=lambda log: open_topics(config, log, the_session, unpublished, lambda: stop.is_asked_for),
        ) as owned,
        _watched_source(config, metrics, owned) as look_at_source,
    ):
        if metrics is not None:
            metrics.opened(owned.log)
        spark = the_session()
        stop.listen()
        try:
            job = _Job(spark, config, owned, max_batches, on_progress, clock, stop, metrics, look_at_source)
            job.run(drain=once or config.trigger == "available_now")
        finally:
            if session is None:
                end_session(spark)
    return RunSummary(
        windows=job.windows,
        **job.totals,
        seconds=time.perf_counter() - started,
        stopped_by=stop.reason,
    )


# Errors of a call into a JVM that has ended.
_OF_SPARK = (PySparkException, Py4JError, OSError)


class _Job:
    """One run. A stream's callback runs on a thread of Spark's, the rest on the main thread."""

    def __init__(
        self,
        session: SparkSession,
        config: Config,
        owned: Ownership,
        max_batches: int | None,
        on_progress: Callable[[BatchProgress], None],
        clock: Callable[[], int],
        stop: Stop,
        metrics: JobMetrics | None,
        look_at_source: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._look_at_source = look_at_source
        self._session = session
        self._config = config
        self._log = owned.log
        self._checkpoint = owned.checkpoint
        self._max_batches = max_batches
        self._on_progress = on_progress
        self._jobs = SparkJobs(session, config, owned.log.manifest.salt)
        self._judge = WindowJudge(self._jobs, config, owned.log, owned.pieces, table_settings(config))
        self._housekeeper = MaintenanceWorker(owned.pieces.url)
        self._source = open_source(config, owned.log, owned.checkpoint, lambda: stop.is_asked_for)
        known = self._source.known if isinstance(self._source, FileBatches) else None
        self._runner = WindowRunner(
            config, owned.log, owned.pieces, self._judge, clock, owned.topics, known, maintenance=self._housekeeper
        )
        self._stop = stop
        self._working = threading.Lock()
        self._failure: Exception | None = None
        self._next_look = 0.0
        self._trigger_s = 0.0 if isinstance(config.trigger, str) else config.trigger / 1_000_000
        self.windows = 0
        self.totals = dict.fromkeys(("unique", "duplicate", "expired", "error"), 0)

    def run(self, *, drain: bool) -> None:
        """Run to the end."""
        with contextlib.ExitStack() as ended:
            for part in (self._housekeeper, self._judge, self._jobs, self._runner):
                ended.enter_context(contextlib.closing(part))
            self._run(drain=drain)

    def _run(self, *, drain: bool) -> None:
        try:
            self._follow(drain=drain)
            if self._failure is not None:
                raise self._failure
            if not self._stop.is_by_signal:
                self._runner.finish()
        except _OF_SPARK as exc:
            # The text of a JVM's exception is gone with the JVM, so none is shown below.
            if not has_ended(self._session, after_signal=self._stop.is_by_signal):
                raise
            with self._working:
                # The window's thread first finishes its work that needs no Spark.
                failure = self._failure or exc
            if not isinstance(failure, _OF_SPARK):
                raise failure from exc
            if not self._stop.is_by_signal:
                reason = "Spark's JVM has ended: killed, or out of memory; nothing is lost, start the job again"
                raise DeduperError(reason) from exc
            # A supervisor's signal goes to all processes of a job: the JVM ends with the window half done.
            logger.warning("the JVM was ended too; what it had begun is judged again at the next start")

    def _follow(self, *, drain: bool) -> None:
        if isinstance(self._source, FileBatches):
            FileLoop(self._source, self, self._stop, self._trigger_s).run(drain=drain)
        else:
            self._stream(self._source, drain=drain)

    def listed(self, source: FileBatches) -> None:
        """The loop over files has listed its source."""
        self._runner.fold_moved()
        if self._metrics is not None:
            self._metrics.source_files(pending=source.pending, changed=source.changed)

    def make(self, batch: SourceBatch) -> bool:
        """The next window, of a batch of the loop over files; False when it failed."""
        number = self._log.state.next_window
        with self._attempted(number):
            self._run_window(number, batch)
        return self._failure is None

    def _stream(self, source: StreamedSource, *, drain: bool) -> None:
        """Run the stream to its end. Once a failure of its source is over, it continues from its checkpoint."""
        while True:
            failure = self._failure_of(source, self._writer(source, drain=drain).start())
            if failure is None or not self._passes(source, failure):
                return
            logger.warning("the stream is started again where it was: %s", innermost_cause(failure))

    def _failure_of(self, source: StreamedSource, query: StreamingQuery) -> Exception | None:
        """Wait for the query's end, or end it; gives why it has failed, when that was not in a batch of ours."""
        while True:
            try:
                if query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
                    return None
            except StreamingQueryException as exc:
                return None if self._failure is not None or self._stop.is_asked_for else exc
            self.look_at_owner()
            source.look()
            # Between two batches only: a query that is stopped in the middle of a write may return before it ends.
            if self._stop.is_asked_for and self._working.acquire(blocking=False):
                self._working.release()
                query.stop()
                return None

    def _passes(self, source: StreamedSource, failure: Exception) -> bool:
        """Wait until what has failed may be tried again; False when a stop was asked for meanwhile."""
        try:
            while not source.is_over(failure):
                if self._stop.is_asked_for:
                    return False
                self.look_at_owner()
        except (DeduperError, *_OF_SPARK) as exc:
            raise reason_to_stop(self._log, cannot_write(exc, "its checkpoint", self._checkpoint) or exc) from failure
        return not self._stop.is_asked_for

    def _writer(self, source: StreamedSource, *, drain: bool) -> DataStreamWriter:
        writer = (
            source.stream(self._session)
            .writeStream.foreachBatch(functools.partial(self._on_batch, source))
            .queryName(self._config.name)
            .option("checkpointLocation", str(self._checkpoint))
        )
        if drain:
            return writer.trigger(availableNow=True)
        assert isinstance(self._config.trigger, int)
        return writer.trigger(processingTime=f"{self._config.trigger // 1000} milliseconds")

    def look_at_owner(self) -> None:
        """Between two batches: an owner with nothing to do must notice too that another has taken over."""
        if time.monotonic() < self._next_look or not self._working.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._log.check_owner()
        except FencedError as exc:
            self._failure = exc
            self._stop.ask("fenced")
        finally:
            self._working.release()

    def _on_batch(self, source: StreamedSource, frame: DataFrame, batch_id: int) -> None:
        """Spark's callback. An error ends the stream, with the batch not done."""
        with self._attempted(batch_id):
            batch = source.batch(batch_id, frame)
            if batch is not None:
                self._run_window(batch_id, batch)
        if self._failure is not None:
            raise self._failure

    @contextlib.contextmanager
    def _attempted(self, batch_id: int) -> Iterator[None]:
        """Around the work on a batch. A failure is kept whole as `_failure`: through Spark it would return as a text.

        Raises:
            StopRequested: a stop was asked for, and nothing of the batch is committed.
            SourceAwayError: files cannot be looked at now, and nothing of the batch is committed.
        """
        with self._working:
            if self._stop.is_asked_for:
                raise StopRequested(f"batch {batch_id} came after the stop")
            try:
                yield
            except StopRequested as exc:
                logger.warning("%s", exc)
                raise
            except SourceAwayError:
                raise  # whether it ends the run, the loop over files decides
            except Exception as exc:  # noqa: BLE001  # raised where the run ends
                self._failure = reason_to_stop(self._log, raised_in_worker(exc))
                if self._metrics is not None:
                    self._metrics.failed("window")

    def _run_window(self, batch_id: int, batch: SourceBatch) -> None:
        with contextlib.nullcontext() if self._metrics is None else self._metrics.window():
            progress, judged = self._runner.run(Batch(self._query_id(), batch_id, batch))
        if self._metrics is not None:
            self._metrics.window_ended(progress)
            self._look_at_source()
        if not isinstance(self._source, FileBatches):
            # The judged ends, not the requested ones: the stream continues from the commit record.
            self._source.judged(judged)
        self.windows += 1
        for port in self.totals:
            self.totals[port] += getattr(progress, port)
        self._on_progress(progress)
        failpoints.hit("window.7.checkpoint")
        if self._max_batches is not None and self.windows >= self._max_batches:
            self._stop.ask("max_batches")

    def _query_id(self) -> str:
        active = self._session.streams.active
        return str(active[0].id) if active else ""


def _metrics(config: Config, clock: Callable[[], int]) -> contextlib.AbstractContextManager[JobMetrics | None]:
    if config.metrics is None:
        return contextlib.nullcontext()
    from deduper.service.metrics_server import serving_metrics

    return serving_metrics(config, config.metrics, clock)


def _watched_source(
    config: Config, metrics: JobMetrics | None, owned: Ownership
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    if metrics is None or not isinstance(config.source, KafkaSource):
        return contextlib.nullcontext(lambda: None)
    from deduper.service.lag_watch import watched_source

    return watched_source(config.source, metrics, owned.log)
