"""Publishes slots from the executors of a cluster: no row passes through the driver.

A window's slots are dealt to one Spark job, a task for each executor. A task publishes as any other publisher: it takes
the six steps of `slot` with producers of its own, from the init on, and answers with the outcome of each slot. Only the
offset says what was published. So Spark may lose a task, run it twice, or run it after its driver has ended: see
docs/kafka.md, *On a cluster*.

Producers end with the task. A kept producer would be in the worker that has been idle for the shortest time, which
Spark uses last. Until then tasks in other workers have fenced it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from deduper.errors import DeduperError, StopRequested
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.retry import NOTHING_LOST
from deduper.sinks.publisher import Outcome, PortWork, ThreadPublisher
from deduper.spark.failures import raised_in_worker
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.placing import Executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_ROUND_S = 35.0
"""A task waits so long for brokers, then frees its core. It is longer than a refused login is repeated."""


class _Slot(NamedTuple):
    """A slot of a publication: the place of its port's work, and its number."""

    port: int
    number: int


class TaskPublisher:
    """A `Publisher` by tasks of Spark. `session` gives the session, on the caller's thread.

    `logged_in` is for tasks that read the staged rows.
    """

    def __init__(
        self, session: Callable[[], SparkSession], stop: Event | None = None, logged_in: LogsIn = needs_none
    ) -> None:
        self._session = session
        self._logged_in = logged_in
        self._stop = stop or Event()
        self._executors: Executors | None = None

    def publish(self, works: Sequence[PortWork]) -> list[dict[int, Outcome]]:
        """See `Publisher`. Other errors than ours fail the Spark job, after it has run the task again.

        Raises:
            PySparkException, Py4JError: it has failed, or its JVM has ended.
        """
        outcomes: dict[_Slot, Outcome] = {}
        left = [_Slot(port, number) for port, work in enumerate(works) for number in work.window.slots]
        since = time.monotonic()
        while left:
            outcomes |= self._round(works, left)
            away = [slot for slot in left if isinstance(outcomes[slot], BrokerUnavailableError)]
            now = time.monotonic()
            if len(away) < len(left):
                since = now
            if not self._goes_on(works, outcomes, away, now - since):
                break
            left = away
        given: list[dict[int, Outcome]] = [{} for _ in works]
        for slot, outcome in sorted(outcomes.items()):
            given[slot.port][slot.number] = outcome
        return given

    def close(self) -> None:
        """See `Publisher`: there is nothing to close."""

    def _goes_on(
        self, works: Sequence[PortWork], outcomes: dict[_Slot, Outcome], away: Sequence[_Slot], waited_s: float
    ) -> bool:
        """Whether to send the slots again whose brokers are away; not if another slot needs the operator."""
        failed = [slot for slot, outcome in outcomes.items() if isinstance(outcome, BaseException)]
        if not away or len(failed) > len(away):
            return False
        deadline_s = works[away[0].port].sink.settings.deadline_s
        if waited_s >= deadline_s:
            return False
        reason = str(outcomes[away[0]]).removesuffix(NOTHING_LOST)
        if self._stop.is_set():
            for slot in away:
                outcomes[slot] = StopRequested(f"{reason}: stopped; the next start publishes what is missing")
            return False
        logger.warning("%s; %d slots are sent again, gives up after %.0f s", reason, len(away), deadline_s)
        return True

    def _round(self, works: Sequence[PortWork], slots: Sequence[_Slot]) -> dict[_Slot, Outcome]:
        """Publish slots in one Spark job, a task for each executor."""
        context = self._session().sparkContext
        if self._executors is None:
            self._executors = Executors(context)
        tasks = min(len(slots), max(1, len(self._executors.alive())))
        parts = [_parts(works, slots[number::tasks]) for number in range(tasks)]
        try:
            answers = context.parallelize(parts, tasks).map(self._logged_in(publish_here)).collect()
        except (PySparkException, Py4JJavaError) as exc:
            raise raised_in_worker(exc) from None
        return {
            _Slot(port, number): outcome
            for answer in answers
            for port, outcomes in answer.items()
            for number, outcome in outcomes.items()
        }


def _parts(works: Sequence[PortWork], slots: Sequence[_Slot]) -> dict[int, PortWork]:
    """The works of these slots by the places of their ports, for a task."""
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for slot in slots:
        numbers[slot.port].append(slot.number)
    parts = {}
    for port, some in numbers.items():
        sink = works[port].sink
        settings = replace(sink.settings, deadline_s=min(_ROUND_S, sink.settings.deadline_s))
        parts[port] = PortWork(replace(sink, stop=None, settings=settings), works[port].window.part(some))
    return parts


_publishers: list[ThreadPublisher] = []
"""The publisher of this worker: none or one, for its threads."""


def publish_here(parts: dict[int, PortWork]) -> dict[int, dict[int, Outcome]]:
    """The task: publish slots, by producers that end with it.

    Raises:
        Exception: any other error than ours; Spark runs the task again.
    """
    if not _publishers:
        _publishers.append(ThreadPublisher())
    try:
        given = dict(zip(parts, _publishers[0].publish(list(parts.values())), strict=True))
    finally:
        _publishers[0].drop_producers()
    for outcomes in given.values():
        for outcome in outcomes.values():
            if isinstance(outcome, BaseException) and not isinstance(outcome, DeduperError):
                raise outcome
    return given
