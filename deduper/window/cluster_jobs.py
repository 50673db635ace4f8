"""The three steps of a window's judging on the executors of a cluster; see `jobs` for those of one machine.

    reads   = reading tasks, persisted                 records and keys stay in a folder of the host
    judged  = keys of `reads`, by shard, zipped with the places of the shards; persisted
    write   = verdicts of `judged`, by reading partition, zipped with `reads`: it runs where the records are

Each step is a job. Keys and verdicts go through Spark's shuffle as blobs, never through the driver. Spark runs the
partitions of a lost executor again. Windows of any size go this way: a small one judged in the driver would need tables
of every shard on the driver's host, which no executor would find, and its pieces would be read twice.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
from pyspark.util import PythonEvalType

from bucket_store.tables.generation import table_folder
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.sources.protocol import BatchRead, SourceBatch
from deduper.sources.read_plan import ReadPlan
from deduper.spark import placing
from deduper.spark.placing import Executors, ShardPlaces, located, unbatched, zipped
from deduper.tasks import on_executors
from deduper.tasks.host_folder import HostFolder
from deduper.tasks.judge import JudgeTask
from deduper.tasks.on_executors import Expected, Judged, Left
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask
from deduper.tasks.readers.reading_tasks import Part, PartRead
from deduper.tasks.receipts import Receipt
from deduper.tasks.write import WriteReceipt, WriteTask, grouped
from deduper.window.table_folder import table_room

logger = logging.getLogger(__name__)

_P = TypeVar("_P", bound=Part)


class ClusterJobs:
    """The jobs on a session whose executors are other processes. `stayed`, `moved`: see `stayed_put`."""

    def __init__(self, session: SparkSession, config: Config, store_id: str, salt: bytes) -> None:
        self.session = session
        self._config = config
        self._store_folder = table_folder(store_id, config.store.place)
        self._plan = ReadPlan(session, config, salt)
        self._tables = table_room(config)
        self._executors = Executors(session.sparkContext)
        self._places = ShardPlaces(config.store.shards)
        self._ran_on: dict[int, str] = {}
        self._last: HostFolder | None = None

    def open(self, epoch: int, attempt: int) -> ClusterRun:
        """The jobs of one attempt at a window."""
        self._last = HostFolder(self._store_folder, epoch, attempt, self._tables)
        return ClusterRun(self, self._plan, self._last)

    def judged_on(self, ran_on: dict[int, str]) -> None:
        """Note which process judged each shard, and log how many are where they were a window ago."""
        stayed = sum(self._ran_on.get(shard) == process for shard, process in ran_on.items())
        if self._ran_on and stayed < len(ran_on):
            logger.info("%d of %d shards were judged where they were in the window before", stayed, len(ran_on))
        self._ran_on = ran_on

    def places(self) -> list[placing.Executor | None]:
        """The place of each shard in the next window."""
        return self._places.on(self._executors.alive())

    def close(self) -> None:
        """No window comes any more: remove the last one's folders, if that can be. Safe to repeat."""
        last, self._last = self._last, None
        if last is None:
            return
        try:
            executors = self._executors.alive()
            rdd = located(self.session.sparkContext, [0] * len(executors), executors)
            rdd.foreach(partial(on_executors.remove_folders, last))
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("records of the last window stay on their hosts until another job finds them: %s", exc)


