"""The job: Spark's stream gives batches, a `WindowRunner` makes windows of them, until something says stop.

The callback holds a lock while it works, so that a stop falls between two batches. A batch that is met after the stop
flag was raised ends in an exception, never in a return: Spark would hold it for done.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bucket_store import failpoints
from bucket_store.commit_log import CommitLog
from bucket_store.errors import FencedError
from bucket_store.sources_file import known_digests
from deduper import kafka_extra
from deduper.config import Config, FilesSource, KafkaSource
from deduper.errors import DeduperError, UsageError
from deduper.file_batch import FileBatches
from deduper.file_source import missing_folder
from deduper.full_disk import cannot_write
from deduper.housekeeping_process import HousekeepingProcess
from deduper.java import require_java
from deduper.kafka_jars import connector_settings
from deduper.output_names import topic_sinks
from deduper.owner import Ownership, owned_store, reason_to_stop
from deduper.progress import BatchProgress, RunSummary
from deduper.publication import Unknown
from deduper.source_batch import BatchSource
from deduper.spark_errors import innermost_cause
from deduper.spark_session import end_session, has_ended, kill_children, start_session
from deduper.stopping import Stop, StopRequested, restoring_handlers
from deduper.table_places import table_settings
from deduper.window_jobs import SparkJobs
from deduper.window_judge import WindowJudge
from deduper.window_run import Batch, TopicPorts, WindowRunner
from deduper.worker_errors import raised_in_worker

if TYPE_CHECKING:
    from deduper.metrics import JobMetrics

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25  # PySpark takes fractions, its annotation does not
_LOOK_SECONDS = 1.0


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
    unpublished: Unknown = Unknown.REFUSE,
    clock: Callable[[], int] = wall_clock_us,
) -> RunSummary:
    """Run the job until the source is drained (`once`, or the trigger says so), `max_batches` windows, or a signal.

    Called from the main thread: SIGTERM and SIGINT finish the running window and stop. A `session` that is given is
    used as it is and left running; without one, the job starts its own with the settings of `spark_session`.
    `unpublished` is what becomes of a window of which the Kafka cluster no longer knows whether it was published.
    `clock` gives the wall clock in µs since the epoch.

    Raises:
        DeduperError, StoreError: see `deduper.errors.exit_code_of`.
    """
    require_java()
    _look_at_source(config)
    started = time.perf_counter()
    stop = Stop()

    @functools.cache  # ports may ask for it before the stream does, and from its thread
    def the_session() -> SparkSession:
        if session is not None:
            return session
        stop.end_at_once(kill_children)
        return start_session(config)

    with (
        restoring_handlers(),
        _metrics(config, clock) as metrics,
        owned_store(
            config,
            take_over=take_over,
            wall_clock_us=clock,
            open_topics=lambda log: _topic_ports(config, log, the_session, unpublished, stop),
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


# What comes of a JVM that is gone, in whatever state of a call.
_OF_SPARK = (PySparkException, Py4JError, OSError)


class _Job:
    """One run of the stream. The callback runs on a thread of Spark's, the rest on the main thread."""

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
        self._housekeeper = HousekeepingProcess(owned.pieces.url)
        self._runner = WindowRunner(
            config, owned.log, owned.pieces, self._judge, clock, owned.topics, housekeeper=self._housekeeper
        )
        self._source = _batch_source(config, owned, stop)
        self._stop = stop
        self._working = threading.Lock()
        self._failure: Exception | None = None
        self._next_look = 0.0
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
        except _OF_SPARK as exc:
            # Of the JVM's exceptions not even the text can be had without it, so none is told below.
            if not has_ended(self._session, after_signal=self._stop.is_by_signal):
                raise
            with self._working:
                # Whatever the window's thread does without Spark, it does to its end.
                failure = self._failure or exc
            if not isinstance(failure, _OF_SPARK):
                raise failure from exc
            if not self._stop.is_by_signal:
                reason = "Spark's JVM has ended: killed, or out of memory; nothing is lost, start the job again"
                raise DeduperError(reason) from exc
            # A supervisor's signal goes to all processes of a job: the JVM ends with the window half done.
            logger.warning("the JVM was ended too; what it had begun is judged again at the next start")

    def _follow(self, *, drain: bool) -> None:
        """Run the stream to its end; one that its source has failed goes on from its checkpoint once that is over."""
        while True:
            failure = self._failure_of(self._writer(drain=drain).start())
            if failure is None or not self._passes(failure):
                return
            logger.warning("the stream is started again where it was: %s", innermost_cause(failure))

    def _failure_of(self, query: StreamingQuery) -> Exception | None:
        """Wait for the query's end, or end it; gives why it has failed, when that was not in a batch of ours."""
        while True:
            try:
                if query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
                    return None
            except StreamingQueryException as exc:
                return None if self._failure is not None or self._stop.is_asked_for else exc
            self._look_at_owner()
            self._source.look()
            # Between two batches only: a query that is stopped in the middle of a write may return before it ends.
            if self._stop.is_asked_for and self._working.acquire(blocking=False):
                self._working.release()
                query.stop()
                return None

    def _passes(self, failure: Exception) -> bool:
        """Wait until what has failed may be tried again; False when a stop was asked for meanwhile."""
        try:
            while not self._source.is_over(failure):
                if self._stop.is_asked_for:
                    return False
                self._look_at_owner()
        except (DeduperError, *_OF_SPARK) as exc:
            raise reason_to_stop(self._log, cannot_write(exc, "its checkpoint", self._checkpoint) or exc) from failure
        return not self._stop.is_asked_for

    def _writer(self, *, drain: bool) -> DataStreamWriter:
        writer = (
            self._source.stream(self._session)
            .writeStream.foreachBatch(self._on_batch)
            .queryName(self._config.name)
            .option("checkpointLocation", str(self._checkpoint))
        )
        if drain:
            return writer.trigger(availableNow=True)
        assert isinstance(self._config.trigger, int)
        return writer.trigger(processingTime=f"{self._config.trigger // 1000} milliseconds")

    def _look_at_owner(self) -> None:
        """Between two batches: an owner with nothing to do must notice too that another has taken over."""
        if time.monotonic() < self._next_look or not self._working.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._log.check_owner()
        except FencedError as exc:
            self._failure = exc
            self._stop.ask("fenced")
        finally:
            self._working.release()

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Spark's callback."""
        with self._working:
            if self._stop.is_asked_for:
                raise StopRequested(f"batch {batch_id} came after the stop")
            try:
                self._run_batch(batch_id, frame)
            except StopRequested as exc:
                logger.warning("%s", exc)
                raise
            except Exception as exc:
                # Kept whole: through Spark it would come back as a text.
                self._failure = reason_to_stop(self._log, raised_in_worker(exc))
                if self._metrics is not None:
                    self._metrics.failed("window")
                raise

    def _run_batch(self, batch_id: int, frame: DataFrame) -> None:
        batch = self._source.batch(batch_id, frame)
        if batch is None:
            return
        with contextlib.nullcontext() if self._metrics is None else self._metrics.window():
            progress, judged = self._runner.run(Batch(self._query_id(), batch_id, batch))
        if self._metrics is not None:
            self._metrics.window_ended(progress)
            self._look_at_source()
        # Not what Spark has cut: the source goes on from where the record says.
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
    from deduper.metrics_server import serving_metrics

    return serving_metrics(config, config.metrics, clock)


