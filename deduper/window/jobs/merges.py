"""Merges small pieces on the executors of a cluster: no byte of them passes through the driver.

The driver chooses what is merged, and its record names the new pieces (`maintenance.compactions`). A merge is a task of
Spark's on the shard's executor, whose host has copies of pieces. A task that is lost, runs twice, or runs after its
driver is gone leaves a piece that no record names, as any attempt at a window may: see `maintenance.unnamed_pieces`.

Merges run in rounds. A round is a Spark job with one merge on every executor, so merging takes one core of an executor
at a time, for a second at most, and the judging of a window never waits behind a queue of merges.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from bucket_store.maintenance.compactions import Answer
from bucket_store.maintenance.deletions import Deletes
from bucket_store.maintenance.worker_process import Maintenance
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import Located
from deduper.spark.failures import raised_in_worker
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.placing import Executor, located
from deduper.tasks.executors.steps import MergeTask

logger = logging.getLogger(__name__)


class TaskMerges(Maintenance):
    """Merges by tasks; `deletes` deletes, in the driver. `places` gives the executor of each shard, if it is known.

    `logged_in` is for tasks that use the store.
    """

    def __init__(
        self,
        deletes: Deletes,
        context: SparkContext,
        task: MergeTask,
        places: Callable[[], Sequence[Executor | None]],
        logged_in: LogsIn = needs_none,
    ) -> None:
        self._deletes = deletes
        self._context = context
        self._task = task
        self._places = places
        self._logged_in = logged_in
        # Every thread that calls the JVM has a connection of its own.
        self._thread = ThreadPoolExecutor(1, "merge")

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """See `Deletes`."""
        return self._deletes.delete(pieces, keep=keep, writing_epoch=writing_epoch)

    def merge(self, task: CompactionTask) -> PieceRef | None:
        """See `Merges`."""
        (answer,) = self.merge_each([task])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def merge_each(self, tasks: Sequence[CompactionTask]) -> Iterator[Answer]:
        """See `Merges`. If a job fails for good, its error is the answer to all merges that are left."""
        answers: dict[int, Answer] = {}
        for numbers, places in rounds([task.pieces[0].shard for task in tasks], self._places()):
            try:
                given = self._thread.submit(self._round, [tasks[number] for number in numbers], places).result()
            except (PySparkException, Py4JError) as exc:
                error = raised_in_worker(exc)
                answers |= {number: error for number in range(len(tasks)) if number not in answers}
                break
            answers |= zip(numbers, given, strict=True)
        yield from (answers[number] for number in range(len(tasks)))

    def close(self) -> None:
        """End the thread. Safe to repeat."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _round(self, tasks: Sequence[CompactionTask], places: Sequence[Executor | None]) -> list[Answer]:
        return located(self._context, tasks, places).map(self._logged_in(self._task.merged)).collect()


def rounds(
    shards: Sequence[int], places: Sequence[Executor | None]
) -> Iterator[tuple[list[int], list[Executor | None]]]:
    """(numbers of merges, their places) of each round, from the shards of all merges. PURE.

    No place is there twice in a round. Shards without a known place are one place.
    """
    waiting: dict[Executor | None, deque[int]] = {}
    for number, shard in enumerate(shards):
        waiting.setdefault(places[shard] if shard < len(places) else None, deque()).append(number)
    while waiting:
        yield [of_place[0] for of_place in waiting.values()], list(waiting)
        for of_place in waiting.values():
            of_place.popleft()
        waiting = {place: of_place for place, of_place in waiting.items() if of_place}
