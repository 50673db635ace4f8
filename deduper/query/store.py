"""The store of a `Deduper`, while this process owns it: judges batches, and gives those again that were judged."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import OutputFile
from bucket_store.places.outages import waiting
from bucket_store.places.place import Place
from deduper.config.query import BATCH, FILE_NAME, QueryConfig, described
from deduper.config.sections import PORTS
from deduper.errors import StopRequested, UnfinishedWindowError, UsageError
from deduper.preflight.folders import reachable
from deduper.preflight.results import raise_failure
from deduper.query.batches import Answer, answer
from deduper.query.ports import FunctionCalls, PortFunction, Ports, StagedRows
from deduper.sinks.names import outputs_of
from deduper.sinks.open import open_topics
from deduper.sinks.publish_state import OnUnknown
from deduper.sources.frames import FrameBatch, FramePlan, last_batches
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.hdfs_tokens import TokenSource, tokens_are_needed
from deduper.spark_promises import have_spare_cores
from deduper.window.completeness import require_none_open
from deduper.window.opened import opened_runner
from deduper.window.present_clock import wall_clock_us
from deduper.window.recovery import (
    owned_store,
    publish_unmarked,
    recover,
    require_of_queries,
    staged_outputs,
    telling_takeover,
    unpublished,
)
from deduper.window.runner import WindowInput

if TYPE_CHECKING:
    from deduper.service.metrics import JobMetrics

logger = logging.getLogger(__name__)

MASTER = "spark.master"
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(deduper|bucket_store)\b")
_STATE = "StateStore"
"""In the names of the RDDs of stateful operators."""
_WAIT_US = 600_000_000
"""For brokers that do not answer: the default of a job's `deadline`."""


