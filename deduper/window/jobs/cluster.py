"""The three steps of a window's judging on the executors of a cluster; see `local` for those of one machine.

    reads   = reading tasks, persisted                 records and keys stay in a folder of the host
    judged  = keys of `reads`, by shard, zipped with the places of the shards; persisted
    write   = verdicts of `judged`, by reading partition, zipped with `reads`: it runs where the records are

Each step is a job. Keys and verdicts go through Spark's shuffle as blobs, never through the driver. Spark runs the
partitions of a lost executor again.

A small window of files or topics has one job. The driver is its only reading partition: it reads, the payloads
of the job are the keys, its results are the verdicts, and the driver writes. Judged in the driver too, it would need
tables of every shard on the driver's host, which no executor would find, and its pieces would be read twice.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from bucket_store.tables.generation import table_folder
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.sources.protocol import Parts, Records, SparkRows
from deduper.spark import placing
from deduper.spark.dataframes import map_in_arrow
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.placing import Executor, Executors, ShardPlaces, located, unbatched, zipped
from deduper.tasks.executors import steps
from deduper.tasks.executors.steps import Expected, HostFolder, JudgedShard, ReadPartition, VerdictBlob
from deduper.tasks.judge import JudgeTask, Receipt
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows
from deduper.tasks.readers.reading_tasks import PartRead, SourcePart, read_by_spark, read_group, receipts_of
from deduper.tasks.write import WriterReceipt, WriteTask, grouped, is_small
from deduper.window.jobs.executor_watch import ExecutorWatch
from deduper.window.table_folder import table_room

logger = logging.getLogger(__name__)

_P = TypeVar("_P", bound=SourcePart)


class ExecutorTasks:
    """Chooses the executors of tasks, and warns while there is none. For one thread, except `last_places`.

    `last_places` are the shards' executors in the last window. The list is replaced, so any thread may read it.
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
        """Call a function, with 0, in one task for each executor; another one may run the task of a busy one."""
        executors = self._executors.alive()
        located(self._context, [0] * len(executors), executors).foreach(function)

    def close(self) -> None:
        """End the watch. Jobs may still run after it. Safe to repeat."""
        self._watch.close()


def _wanted(settings: Mapping[str, str]) -> str:
    cores = settings.get("spark.executor.cores")
    memory = settings.get("spark.executor.memory", "1g")
    return f"an executor of {memory}{f' and {cores} cores' if cores else ''} from {settings.get('spark.master')}"


class ClusterJobs:
    """The jobs on a session whose executors are other processes."""

    def __init__(self, session: SparkSession, config: Config, store_id: str, logged_in: LogsIn = needs_none) -> None:
        """`logged_in` is for tasks that use the store or the ports."""
        self.session = session
        self.logged_in = logged_in
        self.tasks = ExecutorTasks(session.sparkContext, config.store.shards)
        self._store_folder = table_folder(store_id, config.store.place)
        self._tables = table_room(config)
        self._last: HostFolder | None = None

    def open(self, epoch: int, attempt: int) -> ClusterRun:
        """The jobs of one attempt at a window."""
        self._last = HostFolder(self._store_folder, epoch, attempt, self._tables)
        return ClusterRun(self.session, self.tasks, self._last, self.logged_in)

    def close(self) -> None:
        """After the last window: try to remove its folders on all hosts. Safe to repeat."""
        self.tasks.close()
        last, self._last = self._last, None
        if last is None:
            return
        try:
            self.tasks.on_each_executor(partial(steps.remove_folders, last))
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("records of the last window stay on their hosts until another job finds them: %s", exc)