def _watched_source(
    config: Config, metrics: JobMetrics | None, owned: Ownership
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    if metrics is None or not isinstance(config.source, KafkaSource):
        return contextlib.nullcontext(lambda: None)
    from deduper.source_watch import watched_source

    return watched_source(config.source, metrics, owned.log)


def _look_at_source(config: Config) -> None:
    """Before the epoch is claimed: a job that cannot run must not disturb one that does."""
    missing = missing_folder(config.source)
    if missing is not None:
        raise UsageError(f"source.path: {missing} does not exist: make it (mkdir -p {missing}), or correct the path")
    if isinstance(config.source, KafkaSource):
        if not kafka_extra.is_client_installed():
            raise UsageError(f"{kafka_extra.MISSING}: {kafka_extra.REMEDY}")
        from deduper.kafka_preflight import require

        connector_settings(config.spark)
        require(config)


def _batch_source(config: Config, owned: Ownership, stop: Stop) -> BatchSource:
    if isinstance(config.source, FilesSource):
        return FileBatches(config.source, owned.checkpoint, known_digests(owned.log.root, owned.log.state.sources))
    # Not everybody has Kafka's client.
    from deduper.kafka_batch import KafkaBatches
    from deduper.kafka_cluster import KafkaCluster
    from deduper.kafka_watch import BrokerWatch

    watch = BrokerWatch(config.source, is_stopping=lambda: stop.is_asked_for)
    return KafkaBatches(
        config.source,
        owned.checkpoint,
        KafkaCluster(config.source, is_stopping=lambda: stop.is_asked_for),
        owned.log.state,
        watch,
    )


def _topic_ports(
    config: Config, log: CommitLog, session: Callable[[], SparkSession], unpublished: Unknown, stop: Stop
) -> contextlib.AbstractContextManager[TopicPorts | None]:
    if not topic_sinks(config):
        return contextlib.nullcontext()
    from deduper.kafka_ports import KafkaPorts

    return contextlib.closing(KafkaPorts(config, log, session, unpublished, lambda: stop.is_asked_for))
