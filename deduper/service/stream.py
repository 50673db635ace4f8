"""The job's streaming query: Spark triggers it, this process plans its batches and makes a window of each.

Triggers, progress events, the query's name and its end are Spark's. What a batch holds is planned here, from what the
store has judged (`spark.planned_stream`), and judged in `foreachBatch`. So Spark's checkpoint decides nothing, and lies
in a folder that goes with the process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from deduper.errors import DeduperError, SourceAwayError, StopRequested
from deduper.service.current_step import CurrentStep
from deduper.service.stop import Stop
from deduper.service.windows import Windows
from deduper.sources.protocol import PlannedSource, SourceBatch
from deduper.spark.failures import readable_cause
from deduper.spark.planned_stream import ADDRESS, FORMAT, PlannedPart, PlannedStream, Planner
from deduper.spark.session import changed_settings

logger = logging.getLogger(__name__)

_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_SETTINGS = {
    # The usual one starts processes for every file: 60 ms a batch.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
_OWNER_CHECK_S = 1.0
"""Between two checks of the store's owner, and of the query."""
_LOOK_S = 0.05
"""Between two looks whether a stop was requested."""
_STARTS = 5
"""How often a query is started whose source never asks for a batch: Spark gives its process 10 s to connect, which on a
machine with far too much to do is not enough."""
_ENDS_S = 30
"""How long a query that has nothing left to do may take to end."""


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
        """Held while something uses the source, the windows or the log: Spark's threads and the main one take turns."""
        self._planned: SourceBatch | None = None
        self._is_drained = False
        self._is_over = threading.Event()

    def run(self, name: str, *, drain: bool, trigger_ms: int) -> None:
        """Run until a stop or a failure; to drain the source, until all that it has at the start is judged.

        Raises:
            DeduperError: Spark ended the query for a reason of its own; a failure of a window is kept in `windows`.
        """
        self._is_drained = drain
        with self._reported(), self._step.of("the source is listed"):
            self._source.begin(drain=drain)
        if self._goes_on:
            self._query(name, {"availableNow": True} if drain else {"processingTime": f"{trigger_ms} milliseconds"})

    def _query(self, name: str, trigger: dict[str, Any]) -> None:
        self._session.dataSource.register(PlannedStream)
        with self._scratch as scratch:
            for start in range(1, _STARTS + 1):
                failure, was_asked = self._run_query(scratch / f"query-{start}", name, trigger)
                if failure is None:
                    return
                why = readable_cause(failure)
                if was_asked or start == _STARTS:
                    raise DeduperError(f"Spark has ended the job's query: {why}") from failure
                logger.warning("the query's source did not start, starting the query again: %s", why)
                self._is_over.clear()

    def _run_query(self, folder: Path, name: str, trigger: dict[str, Any]) -> tuple[Exception | None, bool]:
        """One start of the query, to its end: `_failure_of` it, and whether its source has come up."""
        folder.mkdir()
        self._step.begin("Spark starts the job's query")
        with contextlib.closing(Planner(folder, self._plan, self._is_over.set)) as planner:
            stream = self._session.readStream.format(FORMAT).option(ADDRESS, str(planner.address)).load()
            writer = stream.writeStream.queryName(name).foreachBatch(self._judge).trigger(**trigger)
            with changed_settings(self._session, _SETTINGS):
                query = writer.option("checkpointLocation", f"{folder.as_uri()}/checkpoint").start()
            return self._failure_of(query), planner.was_asked

    def _failure_of(self, query: StreamingQuery) -> Exception | None:
        """Wait for the query's end, or end it between two windows; the error, if Spark ends it for its own reason."""
        due = 0.0
        while not (self._is_over.wait(_LOOK_S) or self._stop.is_requested):
            if time.monotonic() >= due and self._turn.acquire(blocking=False):
                try:
                    self._windows.between()
                finally:
                    self._turn.release()
                if not query.isActive:
                    break
                due = time.monotonic() + _OWNER_CHECK_S
        self._step.begin("Spark ends the job's query")
        if not self._stop.is_requested:
            with contextlib.suppress(StreamingQueryException):  # looked at below
                query.awaitTermination(_ENDS_S)
        with self._turn:  # the window that is under way comes to its end
            self._is_over.set()
        query.stop()
        ours = self._windows.failure is not None or self._stop.is_requested
        return None if ours else query.exception()

    def _plan(self) -> Sequence[PlannedPart] | None:
        """The parts of the next batch; on the planner's thread."""
        with self._turn:
            if self._planned is None and self._goes_on:
                with self._reported(), self._step.of(f"window {self._windows.next_number} is planned"):
                    self._planned = self._source.next_batch()
                self._raise_failure()
                if self._planned is not None:
                    self._step.begin(f"Spark begins the batch of window {self._windows.next_number}")
                    return [PlannedPart(one.name, one.start, one.end) for one in self._planned.partitions]
                if self._is_drained:
                    self._is_over.set()
            return None

    def _judge(self, batch: DataFrame, batch_id: int) -> None:
        """Make the window of the planned batch; Spark's `foreachBatch`, on a thread of its own."""
        del batch, batch_id
        with self._turn:
            planned, self._planned = self._planned, None
            if planned is not None and self._goes_on:
                with self._reported():
                    self._windows.make(planned, self._windows.next_number, judged=self._source.judged)
            self._raise_failure()

    def _raise_failure(self) -> None:
        """End Spark's query with what has ended the run."""
        if self._windows.failure is not None:
            self._is_over.set()
            raise self._windows.failure

    @property
    def _goes_on(self) -> bool:
        return not (self._is_over.is_set() or self._stop.is_requested or self._windows.failure is not None)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Around the work on a batch: a stop, or a source that is away, leaves its records to the next one."""
        with contextlib.suppress(StopRequested), self._windows.attempted(self._windows.next_number):
            try:
                yield
            except SourceAwayError as exc:
                self._source.put_off(exc)
