"""The order of the calls of a `Deduper`: one at a time, and one for a batch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from deduper.errors import UsageError

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"
_MOST_RUNS = 100
"""Runs of queries whose last call is known: more than one process has at a time."""


class CallOrder:
    """Refuses the calls of a `Deduper` by which rows would go nowhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # which the thread of a port's function holds already: it is refused
        self._is_called = False
        self._last: dict[int, tuple[str, int | None]] = {}  # run -> its last judged batch, of its query

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One call at a time. A port's function runs within one, on whose window it must not act.

        Raises:
            UsageError: this is a call from such a function.
        """
        with self._lock:
            if self._is_called:
                raise UsageError(
                    f"{self._name}: a function of a port calls the Deduper that has called it: the window at hand "
                    "would be another one. Give the rows to a Deduper of their own, or to the source again"
                )
            self._is_called = True
            try:
                yield
            finally:
                self._is_called = False

    @contextlib.contextmanager
    def of_batch(self, session: SparkSession, query_id: str, batch_id: int | None) -> Iterator[None]:
        """The call of this thread for a batch, which is judged unless an exception ends the block.

        Raises:
            UsageError: this run of the query has had the batch judged: other rows cannot be judged in it.
        """
        run, batch = _run_of_query(session), (query_id, batch_id)
        if query_id and run is not None and self._last.get(run) == batch:
            raise UsageError(
                f"{self._name}: a second call for batch {batch_id} of query {query_id}: its rows were not judged, for "
                "a batch is judged as a whole. Unite the DataFrames before the call, or use one Deduper for each"
            )
        yield
        if run is not None:
            self._last.pop(run, None)
            self._last[run] = batch
            if len(self._last) > _MOST_RUNS:
                del self._last[next(iter(self._last))]


def identity(session: SparkSession, batch_id: int | None) -> tuple[str, int | None]:
    """Spark's ids of the query and the batch that this thread works for; ("", batch_id) outside of a query."""
    context = session.sparkContext
    query_id = context.getLocalProperty(_QUERY_ID)
    if query_id is None:
        return "", batch_id
    of_spark = context.getLocalProperty(_BATCH_ID)
    return query_id, int(of_spark) if batch_id is None and of_spark is not None else batch_id


def _run_of_query(session: SparkSession) -> int | None:
    """Identifies the run of the query that this thread works for, in which Spark asks for a batch once.

    It is the run's own thread in the JVM. Spark names the run as the thread's job group, but a query's function may set
    another one.
    """
    if session.sparkContext.getLocalProperty(_JOB_GROUP) is None:
        return None
    jvm: Any = session.sparkContext._jvm
    return int(jvm.java.lang.Thread.currentThread().getId())
