"""Follows a source of topics: Spark's stream cuts batches, and its callback makes their windows.

A stop falls between two batches. A batch that comes after the stop was requested ends in an exception, never in a
return: Spark would count it as done.
"""

from __future__ import annotations

import logging
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from deduper.config.model import Config
from deduper.errors import DeduperError
from deduper.service.stop import Stop
from deduper.service.windows import Windows
from deduper.sources.protocol import StreamedSource
from deduper.spark.failures import cannot_write, innermost_cause
from deduper.spark.session import JVM_ERRORS
from deduper.window.progress import PROGRESS

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25  # PySpark takes fractions, its annotation does not
_STOP_MS = 5000


class StreamLoop:
    """One run over a source of topics."""

    def __init__(
        self,
        source: StreamedSource,
        windows: Windows,
        stop: Stop,
        session: SparkSession,
        config: Config,
        checkpoint: Path,
    ) -> None:
        self._source = source
        self._windows = windows
        self._stop = stop
        self._session = session
        self._config = config
        self._checkpoint = checkpoint

    def run(self, *, drain: bool) -> None:
        """Run the stream to its end. When a failure of its source is over, it continues from its checkpoint."""
        if not drain:
            PROGRESS.info("waiting for records on %s", self._config.source.place)
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
                return None if self._windows.failure is not None or self._stop.is_requested else exc
            self._windows.check_owner()
            self._source.look()
            # Between two batches only: a query that is stopped in the middle of a write may return before it ends.
            if self._stop.is_requested and self._windows.is_idle:
                self._end(query)
                return None

    def _end(self, query: StreamingQuery) -> None:
        """End the query; if it waits for brokers that are away, it ends by itself, and without another batch."""
        self._session.conf.set("spark.sql.streaming.stopTimeout", _STOP_MS)
        try:
            query.stop()
        except (PySparkException, Py4JJavaError) as exc:
            if "TimeoutException" not in str(exc):
                raise
            logger.info("Spark's stream has not ended within %d ms: %s", _STOP_MS, innermost_cause(exc))

    def _passes(self, failure: Exception) -> bool:
        """Wait until what has failed may be tried again; False when a stop was requested meanwhile."""
        try:
            while not self._source.is_over(failure):
                if self._stop.is_requested:
                    return False
                self._windows.check_owner()
        except (DeduperError, *JVM_ERRORS) as exc:
            explained = cannot_write(exc, "its checkpoint", self._checkpoint) or exc
            raise self._windows.reason_to_stop(explained) from failure
        return not self._stop.is_requested

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

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Spark's callback. An error ends the stream, with the batch not done."""
        with self._windows.attempted(batch_id):
            batch = self._source.batch(batch_id, frame)
            if batch is not None:
                active = self._session.streams.active
                query_id = str(active[0].id) if active else ""
                # The judged ends, not the requested ones: the stream continues from the commit record.
                self._windows.make(batch, batch_id, query_id, self._source.judged)
        if self._windows.failure is not None:
            raise self._windows.failure
