"""The job's streaming query: this process plans its batches, Spark runs them, and each becomes a window.

Batches, progress events, the query's name and its end are Spark's. What a batch holds is planned here, from what the
store has judged (`spark.planned_batches`), and judged in `foreachBatch`. So Spark's checkpoint decides nothing, and
lies in a folder that goes with the process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from deduper.errors import DeduperError, SourceAwayError, StopRequested
from deduper.service.current_step import CurrentStep
from deduper.service.stop import Stop
from deduper.service.windows import Windows
from deduper.sources.protocol import PlannedSource, SourceBatch
from deduper.spark.failures import readable_cause
from deduper.spark.planned_batches import PlannedBatches
from deduper.spark.session import changed_settings

logger = logging.getLogger(__name__)

_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_SETTINGS = {
    # The usual one starts processes for every file: 60 ms a batch.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
_POLLING = "spark.sql.streaming.pollingDelay"
_LEAST_POLL_MS, _MOST_POLL_MS, _POLLS_A_TRIGGER = 10, 100, 40
"""How often Spark looks whether a batch was planned. At its own 10 ms an idle job takes 5 % of a core."""
_OWNER_CHECK_S = 1.0
"""Between two checks of the store's owner, and of the query."""
_LOOK_S = 0.05
"""Between two looks whether a stop was requested."""
_ENDS_S = 30
"""How long a query may take to end by itself, after a failure."""


class WindowStream:
    """One run over a source, as a streaming query. `scratch` gives the folder of its checkpoint."""

    def __init__(
        self,
        source: PlannedSource,
        windows: Windows,
        stop: Stop,
        step: CurrentStep,
        session: SparkSession,
        scratch: contextlib.AbstractContextManager[Path],
    ) -> None:
        self._scratch = scratch
        self._source = source
        self._windows = windows
        self._stop = stop
        self._step = step
        self._session = session
        self._turn = threading.Lock()
        """Held by who uses the source, the windows or the log: the planner, Spark and the main thread take turns."""
        self._planned: SourceBatch | None = None
        self._judged = threading.Event()
        """Set when the batch that was planned last is over."""
        self._is_drained = False
        self._is_over = threading.Event()

    def run(self, name: str, *, drain: bool, trigger_ms: int) -> None:
        """Run until a stop or a failure; to drain the source, until all that it has at the start is judged.

        Raises:
            DeduperError: Spark ended the query for a reason of its own; a failure of a window is kept in `windows`.
        """
        self._is_drained = drain
        if not self._goes_on:
            return
        with self._reported(), self._step.of("the source is listed"):
            self._source.begin(drain=drain)
        if self._goes_on:
            self._query(name, 0.0 if drain else trigger_ms / 1000)

    def _query(self, name: str, every_s: float) -> None:
        with self._scratch as scratch:
            self._step.begin("Spark starts the job's query")
            batches = PlannedBatches(self._session)
            # Spark begins a batch as soon as there is one. When that is, the planner says.
            writer = batches.rows.writeStream.queryName(name).foreachBatch(self._judge)
            poll_ms = min(_MOST_POLL_MS, max(_LEAST_POLL_MS, round(every_s * 1000 / _POLLS_A_TRIGGER)))
            with changed_settings(self._session, {**_SETTINGS, _POLLING: f"{poll_ms}ms"}):
                query = writer.option("checkpointLocation", f"{scratch.as_uri()}/checkpoint").start()
            planner = threading.Thread(target=self._plan_on, args=(batches, every_s), name="planner", daemon=True)
            planner.start()
            try:
                failure = self._failure_of(query)
            finally:
                self._is_over.set()
                planner.join()
        if failure is not None:
            raise DeduperError(f"Spark has ended the job's query: {readable_cause(failure)}") from failure

    def _failure_of(self, query: StreamingQuery) -> Exception | None:
        """Wait for the query's end, or end it between two windows; the error, if Spark ends it for its own reason."""
        due, is_stopped = 0.0, False
        while not (self._is_over.wait(_LOOK_S) or self._stop.is_requested):
            if time.monotonic() >= due and self._turn.acquire(blocking=False):
                try:
                    self._windows.between()
                finally:
                    self._turn.release()
                if not query.isActive:
                    is_stopped = self._goes_on
                    break
                due = time.monotonic() + _OWNER_CHECK_S
        with self._turn:  # the window that is under way comes to its end
            self._is_over.set()
        with self._step.of("Spark ends the job's query"):
            with contextlib.suppress(StreamingQueryException):  # looked at below
                if self._windows.failure is None:
                    query.processAllAvailable()  # listeners hear of the last window
                else:
                    query.awaitTermination(_ENDS_S)
            query.stop()
        if self._windows.failure is not None or self._stop.is_requested:
            return None
        return query.exception() or (DeduperError("another program has stopped it") if is_stopped else None)

    def _plan_on(self, batches: PlannedBatches, every_s: float) -> None:
        """The planner's thread, until the run is over. What ends it otherwise is the run's failure."""
        try:
            self._plan_until_over(batches, every_s)
        except Exception as exc:  # noqa: BLE001  raised where the run ends
            self._windows.failure = self._windows.failure or exc
        finally:
            self._is_over.set()

    def _plan_until_over(self, batches: PlannedBatches, every_s: float) -> None:
        """Plan a batch at each trigger, when the one before is over."""
        while self._goes_on:
            due = time.monotonic() + every_s
            self._judged.clear()
            if self._plan():
                batches.add()
                while self._goes_on and not self._judged.wait(_LOOK_S):
                    pass
            else:
                self._is_over.wait(_LEAST_POLL_MS / 1000)  # a trigger may be shorter
            while self._goes_on and (left := due - time.monotonic()) > 0:
                self._is_over.wait(min(left, _LOOK_S))
        if self._windows.failure is not None:
            batches.add()  # of which Spark hears in the next batch, if it was not one that failed

    def _plan(self) -> bool:
        """Plan the next batch; false if there is none now."""
        with self._turn:
            if self._planned is None and self._goes_on:
                with self._reported(), self._step.of(f"window {self._windows.next_number} is planned"):
                    self._planned = self._source.next_batch()
                if self._windows.failure is not None:
                    self._is_over.set()
                elif self._planned is not None:
                    self._step.begin(f"Spark begins the batch of window {self._windows.next_number}")
                    return True
                elif self._is_drained:
                    self._is_over.set()
            return False

    def _judge(self, batch: DataFrame, batch_id: int) -> None:
        """Make the window of the planned batch; Spark's `foreachBatch`, on a thread of its own."""
        del batch, batch_id
        with self._turn:
            planned, self._planned = self._planned, None
            if planned is not None and self._goes_on:
                with self._reported():
                    with self._step.of(f"window {self._windows.next_number} is planned"):
                        # Spark has taken some 60 ms to begin it.
                        planned = self._source.newest(planned)
                    self._windows.make(planned, self._windows.next_number, judged=self._source.judged)
            self._judged.set()
            if self._windows.failure is not None:  # which ends Spark's query too
                self._is_over.set()
                raise self._windows.failure

    @property
    def _goes_on(self) -> bool:
        return not (self._is_over.is_set() or self._stop.is_requested or self._windows.failure is not None)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Around the work on a batch: a stop, or a source that is away, leaves its records to the next one."""
        with contextlib.suppress(StopRequested), self._windows.attempted():
            try:
                yield
            except SourceAwayError as exc:
                self._source.put_off(exc)