class ClusterRun:
    """The jobs of one attempt at a window; a context manager."""

    all_tasks_finished = False
    """Spark may still run a lost task; no folder of the driver's is in use anyway."""

    def __init__(self, jobs: ClusterJobs, plan: ReadPlan, folder: HostFolder) -> None:
        """Use `ClusterJobs.open`."""
        self.session = jobs.session
        self._context = jobs.session.sparkContext
        self._jobs = jobs
        self._plan = plan
        self._folder = folder
        self._cached: list[Any] = []
        self._reads: list[RDD[Left]] = []
        self._left: list[Left] = []
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
        """Spill the records of a batch."""
        read = batch.read(self, task)
        receipts = sorted(read.receipts, key=lambda receipt: receipt.first_order)
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
        return replace(read, receipts=receipts)

    def by_spark(self, tuples: DataFrame, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        """Read records by Spark; see `ReadingRun`."""
        counted = Observation()
        tuples = tuples.observe(counted, F.count(F.lit(1)).alias("rows"))
        records = self._plan.records(tuples, task.clock)
        function: Any = vectorized_udf(
            on_executors.read_rows(self._folder, task),
            returnType="receipt binary",
            functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        )
        column = function(*records.columns)
        frame = DataFrame(records._jdf.mapInArrow(column._jc, False, None), self.session)
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(frame)
        lefts: list[Left] = [pickle.loads(row.receipt) for row in frame.collect()]
        reads = unbatched(frame.rdd.mapPartitions(on_executors.left_of_rows))
        of_partition = {left.partition: left for left in lefts}
        self._reads.append(reads)
        self._left += [of_partition.get(number, Left()) for number in range(reads.getNumPartitions())]
        receipts = [receipt for left in lefts for receipt in left.receipts]
        return receipts, int(counted.get["rows"]) - sum(receipt.left_out for receipt in receipts)

    def plain(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask, *, have_pool: bool
    ) -> list[PartRead]:
        """Read each part without Spark; see `ReadingRun`."""
        del have_pool
        if not parts:
            return []
        groups = grouped([part.plain_bytes for part in parts], self._context.defaultParallelism)
        given = self._context.parallelize([[parts[place] for place in group] for group in groups], len(groups))
        reading = partial(on_executors.read_parts, self._folder, read, task)
        reads = unbatched(given.map(reading)).persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(reads)
        lefts = reads.collect()
        self._reads.append(reads)
        self._left += lefts
        return [part for left in lefts for part in left.parts]

    def admitted(self, task: ReadTask, readers: Sequence[ReadReceipt]) -> list[Admitted]:
        """The admitted rows of reading tasks with categories: a job of its own, only if a category may be dropped."""
        if not readers:
            return []
        deal = partial(on_executors.deal_admitted, task, self._expected)
        found = dict(self._all_reads.mapPartitionsWithIndex(deal).collect())
        return [found[number] for number in range(len(readers))]

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """Judge the shards of these views, each where it was judged before."""
        shards = len(views)
        deal = partial(on_executors.deal_keys, self._expected, shards)
        placed = located(self._context, views, self._jobs.places())
        if self._reads:
            dealt = self._all_reads.mapPartitionsWithIndex(deal).partitionBy(shards, _itself)
            keys = dealt.mapPartitions(on_executors.gathered)
        else:
            keys = self._context.parallelize([[] for _ in range(shards)], shards)
        judging = partial(on_executors.judge_arrived, task, self._folder.tables)
        judged = unbatched(zipped(unbatched(keys), placed).map(judging)).persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(judged)
        self._judged = judged
        results = judged.map(on_executors.told).collect()
        self._jobs.judged_on({receipt.shard: ran_on for receipt, ran_on in results})
        return [receipt for receipt, _ in results]

    def write(self, task: WriteTask) -> list[WriteReceipt]:
        """Write the ports, each reading partition where its records are."""
        if not task.targets or self._judged is None or not self._reads:
            return []
        groups = tuple(tuple(sorted(each.reader for each in of)) for of in self._expected)
        reads = self._all_reads
        deal = partial(on_executors.deal_verdicts, self._partition_of)
        back = self._judged.flatMap(deal).partitionBy(len(groups), _itself).mapPartitions(on_executors.gathered)
        writing = partial(on_executors.write_arrived, replace(task, groups=groups), self._expected)
        return zipped(unbatched(back), reads).mapPartitionsWithIndex(writing).collect()

    @property
    def _all_reads(self) -> RDD[Left]:
        return self._reads[0] if len(self._reads) == 1 else self._context.union(self._reads)


_itself = int
"""The partition that a key names: a built-in, so that the workers import nothing of the job."""
