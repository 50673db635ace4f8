"""The job: Spark's stream gives batches, a `WindowRunner` makes windows of them, until something says stop.

The callback holds a lock while it works, so that a stop falls between two batches. A batch that is met after the stop
flag was raised ends in an exception, never in a return: Spark would hold it for done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.sources_file import known_digests
from deduper.config import Config
from deduper.file_batch import FileBatches
from deduper.owner import Ownership, owned_store, reason_to_stop
from deduper.progress import BatchProgress, RunSummary
from deduper.receipts import receipt_box
from deduper.source_batch import BatchSource
from deduper.spark_session import require_java, start_session
from deduper.table_places import table_settings
from deduper.window_judge import WindowJudge
from deduper.window_run import Batch, WindowRunner

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
    clock: Callable[[], int] = wall_clock_us,
) -> RunSummary:
    """Run the job until the source is drained (`once`, or the trigger says so), `max_batches` windows, or a signal.

    Called from the main thread: SIGTERM and SIGINT finish the running window and stop. A `session` that is given is
    used as it is and left running; without one, the job starts its own with the settings of `spark_session`. `clock`
    gives the wall clock in µs since the epoch.

    Raises:
        DeduperError, StoreError: see `deduper.errors.exit_code_of`.
    """
    require_java()
    started = time.perf_counter()
    with owned_store(config, take_over=take_over, wall_clock_us=clock) as owned:
        spark = start_session(config) if session is None else session
        try:
            job = _Job(spark, config, owned, max_batches, on_progress, clock)
            stopped_by = job.run(drain=once or config.trigger == "available_now")
        finally:
            if session is None:
                spark.stop()
    return RunSummary(
        windows=job.windows,
        **job.totals,
        seconds=time.perf_counter() - started,
        stopped_by=stopped_by,
    )


class _StopRequested(Exception):
    """Ends a batch that came after the stop: nothing of it was begun, and Spark must not count it as done."""


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
    ) -> None:
        self._session = session
        self._config = config
        self._log = owned.log
        self._checkpoint = owned.checkpoint
        self._max_batches = max_batches
        self._on_progress = on_progress
        judge = WindowJudge(session, config, owned.log, owned.pieces, table_settings(config), receipt_box(session))
        self._runner = WindowRunner(config, owned.log, owned.pieces, judge, clock)
        self._source = _batch_source(config, owned)
        self._stop = threading.Event()
        self._stopped_by = "drained"
        self._working = threading.Lock()
        self._failure: Exception | None = None
        self._next_look = 0.0
        self.windows = 0
        self.totals = dict.fromkeys(("unique", "duplicate", "expired", "error"), 0)

    def run(self, *, drain: bool) -> str:
        """Run to the end; says what ended it."""
        with self._signals():
            self._follow(self._writer(drain=drain).start())
        if self._failure is not None:
            raise self._failure
        return self._stopped_by

    def _follow(self, query: StreamingQuery) -> None:
        """Wait for the query's end, or end it."""
        while not self._ended(query):
            self._look_at_owner()
            # Between two batches only: a query that is stopped in the middle of a write may return before it ends.
            if self._stop.is_set() and self._working.acquire(blocking=False):
                self._working.release()
                query.stop()
                return

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

    def _ended(self, query: StreamingQuery) -> bool:
        try:
            return bool(query.awaitTermination(_POLL_SECONDS))  # type: ignore[arg-type]
        except StreamingQueryException as exc:
            if self._failure is None and not self._stop.is_set():
                raise reason_to_stop(self._log, exc) from exc
            return True

    def _look_at_owner(self) -> None:
        """Between two batches: an owner with nothing to do must notice too that another has taken over."""
        if time.monotonic() < self._next_look or not self._working.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._log.check_owner()
        except FencedError as exc:
            self._failure = exc
            self._request_stop("fenced")
        finally:
            self._working.release()

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Spark's callback."""
        with self._working:
            if self._stop.is_set():
                raise _StopRequested(f"batch {batch_id} came after the stop")
            try:
                self._run_batch(batch_id, frame)
            except Exception as exc:
                # Kept whole: through Spark it would come back as a text.
                self._failure = reason_to_stop(self._log, exc)
                raise

    def _run_batch(self, batch_id: int, frame: DataFrame) -> None:
        batch = self._source.batch(batch_id, frame)
        if batch is None:
            return
        progress = self._runner.run(Batch(self._query_id(), batch_id, batch))
        self._source.judged(batch)
        self.windows += 1
        for port in self.totals:
            self.totals[port] += getattr(progress, port)
        self._on_progress(progress)
        failpoints.hit("window.7.checkpoint")
        if self._max_batches is not None and self.windows >= self._max_batches:
            self._request_stop("max_batches")

    def _query_id(self) -> str:
        active = self._session.streams.active
        return str(active[0].id) if active else ""

    def _request_stop(self, reason: str) -> None:
        if not self._stop.is_set():
            self._stopped_by = reason
            self._stop.set()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for a stop; a second one ends the process at once, which is as safe as a power cut.

        Installed after the session exists, because PySpark installs its own.
        """

        def on_signal(number: int, _: FrameType | None) -> None:
            if self._stop.is_set():
                os._exit(130 if number == signal.SIGINT else 143)
            logger.warning("%s: finishing the window at hand, then stopping", signal.Signals(number).name)
            self._request_stop("signal")

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _batch_source(config: Config, owned: Ownership) -> BatchSource:
    return FileBatches(config.source, owned.checkpoint, known_digests(owned.log.root, owned.log.state.sources))