class ClusterRun:
    """The jobs of one attempt at a window; a context manager."""

    def __init__(self, session: SparkSession, tasks: ExecutorTasks, folder: HostFolder, logged_in: LogsIn) -> None:
        """Use `ClusterJobs.open`."""
        self.session = session
        self._context = session.sparkContext
        self._tasks = tasks
        self._logged_in = logged_in
        self._folder = folder
        self._cached: list[Any] = []
        self._reads: RDD[ReadPartition] | None = None
        self._left: list[ReadPartition] = []
        self._verdicts: list[VerdictBlob] = []
        self._expected: tuple[tuple[Expected, ...], ...] = ()
        self._partition_of: tuple[int, ...] = ()
        self._judged: RDD[JudgedShard] | None = None

    @property
    def finished_reads(self) -> Sequence[str]:
        """See `WindowRun`. Spark may still run a lost task, but no task uses the driver's folder."""
        return () if self._reads is not None else [receipt.name for left in self._left for receipt in left.receipts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            placing.forget(self._cached)
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("cached partitions are not freed: %s", exc)

    def read(self, records: Records, task: ReadTask) -> list[PartRead]:
        """Spill the records of a batch: in the driver if they are small, else by a job."""
        if isinstance(records, SparkRows):
            self._reads, self._left, rows = self._read_rows(records, task)
            found = read_by_spark([receipt for left in self._left for receipt in left.receipts], rows)
        else:
            if not self._is_read_here(records, task):
                self._reads, self._left = self._read_parts(records, task)
            found = [part for left in self._left for part in left.parts]
        self._expect(receipts_of(found))
        return found

    def _is_read_here(self, records: Parts[_P], task: ReadTask) -> bool:
        """Read small records in the driver; true if that was done. Records that turn out large are left to a job."""
        if not is_small(sum(part.decoded_bytes for part in records.parts)):
            return False
        records.expect(records.parts)
        left = steps.left_in(task.directory, read_group(records.read, task, records.parts))
        if not is_small(sum(receipt.spilled_bytes for receipt in left.receipts)):
            return False
        self._left = [left]
        return True

    def _expect(self, receipts: Sequence[ReadReceipt]) -> None:
        """Number the receipts of the reading partitions in source order."""
        numbers = {receipt.name: number for number, receipt in enumerate(receipts)}
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

    def _read_rows(self, rows: SparkRows, task: ReadTask) -> tuple[RDD[ReadPartition], list[ReadPartition], int]:
        """Read the rows of a DataFrame by a job; also gives the number of rows that Spark has counted."""
        counted = Observation()
        frame = rows.frame.observe(counted, F.count(F.lit(1)).alias("rows"))
        reading = steps.read_rows(self._folder, replace(task, places=rows.places))
        frame = map_in_arrow(frame, reading, "receipt binary").persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(frame)
        lefts: list[ReadPartition] = [pickle.loads(row.receipt) for row in frame.collect()]
        reads = unbatched(frame.rdd.mapPartitions(steps.left_of_rows))
        of_partition = {left.partition: left for left in lefts}
        found = [of_partition.get(number, ReadPartition()) for number in range(reads.getNumPartitions())]
        return reads, found, int(counted.get["rows"])

    def _read_parts(self, records: Parts[_P], task: ReadTask) -> tuple[RDD[ReadPartition], list[ReadPartition]]:
        parts = records.parts
        groups = grouped([part.decoded_bytes for part in parts], self._context.defaultParallelism)
        given = self._context.parallelize([[parts[place] for place in group] for group in groups], len(groups))
        reading = partial(steps.read_parts, self._folder, records.read, task)
        reads = unbatched(given.map(reading)).persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(reads)
        return reads, reads.collect()

    def admitted(self, task: ReadTask, readers: Sequence[ReadReceipt]) -> list[Admitted]:
        """The admitted rows of reading tasks with categories: a job of its own, only if a category may be dropped."""
        if not readers:
            return []
        if self._reads is None:
            return [admitted_rows(task, receipt.name) for receipt in readers]
        deal = partial(steps.deal_admitted, task, self._expected)
        found = dict(self._reads.mapPartitionsWithIndex(deal).collect())
        return [found[number] for number in range(len(readers))]

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """Judge the shards of these views, each where it was judged before; without keys if nothing was read."""
        reads = self._reads
        results = self._judge_given(task, views) if reads is None else self._judge_shuffled(task, views, reads)
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
        return [steps.receipt_of(one) for one in judged]

    def _judge_shuffled(
        self, task: JudgeTask, views: Sequence[ShardView], reads: RDD[ReadPartition]
    ) -> list[tuple[Receipt, str]]:
        """Judge by a job whose keys Spark's shuffle deals to the shards."""
        shards = len(views)
        deal = partial(steps.deal_keys, self._expected, shards)
        placed = located(self._context, views, self._tasks.places())
        by_shard = reads.mapPartitionsWithIndex(deal).partitionBy(shards, _itself)
        keys = by_shard.mapPartitions(steps.as_list)
        judging = partial(steps.judge_arrived, task, self._folder.tables)
        judged = unbatched(zipped(unbatched(keys), placed).map(self._logged_in(judging))).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        self._cached.append(judged)
        self._judged = judged
        return judged.map(steps.receipt_of).collect()

    def write(self, task: WriteTask) -> list[WriterReceipt]:
        """Write the ports, each reading partition where its records are: on its host, or in the driver."""
        groups = tuple(tuple(sorted(each.reader for each in of)) for of in self._expected)
        task = replace(task, groups=groups)
        if not task.targets or not self._left:
            return []
        if self._judged is None or self._reads is None:
            return list(steps.write_arrived(task, self._expected, 0, iter([(self._verdicts, self._left[0])])))
        deal = partial(steps.deal_verdicts, self._partition_of)
        back = self._judged.flatMap(deal).partitionBy(len(groups), _itself).mapPartitions(steps.as_list)
        writing = self._logged_in(partial(steps.write_arrived, task, self._expected))
        return zipped(unbatched(back), self._reads).mapPartitionsWithIndex(writing).collect()


_itself = int
"""The partition that a key names: a built-in, so that the workers import nothing of the job."""
