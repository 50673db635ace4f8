"""The three steps of a window's judging on the executors of a cluster; see `local` for those of one machine.

    reads   = reading tasks, persisted                 records and keys stay in a folder of the host
    judged  = keys of `reads`, by shard, zipped with the places of the shards; persisted
    write   = verdicts of `judged`, by reading partition, zipped with `reads`: it runs where the records are

Each step is a job. Keys and verdicts go through Spark's shuffle as blobs, never through the driver. Spark runs the
partitions of a lost executor again.

A small window that is read without Spark has one job. The driver is its only reading partition: it reads, the payloads
of the job are the keys, its results are the verdicts, and the driver writes. Judged in the driver too, it would need
tables of every shard on the driver's host, which no executor would find, and its pieces would be read twice.
"""

from __future__ import annotations

import logging
import pickle
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from bucket_store.tables.generation import table_folder
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.sources.protocol import BatchRead, SourceBatch
from deduper.sources.read_plan import Plan, read_plan
from deduper.spark import placing
from deduper.spark.arrow_map import map_in_arrow
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.placing import Executor, Executors, ShardPlaces, located, unbatched, zipped
from deduper.tasks.executors import steps
from deduper.tasks.executors.exchange_blobs import VerdictBlob
from deduper.tasks.executors.host_folder import HostFolder
from deduper.tasks.executors.steps import Expected, Judged, Left
from deduper.tasks.judge import JudgeTask
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows
from deduper.tasks.readers.reading_tasks import Part, PartRead, read_group
from deduper.tasks.receipts import Receipt
from deduper.tasks.write import WriteReceipt, WriteTask, grouped, is_small
from deduper.window.jobs.executor_watch import ExecutorWatch
from deduper.window.table_folder import table_room

logger = logging.getLogger(__name__)

_P = TypeVar("_P", bound=Part)


class ExecutorTasks:
    """Chooses the executors of tasks, and warns while there is none. For one thread but `last_places`.

    `last_places` are those of the shards in the last window; the list is replaced, so any thread may read it.
    """

    def __init__(self, context: SparkContext, shards: int) -> None:
        """`close` it."""
        self._context = context
        self._executors = Executors(context)
        self._watch = ExecutorWatch(Executors(context).alive, _wanted(dict(context.getConf().getAll())))
        self._watch.start()
        self._places = ShardPlaces(shards)
        self._ran_on: dict[int, str] = {}
        self.last_places: list[Executor | None] = []

    def places(self) -> list[Executor | None]:
        """The place of each shard in the next window. None: no executor is there."""
        self.last_places = self._places.on(self._executors.alive())
        return self.last_places

    def judged_on(self, ran_on: dict[int, str]) -> None:
        """Note which process judged each shard, and log how many are where they were a window ago."""
        stayed = sum(self._ran_on.get(shard) == process for shard, process in ran_on.items())
        if self._ran_on and stayed < len(ran_on):
            logger.info("%d of %d shards were judged where they were in the window before", stayed, len(ran_on))
        self._ran_on = ran_on

    def on_each_executor(self, function: Callable[[int], None]) -> None:
        """Call a function, with 0, in a task on each executor; a busy one may have it done by another."""
        executors = self._executors.alive()
        located(self._context, [0] * len(executors), executors).foreach(function)

    def close(self) -> None:
        """Jobs may still come. Safe to repeat."""
        self._watch.close()


def _wanted(settings: Mapping[str, str]) -> str:
    cores = settings.get("spark.executor.cores")
    memory = settings.get("spark.executor.memory", "1g")
    return f"an executor of {memory}{f' and {cores} cores' if cores else ''} from {settings.get('spark.master')}"


class ClusterJobs:
    """The jobs on a session whose executors are other processes."""

    def __init__(
        self, session: SparkSession, config: Config, store_id: str, salt: bytes, logged_in: LogsIn = needs_none
    ) -> None:
        """`logged_in` is for tasks that use the store or the ports."""
        self.session = session
        self.logged_in = logged_in
        self.tasks = ExecutorTasks(session.sparkContext, config.store.shards)
        self._store_folder = table_folder(store_id, config.store.place)
        self._plan = read_plan(session, config, salt)
        self._tables = table_room(config)
        self._last: HostFolder | None = None

    def open(self, epoch: int, attempt: int) -> ClusterRun:
        """The jobs of one attempt at a window."""
        self._last = HostFolder(self._store_folder, epoch, attempt, self._tables)
        return ClusterRun(self.session, self.tasks, self._plan, self._last, self.logged_in)

    def close(self) -> None:
        """No window comes any more: remove the last one's folders, if that can be. Safe to repeat."""
        self.tasks.close()
        last, self._last = self._last, None
        if last is None:
            return
        try:
            self.tasks.on_each_executor(partial(steps.remove_folders, last))
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("records of the last window stay on their hosts until another job finds them: %s", exc)