class QueryStore:
    """A store that this process owns, with the runner of its windows on a session. `functions` None: for `split`."""

    def __init__(
        self,
        config: QueryConfig,
        rows: DataFrame,
        functions: Mapping[str, PortFunction] | None,
        stop: threading.Event,
        *,
        take_over: bool,
        refuses_new: bool,
        unpublished: OnUnknown,
        finishes: bool,
    ) -> None:
        session = rows.sparkSession
        self._config = config
        self._context = session.sparkContext
        self._schema = rows.schema
        self._refuses_new = refuses_new
        self._is_held = functions is None
        self._is_given = False
        self._stop = stop
        self._rows = StagedRows(session, config, rows.schema)
        with contextlib.ExitStack() as stack:
            stack.enter_context(waiting(config.store.deadline / 1e6, stop, StopRequested))
            places = {"store": config.store_place, **{port: sink.place for port, sink in config.file_ports.items()}}
            raise_failure(chain.from_iterable(reachable(*one) for one in places.items() if not one[1].is_local))
            self._metrics = stack.enter_context(_metrics(config))
            self._owned = stack.enter_context(
                owned_store(config, take_over=take_over, wall_clock_us=wall_clock_us, require=_require)
            )
            self._log = self._owned.log
            self._plan = FramePlan(session, config, self._log.manifest.salt)
            self._calls = FunctionCalls(self._rows, self._log, functions)
            settings = dict(self._context.getConf().getAll())
            by_tasks = have_spare_cores(str(config.spark[MASTER]), settings.get("spark.executor.cores"))
            logged_in: LogsIn = needs_none
            if tokens_are_needed(config.spark, config.hdfs_clusters):
                logged_in = TokenSource(session, config.hdfs_clusters).logged_in
            self._topics = stack.enter_context(
                open_topics(
                    config.topic_ports,
                    _WAIT_US,
                    self._log,
                    unpublished,
                    stop,
                    (lambda: session) if by_tasks else None,
                    logged_in,
                )
            )
            self._calls.are_used = finishes
            recover(config, self._owned, self._topics, self._calls, is_held=self._is_held and not finishes)
            self._calls.are_used = False
            _describe(config, self._log.root / FILE_NAME)
            if self._metrics is not None:
                self._metrics.opened(self._log)
            self._runner = stack.enter_context(
                opened_runner(
                    config,
                    self._owned,
                    session,
                    logged_in,
                    wall_clock_us,
                    by_tasks=by_tasks,
                    topics=self._topics,
                    functions=self._calls,
                    is_held=self._is_held,
                )
            )
            stack.push(self._end_waits)
            self._stack = stack.pop_all()

    def _end_waits(self, kind: type[BaseException] | None, *_: object) -> None:
        """After a failure, or Ctrl-C, a publication under way waits for no broker or storage."""
        if kind is not None:
            self._stop.set()

    def fits(self, session: SparkSession, rows: DataFrame) -> bool:
        """Whether these rows can be judged by what is open: the same context, the same columns."""
        return session.sparkContext is self._context and _typed(rows.schema) == _typed(self._schema)

    def use(self, session: SparkSession) -> None:
        """Functions get rows of this session, as their batch is."""
        self._rows.session = session

    def judge(self, query_id: str, batch_id: int, batch: DataFrame) -> None:
        """Judge a batch and hand it to its ports, unless that was done."""
        planned_ms = _planned_ms(batch.sparkSession, query_id)
        if self._answer(query_id, batch_id, planned_ms) is Answer.JUDGE:
            self._make(query_id, batch_id, planned_ms, batch)
        else:
            _commit_states(batch)

    def split(self, query_id: str, batch_id: int | None, rows: DataFrame) -> Ports:
        """The rows of a batch by verdict; those of before if it was judged and is not finished."""
        planned_ms = _planned_ms(rows.sparkSession, query_id)
        if batch_id is not None and self._answer(query_id, batch_id, planned_ms) is Answer.NOTHING:
            _commit_states(rows)
            return self._again(query_id, batch_id)
        self._finish_last(query_id, batch_id)
        self._make(query_id, batch_id, planned_ms, rows)
        self._is_given = True
        return self._newest(is_replayed=False)

    @property
    def is_unnumbered(self) -> bool:
        """Whether the last window is of rows that are no batch."""
        return self._log.state.extra.get(BATCH, ("", 0))[1] is None

    def ends_with(self, query_id: str, batch_id: int | None) -> bool:
        """Whether a call finishes the last window, whose rows this process has given outside of queries.

        Not one that asks for the same rows again.
        """
        if not self._is_given:
            return False
        last = self._log.state.extra[BATCH]
        return not last[0] and (batch_id is None or last != [query_id, batch_id])

    def finish(self) -> None:
        """The user of `split` is done with the rows of the last window."""
        if self._calls.judging is not None:
            self._runner.wait_until_published()
        else:  # of an earlier process
            publish_unmarked(self._config, self._log, None, self._calls)

    def _finish_last(self, query_id: str, batch_id: int | None) -> None:
        """Before a next window: the last one is finished if this batch says so.

        Of a query, by a later batch: Spark calls for it when the function has ended well. Of other rows, by a later
        call of the process that has given them.
        """
        pending = unpublished(self._log)
        if not pending:
            return
        last_query, last_batch = self._log.state.extra[BATCH]
        outputs = staged_outputs(self._config, self._log, pending[-1])
        if not outputs:
            is_finished = True
        elif not last_query:
            is_finished = self._is_given
        else:
            is_finished = batch_id is not None and query_id == last_query and batch_id > last_batch
        if not is_finished:
            staged = {one.staged.rpartition("/")[0] for one in outputs}
            which = "" if last_batch is None else f" (batch {last_batch} of query {last_query or 'without an id'})"
            raise UnfinishedWindowError(
                f"{self._config.name}: window {pending[-1]}{which} was judged, and nobody knows whether its rows were "
                f"used; they are in {', '.join(sorted(staged))}. Repeat the batch by its number; or use those files; "
                "or call `finish()` first if they were used"
            )
        self.finish()

    def close(self, failure: BaseException | None = None) -> None:
        """Give the store back, because of a failure, or after all that is under way.

        Raises:
            Exception: without a failure: why the last window was not published.
        """
        if failure is not None:
            self._stack.__exit__(type(failure), failure, failure.__traceback__)
            return
        with self._stack, telling_takeover(self._log):
            if not self._is_held:
                self._runner.wait_until_published()
            try:
                self._runner.finish()
            except (PySparkException, Py4JError) as exc:  # merges were tasks, and Spark has stopped
                logger.warning("%s: small pieces of the store are merged later: %s", self._config.name, exc)

    def _answer(self, query_id: str, batch_id: int, planned_ms: int | None) -> Answer:
        state = self._log.state
        found, warning = answer(
            last_batches(state.extra),
            query_id,
            batch_id,
            planned_ms=planned_ms,
            name=self._config.name,
            next_window=state.next_window,
            refuses_new=self._refuses_new,
        )
        if warning is not None:
            logger.warning(warning)
        return found

    def _make(self, query_id: str, batch_id: int | None, planned_ms: int | None, rows: DataFrame) -> None:
        state = self._log.state
        self._calls.judging = state.next_window
        has_places = bool(self._config.source.row_place)
        source = FrameBatch.of(
            rows, self._plan, query_id, batch_id, planned_ms, extra=state.extra, has_places=has_places
        )
        number = state.next_window if batch_id is None else batch_id
        metrics = self._metrics
        try:
            with contextlib.nullcontext() if metrics is None else metrics.window(), telling_takeover(self._log):
                self._runner.run(
                    WindowInput(query_id, number, source), None if metrics is None else metrics.window_ended
                )
        except Exception as exc:
            if metrics is not None:
                metrics.failed("window")
            missing = _MISSING.search(str(exc))
            if missing is not None:
                raise UsageError(
                    f"the Python of Spark's workers has no module {missing[1]}: set PYSPARK_PYTHON to one that has "
                    "this package, on every host, before the session starts"
                ) from exc
            raise

    def _newest(self, *, is_replayed: bool) -> Ports:
        """The newest window: its rows, or none if it is finished, for then its files are gone."""
        state = self._log.state
        number, outputs = state.next_window - 1, tuple[OutputFile, ...]()
        if number in unpublished(self._log):
            outputs = outputs_of(staged_outputs(self._config, self._log, number)).functions
        if is_replayed:
            self._rows.require(number, outputs)
        return self._ports(number, state.extra, outputs, is_replayed=is_replayed)

    def _again(self, query_id: str, batch_id: int) -> Ports:
        """The window of a batch that was judged: without rows if it is not the newest one, for then it is finished."""
        if self._log.state.extra[BATCH] == [query_id, batch_id]:
            given = self._newest(is_replayed=True)
            self._is_given = True
            return given
        for commit in reversed(self._log.last_commits(self._log.state.next_window)):
            if commit.extra.get(BATCH) == [query_id, batch_id]:
                return self._ports(commit.window, commit.extra, (), is_replayed=True)
        raise UsageError(
            f"{self._config.name}: batch {batch_id} of query {query_id or 'without an id'} was judged, and finished "
            "before the oldest record that the store has: leave it out"
        )

    def _ports(
        self, number: int, extra: Mapping[str, Any], outputs: Sequence[OutputFile], *, is_replayed: bool
    ) -> Ports:
        unique, duplicate, expired, error = (self._rows.of(port, outputs) for port in PORTS)
        return Ports(unique, duplicate, expired, error, self._calls.window(number, extra, is_replayed=is_replayed))


