"""The three steps of a window's judging on the executors of a cluster; see `local` for those of one machine.

    reads   = reading tasks, persisted                 records and keys stay in a folder of the host
    judged  = keys of `reads`, by shard, zipped with the places of the shards; persisted
    write   = verdicts of `judged`, by reading partition, zipped with `reads`: it runs where the records are

Each step is a job. Keys and verdicts go through Spark's shuffle as blobs, never through the driver. Spark runs the
partitions of a lost executor again.

Of a window whose keys take up to `window_sizes.MOST_BYTES` the driver hands over keys and verdicts: the same steps by
tasks that stay on the executors (`spark.standing_tasks`), without a job and a shuffle. Reading is a job all the same if
Spark must do it, or if the records take more. Records stay on the host of their task, as ever. What a lost executor had
to do a job does elsewhere, and a window whose records are gone is judged again.

A small window that is read without Spark needs tasks only to be judged. The driver is its only reading partition: it
reads, gives the tasks their keys, gets the verdicts as their results, and writes. They are standing tasks or those of
a job. Judged in the driver too, it would need tables of every shard on the driver's
host, which no executor would find, and its pieces would be read twice.
"""

from __future__ import annotations

import logging
import pickle
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from bucket_store.tables.view import ShardView
from deduper.sources.protocol import BatchRead, SourceBatch
from deduper.sources.read_plan import Plan
from deduper.spark import placing
from deduper.spark.arrow_map import map_in_arrow
from deduper.spark.hdfs_login import LogsIn
from deduper.spark.placing import located, unbatched, zipped
from deduper.tasks.executors import steps
from deduper.tasks.executors.exchange_blobs import VerdictBlob
from deduper.tasks.executors.host_folder import HostFolder
from deduper.tasks.executors.steps import Expected, Judged, Left
from deduper.tasks.judge import JudgeTask
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows
from deduper.tasks.readers.reading_tasks import Part, PartRead, read_group
from deduper.tasks.receipts import Receipt
from deduper.tasks.write import WriteReceipt, WriteTask, grouped, is_small
from deduper.window.jobs import window_sizes
from deduper.window.jobs.executor_tasks import ExecutorTasks
from deduper.window.jobs.hand_over import taken_over
from deduper.window.jobs.window_sizes import WindowSizes

logger = logging.getLogger(__name__)

_P = TypeVar("_P", bound=Part)


class _NotSmall(Exception):
    """A window for the driver, or for its hands, turns out to be large, or Spark must read some of it."""