class _NotSmall(Exception):
    """The window is larger than its files, or Spark must read some of it: jobs read it again."""


class ClusterRun:
    """The jobs of one attempt at a window; a context manager."""

    all_tasks_finished = True
    """Spark may still run a lost task, but none sees the driver's folder."""

    def __init__(
        self, session: SparkSession, tasks: ExecutorTasks, plan: Plan, folder: HostFolder, logged_in: LogsIn
    ) -> None:
        """Use `ClusterJobs.open`."""
        self.session = session
        self._context = session.sparkContext
        self._tasks = tasks
        self._logged_in = logged_in
        self._plan = plan
        self._folder = folder
        self._cached: list[Any] = []
        self._read: list[tuple[RDD[Left] | None, list[Left]]] = []
        self._reads: list[RDD[Left]] = []
        self._left: list[Left] = []
        self._may_be_small = True
        self._verdicts: list[VerdictBlob] = []
        self._expected: tuple[tuple[Expected, ...], ...] = ()
        self._partition_of: tuple[int, ...] = ()
        self._judged: RDD[Judged] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            placing.forget(self._cached)
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("cached partitions are not freed: %s", exc)

    def read(self, batch: SourceBatch, task: ReadTask) -> BatchRead:
        """Spill the records of a batch; those that the driver reads again by jobs if they are not small."""
        try:
            read = batch.read(self, task)
            if self._has_read_here and not is_small(sum(receipt.spilled_bytes for receipt in read.receipts)):
                raise _NotSmall
        except _NotSmall:
            self._may_be_small = False
            self._read.clear()
            read = batch.read(self, task)
        receipts = sorted(read.receipts, key=lambda receipt: receipt.first_order)
        numbers = {receipt.name: number for number, receipt in enumerate(receipts)}
        for rdd, lefts in self._read:
            # A file that is not the source's may have been read too: `sources.files.unreadable`.
            if any(receipt.name in numbers for left in lefts for receipt in left.receipts):
                self._left += lefts
                self._reads += [] if rdd is None else [rdd]
        partitions = [0] * len(receipts)
        expected = []
        for partition, left in enumerate(self._left):
            of_left = []
            for receipt, checksum in zip(left.receipts, left.checksums, strict=True):
                number = numbers[receipt.name]
                of_left.append(Expected(number, checksum))
                partitions[number] = partition
            expected.append(tuple(of_left))
        self._expected, self._partition_of = tuple(expected), tuple(partitions)
        return replace(read, receipts=receipts)

    @contextmanager
    def file_on_hosts(self, data: bytes, task: ReadTask) -> Iterator[Path]:
        """A file that a task makes on each executor; see `ReadingRun`. An executor that comes later has none."""
        del task  # its folder is the driver's
        path = Path(tempfile.gettempdir(), f"deduper-{secrets.token_hex(8)}")
        try:
            self._tasks.on_each_executor(partial(steps.make_file, path, data))
            steps.make_file(path, data)
            yield path
        finally:
            path.unlink(missing_ok=True)
            try:
                self._tasks.on_each_executor(partial(steps.remove_file, path))
            except (PySparkException, Py4JJavaError, OSError) as exc:
                logger.info("%s stays on a host: %s", path, exc)

    def by_spark(self, tuples: DataFrame, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        """Read records by Spark; see `ReadingRun`."""
        if self._has_read_here:
            raise _NotSmall
        counted = Observation()
        tuples = tuples.observe(counted, F.count(F.lit(1)).alias("rows"))
        records = self._plan.records(tuples, task.clock)
        frame = map_in_arrow(records, steps.read_rows(self._folder, task), "receipt binary")
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(frame)
        lefts: list[Left] = [pickle.loads(row.receipt) for row in frame.collect()]
        reads = unbatched(frame.rdd.mapPartitions(steps.left_of_rows))
        of_partition = {left.partition: left for left in lefts}
        self._read.append((reads, [of_partition.get(number, Left()) for number in range(reads.getNumPartitions())]))
        receipts = [receipt for left in lefts for receipt in left.receipts]
        return receipts, int(counted.get["rows"]) - sum(receipt.left_out for receipt in receipts)

    def plain(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask, *, are_all: bool
    ) -> list[PartRead]:
        """Read each part without Spark; see `ReadingRun`."""
        if not parts:
            return []
        if are_all and self._may_be_small and is_small(sum(part.plain_bytes for part in parts)):
            self._read.append((None, [steps.left_in(task.directory, read_group(read, task, parts))]))
        else:
            self._read.append(self._read_by_tasks(read, parts, task))
        return [part for left in self._read[-1][1] for part in left.parts]

    def _read_by_tasks(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask
    ) -> tuple[RDD[Left], list[Left]]:
        groups = grouped([part.plain_bytes for part in parts], self._context.defaultParallelism)
        given = self._context.parallelize([[parts[place] for place in group] for group in groups], len(groups))
        reading = partial(steps.read_parts, self._folder, read, task)
        reads = unbatched(given.map(reading)).persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(reads)
        return reads, reads.collect()

    def admitted(self, task: ReadTask, readers: Sequence[ReadReceipt]) -> list[Admitted]:
        """The admitted rows of reading tasks with categories: a job of its own, only if a category may be dropped."""
        if not readers:
            return []
        if not self._reads:
            return [admitted_rows(task, receipt.name) for receipt in readers]
        deal = partial(steps.deal_admitted, task, self._expected)
        found = dict(self._all_reads.mapPartitionsWithIndex(deal).collect())
        return [found[number] for number in range(len(readers))]

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """Judge the shards of these views, each where it was judged before; without keys if nothing was read."""
        results = self._judge_dealt(task, views) if self._reads else self._judge_given(task, views)
        self._tasks.judged_on({receipt.shard: ran_on for receipt, ran_on in results})
        return [receipt for receipt, _ in results]

    def _judge_given(self, task: JudgeTask, views: Sequence[ShardView]) -> list[tuple[Receipt, str]]:
        """Judge the keys of a window that the driver has read: one task an executor, which waits for the storage."""
        keys: dict[int, list[tuple[int, bytes]]] = {view.shard: [] for view in views}
        for shard, of_reader in steps.deal_keys(self._expected, len(views), 0, iter(self._left)):
            keys[shard].append(of_reader)
        shards_at: dict[Executor | None, list[tuple[list[tuple[int, bytes]], ShardView]]] = {}
        for view, place in zip(views, self._tasks.places(), strict=True):
            shards_at.setdefault(place, []).append((keys[view.shard], view))
        judging = self._logged_in(partial(steps.judge_shards, task, self._folder))
        of_tasks = located(self._context, list(shards_at.values()), list(shards_at)).map(judging).collect()
        judged = [one for of_task in of_tasks for one in of_task]
        self._verdicts = [blob for one in judged for blob in one.verdicts]
        return [steps.told(one) for one in judged]

    def _judge_dealt(self, task: JudgeTask, views: Sequence[ShardView]) -> list[tuple[Receipt, str]]:
        """Spark's shuffle brings each shard its keys."""
        shards = len(views)
        deal = partial(steps.deal_keys, self._expected, shards)
        placed = located(self._context, views, self._tasks.places())
        dealt = self._all_reads.mapPartitionsWithIndex(deal).partitionBy(shards, _itself)
        keys = dealt.mapPartitions(steps.gathered)
        judging = partial(steps.judge_arrived, task, self._folder.tables)
        judged = unbatched(zipped(unbatched(keys), placed).map(self._logged_in(judging))).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        self._cached.append(judged)
        self._judged = judged
        return judged.map(steps.told).collect()

    def write(self, task: WriteTask) -> list[WriteReceipt]:
        """Write the ports, each reading partition where its records are: on its host, or in the driver."""
        groups = tuple(tuple(sorted(each.reader for each in of)) for of in self._expected)
        task = replace(task, groups=groups)
        if not task.targets or not self._left:
            return []
        if self._judged is None:
            return list(steps.write_arrived(task, self._expected, 0, iter([(self._verdicts, self._left[0])])))
        reads = self._all_reads
        deal = partial(steps.deal_verdicts, self._partition_of)
        back = self._judged.flatMap(deal).partitionBy(len(groups), _itself).mapPartitions(steps.gathered)
        writing = self._logged_in(partial(steps.write_arrived, task, self._expected))
        return zipped(unbatched(back), reads).mapPartitionsWithIndex(writing).collect()

    @property
    def _has_read_here(self) -> bool:
        return any(rdd is None for rdd, _ in self._read)

    @property
    def _all_reads(self) -> RDD[Left]:
        return self._reads[0] if len(self._reads) == 1 else self._context.union(self._reads)


_itself = int
"""The partition that a key names: a built-in, so that the workers import nothing of the job."""
