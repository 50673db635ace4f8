"""Tasks on the executors of a session, from window to window: where shards are judged, and whether tasks stay there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import TypeVar

from pyspark import SparkContext

from deduper.config.model import Config
from deduper.spark.placing import Executor, Executors, ShardPlaces, located
from deduper.spark.standing_tasks import StandingTasks, TasksLostError
from deduper.spark_promises import DEFAULT_MASTER, have_spare_cores
from deduper.tasks.executors import steps
from deduper.window.jobs.executor_watch import ExecutorWatch

logger = logging.getLogger(__name__)

_NO_TASKS_WITH = ("spark.authenticate", "spark.ssl.rpc.enabled", "spark.dynamicAllocation.enabled")
_T = TypeVar("_T")
_Payload = TypeVar("_Payload")


class ExecutorTasks:
    """Runs tasks on executors, and warns while there is none. For one thread but `last_places`.

    `last_places` are those of the shards in the last window; the list is replaced, so any thread may read it.
    """

    def __init__(self, context: SparkContext, config: Config) -> None:
        """`close` it."""
        self._context = context
        self._executors = Executors(context)
        settings = dict(context.getConf().getAll())
        self._have_one_core = not _have_spare_cores(settings)
        self._spark_makes = _made_by_spark(config)
        self._spark_sends = _spark_sends(config)
        self._standing: StandingTasks | None = None
        if tasks_may_stay(settings, config):
            self._standing = StandingTasks(context, self._executors)
        self._watch = ExecutorWatch(Executors(context).alive, _wanted(settings))
        self._watch.start()
        self._places = ShardPlaces(config.store.shards)
        self._ran_on: dict[int, str] = {}
        self.last_places: list[Executor | None] = []

    def window_places(self) -> list[Executor]:
        """The places of standing tasks that do all steps of a window whose keys the driver hands over; none if not now.

        Not by jobs: the way of a job's payload is long. Nor beside ports that Spark sends: their jobs need all cores.
        """
        if self._standing is None or not self._standing.may_begin:
            return []
        places = self._standing.places
        # A task on the only core of an executor would be in the way of merges and of what is sent.
        have_several = all(self._executors.cores(executor) > 1 for executor in places)
        return places if self._have_one_core or (have_several and not self._spark_sends) else []

    def window_tasks(self) -> list[tuple[Executor, str]]:
        """Standing tasks at `window_places`, which now run, each with its process; none if they do not."""
        places = self.window_places()
        if self._standing is not None and places:
            with suppress(TasksLostError):
                return list(zip(places, self._standing.map(steps.process, places, places), strict=True))
        return []

    def free_cores_to_make(self, ports: Set[str], *, large: bool) -> None:
        """End the tasks that stay if Spark makes files of one of these ports next, whose jobs need their cores.

        Beside a small window they need but one.
        """
        if ports & self._spark_makes and (large or self._have_one_core):
            self.free_cores()

    def judged_on(self, ran_on: dict[int, str]) -> None:
        """Note which process judged each shard, and log how many are where they were a window ago."""
        stayed = sum(self._ran_on.get(shard) == process for shard, process in ran_on.items())
        if self._ran_on and stayed < len(ran_on):
            logger.info("%d of %d shards were judged where they were in the window before", stayed, len(ran_on))
        self._ran_on = ran_on

    def places(self) -> list[Executor | None]:
        """The place of each shard in the next window. None: no executor is there."""
        self.last_places = self._places.on(self._executors.alive())
        return self.last_places

    def at_places(
        self, function: Callable[[_Payload], _T], payloads: Sequence[_Payload], places: Sequence[Executor | None]
    ) -> list[_T]:
        """The results of a function, by a task at each place: one that stays, if that is possible, or one of a job."""
        known = [place for place in places if place is not None]
        if self._standing is not None and len(known) == len(places):
            with suppress(TasksLostError):  # logged; a job may run them anywhere, and repeat them
                return self._standing.map(function, payloads, known)
        return located(self._context, payloads, places).map(function).collect()

    def free_cores(self) -> None:
        """End the tasks that stay: a job is to come."""
        if self._standing is not None:
            self._standing.end()

    def on_each_executor(self, function: Callable[[int], None]) -> None:
        """Call a function, with 0, in a task on each executor; a busy one may have it done by another."""
        self.free_cores()
        executors = self._executors.alive()
        located(self._context, [0] * len(executors), executors).foreach(function)

    def close(self) -> None:
        """End what stays. Jobs may still come. Safe to repeat."""
        self._watch.close()
        if self._standing is not None:
            self._standing.close()


def tasks_may_stay(settings: Mapping[str, str], config: Config) -> bool:
    """Whether tasks may stay on the executors of a session with these settings. PURE.

    Not if their connections would be less safe than Spark's own, or if an executor would never be given back because
    it is never idle. They must leave a core to every job that comes while they stay: a port that Spark sends has one.
    """
    if any(settings.get(name) == "true" for name in _NO_TASKS_WITH):
        return False
    if _have_spare_cores(settings):
        return settings.get("spark.task.cpus", "1") == "1"
    return not _spark_sends(config)


def _made_by_spark(config: Config) -> Set[str]:
    """The ports whose files jobs of Spark make, in their window."""
    return {port for port, sink in config.file_ports.items() if sink.format != "parquet"}


def _spark_sends(config: Config) -> bool:
    """Whether jobs of Spark send a port, beside the next window."""
    return any(sink.delivery != "exactly_once" for sink in config.topic_ports.values())


def _have_spare_cores(settings: Mapping[str, str]) -> bool:
    return have_spare_cores(settings.get("spark.master", DEFAULT_MASTER), settings.get("spark.executor.cores"))


def _wanted(settings: Mapping[str, str]) -> str:
    cores = settings.get("spark.executor.cores")
    memory = settings.get("spark.executor.memory", "1g")
    return f"an executor of {memory}{f' and {cores} cores' if cores else ''} from {settings.get('spark.master')}"