def _metrics(config: QueryConfig) -> contextlib.AbstractContextManager[JobMetrics | None]:
    if config.metrics is None:
        return contextlib.nullcontext()
    from deduper.service.metrics import JobMetrics
    from deduper.service.window_metrics import serving_metrics

    return serving_metrics(config, config.metrics, wall_clock_us, JobMetrics)


def _require(log: CommitLog) -> None:
    require_none_open(log)
    require_of_queries(log)


def _typed(schema: StructType) -> list[tuple[str, str]]:
    """Names and types; a column that may hold nulls is the same as one that may not."""
    return [(field.name, field.dataType.simpleString()) for field in schema]


def _describe(config: QueryConfig, place: Place) -> None:
    """Leave the settings in the store, for the commands that look at it; nothing here reads them."""
    description = described(config)
    if not place.exists() or place.read() != description:
        place.replace(description)


def _planned_ms(session: SparkSession, query_id: str) -> int | None:
    """When Spark planned the batch that a query is at; None outside of a query, and where Spark does not say.

    Its entry in the checkpoint (`offsets`) has the time, whatever the source is.
    """
    if not query_id:
        return None
    try:
        running = session._jsparkSession.sharedState().activeStreamingQueries()
        for key in running:
            if key.toString() == query_id:
                return int(running[key].lastExecution().offsetSeqMetadata().batchTimestampMs())
    except Py4JError as exc:  # a release with other insides: `answer` warns where it matters
        logger.debug("Spark does not say when it planned a batch: %s", exc)
    return None


def _commit_states(batch: DataFrame) -> None:
    """Read a batch that needs no verdicts, if operators before it keep state.

    Spark notes no batch as done whose states are not committed, and each task commits its own as its rows are read.
    Without states nothing is read: the source may have deleted the rows since.
    """
    if _STATE in batch._jdf.queryExecution().toRdd().toDebugString():
        batch.write.format("noop").mode("overwrite").save()
