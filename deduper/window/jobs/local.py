"""The three steps of a window's judging on Spark: read, judge, write. Each gives the receipts of its tasks.

    read    of files and topics one task a core, each with some neighbours; of a DataFrame one task a partition
    judge   one task a shard
    write   some tasks, each with some source partitions

The steps have no plan: they are functions over numbers, so Spark analyses and compiles nothing for them, except to read
a DataFrame, in a job of its own. The tasks of one other job do all other steps (`spark.task_pool`). The driver does a
step itself if starting a job would take longer: a small window of files or topics has no job at all.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from bucket_store.maintenance.background_task import OneThread
from bucket_store.pieces.open import open_backend
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.sources.protocol import Parts, Records, SparkRows
from deduper.spark.dataframes import map_in_arrow
from deduper.spark.task_pool import RunTasks, TaskPool
from deduper.tasks.judge import JudgeTask, Receipt, judge
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows, read_function
from deduper.tasks.readers.reading_tasks import PartRead, SourcePart, read_by_spark, read_group, receipts_of
from deduper.tasks.write import WriterReceipt, WriteTask, grouped, is_small, write

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_P = TypeVar("_P", bound=SourcePart)
_Payload = TypeVar("_Payload")
_JUDGES = 8
"""The driver judges so many shards of a small window at a time, each on a thread."""


class WindowRun(Protocol):
    """The steps of one attempt at a window: `read`, perhaps `admitted`, `judge`, `write`, each called once."""

    def read(self, records: Records, task: ReadTask) -> list[PartRead]:
        """Spill the records of a batch. Gives the results of its parts, in their order."""

    def admitted(self, task: ReadTask, readers: Sequence[ReadReceipt]) -> list[Admitted]:
        """The admitted rows of reading tasks with categories. Called after `read`, and not always."""

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """Judge the shards of these views, each by a task that gets its own view only. Each piece is durable then."""

    def write(self, task: WriteTask) -> list[WriterReceipt]:
        """Write the ports, after all shards were judged. Each staged file is durable then."""

    @property
    def finished_reads(self) -> Sequence[str]:
        """The reading tasks of which no task has a file open any more, by name. Asked when the run is closed.

        The next window writes over their files.
        """


class Jobs(Protocol):
    """Runs the jobs of windows, one window at a time; the service's are `SparkJobs`, and `ClusterJobs` on a cluster."""

    def open(self, epoch: int, attempt: int) -> AbstractContextManager[WindowRun]:
        """The steps of that attempt, for a `with` block. Called once an attempt; no two blocks at a time."""

    def close(self) -> None:
        """Called after the last window: release what is kept from window to window. Safe to repeat."""


class SparkJobs:
    """The jobs, on a session."""

    def __init__(self, session: SparkSession, config: Config) -> None:
        self.session = session
        self._pieces = open_backend(config.store.url)
        self._cores = session.sparkContext.defaultParallelism
        self._job_thread = OneThread()
        self._judges = ThreadPoolExecutor(_JUDGES, "judge")

    def open(self, epoch: int, attempt: int) -> SparkRun:
        """The jobs of one attempt at a window."""
        del epoch, attempt  # its folder has a name of its own
        return SparkRun(self.session, self._cores, self._job_thread, self._judges)

    def close(self) -> None:
        """No window comes any more. Safe to repeat."""
        self._job_thread.close()
        self._judges.shutdown()
        self._pieces.close_writers()