class ClusterRun:
    """The jobs of one attempt at a window; a context manager."""

    all_tasks_finished = True
    """Spark may still run a lost task, but none sees the driver's folder."""

    def __init__(
        self,
        session: SparkSession,
        tasks: ExecutorTasks,
        sizes: WindowSizes,
        plan: Plan,
        folder: HostFolder,
        logged_in: LogsIn,
    ) -> None:
        """Use `ClusterJobs.open`."""
        self.session = session
        self._context = session.sparkContext
        self._tasks = tasks
        self._sizes = sizes
        self._logged_in = logged_in
        self._plan = plan
        self._folder = folder
        self._cached: list[Any] = []
        self._read: list[tuple[RDD[Left] | None, list[Left]]] = []
        self._reads: list[RDD[Left]] = []
        self._left: Sequence[Left] = ()
        self._may_read_here = True
        self._is_handed = False
        self._dealt: list[list[tuple[int, tuple[int, bytes]]]] = []
        self._places: Sequence[placing.Executor] = ()
        self._tasks_at: Counter[placing.Executor | None] = Counter()
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
        """Spill the records of a batch; those that the driver reads again by tasks if it is not small."""
        try:
            read = batch.read(self, task)
            size = sum(receipt.spilled_bytes for receipt in read.receipts)
            if self._has_read_here and not self._is_handed and not is_small(size):
                raise _NotSmall
        except _NotSmall:
            self._may_read_here = self._is_handed = False
            self._read.clear()
            read = batch.read(self, task)
        receipts = sorted(read.receipts, key=lambda receipt: receipt.first_order)
        numbers = {receipt.name: number for number, receipt in enumerate(receipts)}
        for rdd, lefts in self._read:
            # A file that is not the source's may have been read too: `sources.files.unreadable`.
            if any(receipt.name in numbers for left in lefts for receipt in left.receipts):
                self._left = (*self._left, *lefts)
                self._reads += [] if rdd is None else [rdd]
        if self._reads:
            self._hand_over(task)
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

    def _hand_over(self, task: ReadTask) -> None:
        """Leave the next steps of a window that jobs have read to standing tasks, if they can take all of it."""
        readers = sum(len(left.receipts) for left in self._left)
        if not self._sizes.keys_fit_driver(sum(left.key_bytes for left in self._left), readers):
            return
        tasks = self._tasks.window_tasks()
        taken = taken_over(self._left, tasks)
        if not taken:
            self._tasks.free_cores()
            return
        self._is_handed = True
        self._reads.clear()
        self._tasks_at = Counter(place for place, _ in tasks)
        self._places, self._left = zip(*taken, strict=True)
        self._dealt = self._tasks.at_places(partial(steps.dealt, task.shards), self._left, self._places)

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
        self._tasks.free_cores()
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
        if are_all and self._may_read_here and self._sizes.is_small(parts):
            self._read.append((None, [steps.left_in(task.directory, read_group(read, task, parts))]))
        elif are_all and self._may_read_here and (places := self._places_for(parts)):
            self._read.append((None, self._read_at_places(read, parts, task, places)))
        else:
            self._read.append(self._read_by_tasks(read, parts, task))
        _, lefts = self._read[-1]
        self._sizes.learn(parts, sum(receipt.spilled_bytes for left in lefts for receipt in left.receipts))
        return [part for left in lefts for part in left.parts]

    def _places_for(self, parts: Sequence[Part]) -> Sequence[placing.Executor]:
        """Those of the tasks for a window whose keys the driver hands over; none if it does not."""
        return self._tasks.window_places() if self._sizes.fits_driver(parts) else ()

    def _read_at_places(
        self,
        read: Callable[[ReadTask, _P], PartRead],
        parts: Sequence[_P],
        task: ReadTask,
        places: Sequence[placing.Executor],
    ) -> list[Left]:
        self._is_handed = True
        self._tasks_at = Counter(places)
        groups = grouped([part.plain_bytes for part in parts], len(places))
        self._places = places[: len(groups)]
        reading = partial(steps.read_and_deal, self._folder, window_sizes.MOST_BYTES // len(groups), read, task)
        done = self._tasks.at_places(reading, [[parts[place] for place in group] for group in groups], self._places)
        self._dealt = [keys for _, keys in done if keys is not None]
        if len(self._dealt) < len(done):
            raise _NotSmall
        return [left for left, _ in done]

    def _read_by_tasks(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask
    ) -> tuple[RDD[Left], list[Left]]:
        self._tasks.free_cores()
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
        if self._is_handed:
            giving = partial(steps.admitted_given, task, self._expected)
            of_lefts = self._tasks.at_places(giving, list(enumerate(self._left)), self._places)
            found = dict(one for of_left in of_lefts for one in of_left)
            return [found[number] for number in range(len(readers))]
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
        """Judge keys that the driver has: the tasks of an executor get those of its shards, and return the verdicts.

        One is enough for a small window, whose judging waits for the storage.
        """
        keys: dict[int, list[tuple[int, bytes]]] = {view.shard: [] for view in views}
        for shard, of_reader in self._keys_here(len(views)):
            keys[shard].append(of_reader)
        self._dealt.clear()
        shards_at: dict[placing.Executor | None, list[tuple[list[tuple[int, bytes]], ShardView]]] = {}
        for view, place in zip(views, self._tasks.places(), strict=True):
            shards_at.setdefault(place, []).append((keys[view.shard], view))
        given = [
            (place, shards[first::tasks])
            for place, shards in shards_at.items()
            for tasks in (min(len(shards), max(1, self._tasks_at[place])),)
            for first in range(tasks)
        ]
        judging = partial(steps.judge_shards, task, self._folder, read_here=self._is_handed)
        of_tasks = self._tasks.at_places(
            self._logged_in(judging), [shards for _, shards in given], [place for place, _ in given]
        )
        judged = [one for of_task in of_tasks for one in of_task]
        self._verdicts = [blob for one in judged for blob in one.verdicts]
        return [steps.told(one) for one in judged]

    def _keys_here(self, shards: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
        """(shard, (reader, keys)) of a window whose keys the driver has."""
        if not self._is_handed:
            return steps.deal_keys(self._expected, shards, 0, iter(self._left))
        return (
            (shard, (expected[number].reader, keys))
            for expected, dealt in zip(self._expected, self._dealt, strict=False)
            for shard, (number, keys) in dealt
        )

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
        written = self._write(task)
        self._tasks.free_cores_to_make(
            {file.port for receipt in written for file in receipt.files}, large=self._is_handed
        )
        return written

    def _write(self, task: WriteTask) -> list[WriteReceipt]:
        groups = tuple(tuple(sorted(each.reader for each in of)) for of in self._expected)
        task = replace(task, groups=groups)
        if not task.targets or not self._left:
            return []
        if self._is_handed:
            return self._write_given(task)
        if self._judged is None:
            return list(steps.write_arrived(task, self._expected, 0, iter([(self._verdicts, self._left[0])])))
        reads = self._all_reads
        deal = partial(steps.deal_verdicts, self._partition_of)
        back = self._judged.flatMap(deal).partitionBy(len(groups), _itself).mapPartitions(steps.gathered)
        writing = self._logged_in(partial(steps.write_arrived, task, self._expected))
        return zipped(unbatched(back), reads).mapPartitionsWithIndex(writing).collect()

    def _write_given(self, task: WriteTask) -> list[WriteReceipt]:
        """Each task gets the verdicts of what it has read."""
        verdicts: list[list[VerdictBlob]] = [[] for _ in self._left]
        for blob in self._verdicts:
            verdicts[self._partition_of[blob.reader]].append(blob)
        given = [(partition, verdicts[partition], left) for partition, left in enumerate(self._left)]
        writing = self._logged_in(partial(steps.write_given, task, self._expected))
        return [receipt for of_left in self._tasks.at_places(writing, given, self._places) for receipt in of_left]

    @property
    def _has_read_here(self) -> bool:
        return any(rdd is None for rdd, _ in self._read)

    @property
    def _all_reads(self) -> RDD[Left]:
        return self._reads[0] if len(self._reads) == 1 else self._context.union(self._reads)


_itself = int
"""The partition that a key names: a built-in, so that the workers import nothing of the job."""