class SparkRun:
    """The jobs of one attempt at a window; a context manager. `finished_reads`: see `WindowRun`."""

    def __init__(self, session: SparkSession, cores: int, job_thread: OneThread, judges: ThreadPoolExecutor) -> None:
        """Use `SparkJobs.open`."""
        self.session = session
        self._cores = cores
        self._pool: TaskPool | None = None
        self._job_thread = job_thread
        self._judges = judges
        self._is_small = True
        self._reads: Sequence[str] = ()
        self.finished_reads: Sequence[str] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_pool()

    def read(self, records: Records, task: ReadTask) -> list[PartRead]:
        """Spill the records of a batch: of a DataFrame by Spark, else by `_read_parts`."""
        found = self._read_rows(records, task) if isinstance(records, SparkRows) else self._read_parts(records, task)
        self._reads = [receipt.name for receipt in receipts_of(found)]
        return found

    def _read_parts(self, records: Parts[_P], task: ReadTask) -> list[PartRead]:
        """In the driver if they are small, else by one task a core."""
        parts = records.parts
        if is_small(sum(part.decoded_bytes for part in parts)):
            records.expect(parts)
            return read_group(records.read, task, parts)
        self._is_small = False
        # A core is idle for 20 ms between two tasks: one task per core, of about equal bytes.
        groups = grouped([part.decoded_bytes for part in parts], self._cores)
        self._start_pool(task, max(len(groups), task.shards))
        of_groups = self._for_each(
            [[parts[place] for place in group] for group in groups], partial(read_group, records.read, task)
        )
        return [one for of_group in of_groups for one in of_group]

    def _read_rows(self, rows: SparkRows, task: ReadTask) -> list[PartRead]:
        counted = Observation()
        frame = rows.frame.observe(counted, F.count(F.lit(1)).alias("rows"))
        read = read_function(replace(task, places=rows.places))
        receipts: list[ReadReceipt] = [
            pickle.loads(row.receipt) for row in map_in_arrow(frame, read, "receipt binary").collect()
        ]
        # What Spark has read costs a job; the other steps of a small window need none.
        self._is_small = is_small(sum(receipt.spilled_bytes for receipt in receipts))
        if not self._is_small:
            self._start_pool(task, task.shards)
        return read_by_spark(receipts, int(counted.get["rows"]))

    def _start_pool(self, task: ReadTask, most: int) -> None:
        """Start the pool of tasks for this and the next steps, if the file system has sockets."""
        try:
            self._pool = TaskPool(
                Path(task.directory),
                self._as_this_thread(lambda function, workers: self._run(function, range(workers))),
                min(self._cores, os.cpu_count() or 1, most),
                self._job_thread,
            )
        except OSError as exc:
            # Not every file system has sockets; one job per step gives the same.
            logger.info("a job for each step, no socket in %s: %s", task.directory, exc)

    def _as_this_thread(self, run: RunTasks) -> RunTasks:
        """It runs jobs as this thread does: as its query's, in its pool of the scheduler, cancelled with its group.

        PySpark's `inheritable_thread_target` is not the same in all its releases.
        """
        context: Any = self.session.sparkContext._jsc.sc()
        properties = context.getLocalProperties().clone()

        def run_so(function: Callable[[int], None], workers: int) -> object:
            context.setLocalProperties(properties)
            return run(function, workers)

        return run_so

    def admitted(self, task: ReadTask, readers: Sequence[ReadReceipt]) -> list[Admitted]:
        """The admitted rows of reading tasks with categories."""
        return [admitted_rows(task, receipt.name) for receipt in readers]

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """Judge the shards of these views."""
        if self._is_small:
            # Most of the time goes into the syncing of pieces: shards wait for it side by side. When one fails, the
            # others finish before the window is judged again.
            judged = [self._judges.submit(judge, task, view, stays_open=True) for view in views]
            wait(judged)
            return [one.result() for one in judged]
        open_backend(task.store_url).close_writers()  # the tasks are other processes
        return self._for_each(views, partial(judge, task))

    def write(self, task: WriteTask) -> list[WriterReceipt]:
        """Write the ports."""
        try:
            if task.is_small:
                # A job would take ten times as long. It touches nothing of the store, and holds few megabytes.
                return [write(task, writer) for writer in range(len(task.groups))]
            return self._for_each(range(len(task.groups)), partial(write, task))
        finally:
            # A job of Spark's does not show whether a task that it retried still runs: one that reads has a file of
            # its own, which no receipt names; one that judges or writes reads those of all.
            self.finished_reads = self._reads if self._pool is not None and self._pool.all_tasks_finished else ()
            self._close_pool()

    def _close_pool(self) -> None:
        task_pool, self._pool = self._pool, None
        if task_pool is not None:
            task_pool.close()

    def _for_each(self, payloads: Sequence[_Payload], function: Callable[[_Payload], _T]) -> list[_T]:
        """The results of a function for these payloads, by the tasks of the pool or by those of a new job."""
        if not payloads:
            return []
        return self._run(function, payloads) if self._pool is None else self._pool.map(function, payloads)

    def _run(self, function: Callable[[_Payload], _T], payloads: Sequence[_Payload]) -> list[_T]:
        """The same by a new job: one task a payload, and each payload goes to its task alone."""
        return self.session.sparkContext.parallelize(payloads, len(payloads)).map(function).collect()
