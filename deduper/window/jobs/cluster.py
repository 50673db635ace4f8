"""The three steps of a window's judging on the executors of a cluster; see `jobs` for those of one machine.

    reads   = reading tasks, persisted                 records and keys stay in a folder of the host
    judged  = keys of `reads`, by shard, zipped with the places of the shards; persisted
    write   = verdicts of `judged`, by reading partition, zipped with `reads`: it runs where the records are

Each step is a job. Keys and verdicts go through Spark's shuffle as blobs, never through the driver. Spark runs the
partitions of a lost executor again.

Where executors have one core, the driver hands over the keys and verdicts of a window up to `_MOST_BYTES` that is read
without Spark: the same steps by tasks that stay on the executors (`spark.standing_tasks`), without a job and a shuffle.
Records stay on the host of their task, as ever. What a lost executor had to do a job does elsewhere, and a window whose
records are gone is judged again.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
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
from deduper.spark.hdfs_login import LogsIn, needs_none
from deduper.spark.placing import Executors, ShardPlaces, located, unbatched, zipped
from deduper.spark.standing_tasks import StandingTasks, TasksLostError
from deduper.spark_promises import DEFAULT_MASTER, have_spare_cores
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

_MOST_BLOBS = 4096
"""Pairs of part and shard in a window whose blobs the driver holds: one has up to 1 KB beside its rows."""
_MOST_BYTES = 192 << 20
"""Records of a window whose keys the driver hands over, 29 bytes a row; and these keys."""
_NO_TASKS_WITH = ("spark.authenticate", "spark.ssl.rpc.enabled", "spark.dynamicAllocation.enabled")
_P = TypeVar("_P", bound=Part)
_T = TypeVar("_T")
_Payload = TypeVar("_Payload")


class _NotSmall(Exception):
    """A window for the driver, or for its hands, turns out to be large, or Spark must read some of it."""


class ClusterJobs:
    """The jobs on a session whose executors are other processes."""

    def __init__(
        self, session: SparkSession, config: Config, store_id: str, salt: bytes, logged_in: LogsIn = needs_none
    ) -> None:
        """`logged_in` is for tasks that use the store or the ports."""
        self.session = session
        self._config = config
        self._store_folder = table_folder(store_id, config.store.place)
        self._plan = ReadPlan(session, config, salt)
        self._tables = table_room(config)
        self._executors = Executors(session.sparkContext)
        self._standing: StandingTasks | None = None
        settings = dict(session.sparkContext.getConf().getAll())
        self._have_one_core = not _have_spare_cores(settings)
        if tasks_may_stay(settings, config):
            self._standing = StandingTasks(session.sparkContext, self._executors)
        self.logged_in = logged_in
        self._watch = ExecutorWatch(Executors(session.sparkContext).alive, _wanted(settings))
        self._watch.start()
        self._places = ShardPlaces(config.store.shards)
        self._ran_on: dict[int, str] = {}
        self.last_places: list[placing.Executor | None] = []
        """The places of the shards in the last window. Safe for all threads: the list is replaced."""
        self._growth = 1.0
        self._last: HostFolder | None = None

    def open(self, epoch: int, attempt: int) -> ClusterRun:
        """The jobs of one attempt at a window."""
        self._last = HostFolder(self._store_folder, epoch, attempt, self._tables)
        return ClusterRun(self, self._plan, self._last)

    def is_small(self, parts: Sequence[Part]) -> bool:
        """Whether a window of these parts alone has one job."""
        size = self._growth * sum(part.plain_bytes for part in parts)
        return is_small(int(size)) and len(parts) * self._config.store.shards <= _MOST_BLOBS

    def hands_over(self, parts: Sequence[Part]) -> bool:
        """Whether the driver hands over the keys of a window of these parts alone, and its verdicts.

        Not where executors have several cores: there is one standing task on each. Nor by jobs: the way of a job's
        payload is long.
        """
        if self._standing is None or not self._have_one_core or not self._standing.may_begin:
            return False
        size = self._growth * sum(part.plain_bytes for part in parts)
        return size <= _MOST_BYTES and len(parts) * self._config.store.shards <= _MOST_BLOBS

    def learn(self, parts: Sequence[Part], spilled_bytes: int) -> None:
        """The records of these parts have become so many bytes; packed ones may be much smaller."""
        size = sum(part.plain_bytes for part in parts)
        self._growth = 1.0 if is_small(spilled_bytes) else max(1.0, spilled_bytes / max(1, size))

    def judged_on(self, ran_on: dict[int, str]) -> None:
        """Note which process judged each shard, and log how many are where they were a window ago."""
        stayed = sum(self._ran_on.get(shard) == process for shard, process in ran_on.items())
        if self._ran_on and stayed < len(ran_on):
            logger.info("%d of %d shards were judged where they were in the window before", stayed, len(ran_on))
        self._ran_on = ran_on

    def places(self) -> list[placing.Executor | None]:
        """The place of each shard in the next window. None: no executor is there."""
        self.last_places = self._places.on(self._executors.alive())
        return self.last_places

    def executors(self) -> list[placing.Executor]:
        """Those that are there."""
        return self._executors.alive()

    def at_places(
        self,
        function: Callable[[_Payload], _T],
        payloads: Sequence[_Payload],
        places: Sequence[placing.Executor | None],
    ) -> list[_T]:
        """The results of a function, by a task at each place: one that stays, if that is possible, or one of a job."""
        known = [place for place in places if place is not None]
        if self._standing is not None and len(known) == len(places):
            with suppress(TasksLostError):  # logged; a job may run them anywhere, and repeat them
                return self._standing.map(function, payloads, known)
        return located(self.session.sparkContext, payloads, places).map(function).collect()

    def free_cores(self) -> None:
        """End the tasks that stay: a job is to come."""
        if self._standing is not None:
            self._standing.end()

    def on_each_executor(self, function: Callable[[int], None]) -> None:
        """Call a function, with 0, in a task on each executor; a busy one may have it done by another."""
        self.free_cores()
        executors = self._executors.alive()
        located(self.session.sparkContext, [0] * len(executors), executors).foreach(function)

    def close(self) -> None:
        """No window comes any more: remove the last one's folders, if that can be. Safe to repeat."""
        self._watch.close()
        if self._standing is not None:
            self._standing.close()
        last, self._last = self._last, None
        if last is None:
            return
        try:
            self.on_each_executor(partial(steps.remove_folders, last))
        except (PySparkException, Py4JJavaError, OSError) as exc:
            logger.info("records of the last window stay on their hosts until another job finds them: %s", exc)


class ClusterRun:
    """The jobs of one attempt at a window; a context manager."""

    all_tasks_finished = True
    """Spark may still run a lost task, but none sees the driver's folder."""

    def __init__(self, jobs: ClusterJobs, plan: ReadPlan, folder: HostFolder) -> None:
        """Use `ClusterJobs.open`."""
        self.session = jobs.session
        self._context = jobs.session.sparkContext
        self._jobs = jobs
        self._plan = plan
        self._folder = folder
        self._cached: list[Any] = []
        self._read: list[tuple[RDD[Left] | None, list[Left]]] = []
        self._reads: list[RDD[Left]] = []
        self._left: list[Left] = []
        self._may_read_here = True
        self._is_handed = False
        self._dealt: list[list[tuple[int, tuple[int, bytes]]]] = []
        self._places: list[placing.Executor] = []
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
            self._jobs.on_each_executor(partial(steps.make_file, path, data))
            steps.make_file(path, data)
            yield path
        finally:
            path.unlink(missing_ok=True)
            try:
                self._jobs.on_each_executor(partial(steps.remove_file, path))
            except (PySparkException, Py4JJavaError, OSError) as exc:
                logger.info("%s stays on a host: %s", path, exc)

    def by_spark(self, tuples: DataFrame, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        """Read records by Spark; see `ReadingRun`."""
        if self._has_read_here:
            raise _NotSmall
        self._jobs.free_cores()
        counted = Observation()
        tuples = tuples.observe(counted, F.count(F.lit(1)).alias("rows"))
        records = self._plan.records(tuples, task.clock)
        function: Any = vectorized_udf(
            steps.read_rows(self._folder, task),
            returnType="receipt binary",
            functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        )
        column = function(*records.columns)
        frame = DataFrame(records._jdf.mapInArrow(column._jc, False, None), self.session)
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
        if are_all and self._may_read_here and self._jobs.is_small(parts):
            self._read.append((None, [steps.left_in(task.directory, read_group(read, task, parts))]))
        elif are_all and self._may_read_here and self._jobs.hands_over(parts) and self._jobs.executors():
            self._read.append((None, self._read_at_places(read, parts, task)))
        else:
            self._read.append(self._read_by_tasks(read, parts, task))
        _, lefts = self._read[-1]
        self._jobs.learn(parts, sum(receipt.spilled_bytes for left in lefts for receipt in left.receipts))
        return [part for left in lefts for part in left.parts]

    def _read_at_places(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask
    ) -> list[Left]:
        self._is_handed = True
        executors = self._jobs.executors()
        groups = grouped([part.plain_bytes for part in parts], len(executors))
        self._places = executors[: len(groups)]
        reading = partial(steps.read_and_deal, self._folder, _MOST_BYTES // len(groups), read, task)
        done = self._jobs.at_places(reading, [[parts[place] for place in group] for group in groups], self._places)
        self._dealt = [keys for _, keys in done if keys is not None]
        if len(self._dealt) < len(done):
            raise _NotSmall
        return [left for left, _ in done]

    def _read_by_tasks(
        self, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P], task: ReadTask
    ) -> tuple[RDD[Left], list[Left]]:
        self._jobs.free_cores()
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
            of_lefts = self._jobs.at_places(giving, list(enumerate(self._left)), self._places)
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
        self._jobs.judged_on({receipt.shard: ran_on for receipt, ran_on in results})
        return [receipt for receipt, _ in results]

    def _judge_given(self, task: JudgeTask, views: Sequence[ShardView]) -> list[tuple[Receipt, str]]:
        """Judge keys that the driver has: one task an executor gets those of its shards, and returns the verdicts."""
        keys: dict[int, list[tuple[int, bytes]]] = {view.shard: [] for view in views}
        for shard, of_reader in self._keys_here(len(views)):
            keys[shard].append(of_reader)
        self._dealt.clear()
        shards_at: dict[placing.Executor | None, list[tuple[list[tuple[int, bytes]], ShardView]]] = {}
        for view, place in zip(views, self._jobs.places(), strict=True):
            shards_at.setdefault(place, []).append((keys[view.shard], view))
        judging = partial(steps.judge_shards, task, self._folder, read_here=self._is_handed)
        of_executors = self._jobs.at_places(self._jobs.logged_in(judging), list(shards_at.values()), list(shards_at))
        judged = [one for of_executor in of_executors for one in of_executor]
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
        placed = located(self._context, views, self._jobs.places())
        dealt = self._all_reads.mapPartitionsWithIndex(deal).partitionBy(shards, _itself)
        keys = dealt.mapPartitions(steps.gathered)
        judging = partial(steps.judge_arrived, task, self._folder.tables)
        judged = unbatched(zipped(unbatched(keys), placed).map(self._jobs.logged_in(judging))).persist(
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
        if self._is_handed:
            return self._write_given(task)
        if self._judged is None:
            return list(steps.write_arrived(task, self._expected, 0, iter([(self._verdicts, self._left[0])])))
        reads = self._all_reads
        deal = partial(steps.deal_verdicts, self._partition_of)
        back = self._judged.flatMap(deal).partitionBy(len(groups), _itself).mapPartitions(steps.gathered)
        writing = self._jobs.logged_in(partial(steps.write_arrived, task, self._expected))
        return zipped(unbatched(back), reads).mapPartitionsWithIndex(writing).collect()

    def _write_given(self, task: WriteTask) -> list[WriteReceipt]:
        """Each task gets the verdicts of what it has read."""
        verdicts: list[list[VerdictBlob]] = [[] for _ in self._left]
        for blob in self._verdicts:
            verdicts[self._partition_of[blob.reader]].append(blob)
        given = [(partition, verdicts[partition], left) for partition, left in enumerate(self._left)]
        writing = self._jobs.logged_in(partial(steps.write_given, task, self._expected))
        return [receipt for of_left in self._jobs.at_places(writing, given, self._places) for receipt in of_left]

    @property
    def _has_read_here(self) -> bool:
        return any(rdd is None for rdd, _ in self._read)

    @property
    def _all_reads(self) -> RDD[Left]:
        return self._reads[0] if len(self._reads) == 1 else self._context.union(self._reads)


def tasks_may_stay(settings: Mapping[str, str], config: Config) -> bool:
    """Whether tasks may stay on the executors of a session with these settings. PURE.

    Not if their connections would be less safe than Spark's own, or if an executor would never be given back because
    it is never idle. They must leave a core to every job that comes while they stay: a port that Spark writes has one.
    """
    if any(settings.get(name) == "true" for name in _NO_TASKS_WITH):
        return False
    if _have_spare_cores(settings):
        return settings.get("spark.task.cpus", "1") == "1"
    by_spark = any(sink.format != "parquet" for sink in config.file_ports.values())
    return not by_spark and all(sink.delivery == "exactly_once" for sink in config.topic_ports.values())


def _have_spare_cores(settings: Mapping[str, str]) -> bool:
    return have_spare_cores(settings.get("spark.master", DEFAULT_MASTER), settings.get("spark.executor.cores"))


def _wanted(settings: Mapping[str, str]) -> str:
    cores = settings.get("spark.executor.cores")
    memory = settings.get("spark.executor.memory", "1g")
    return f"an executor of {memory}{f' and {cores} cores' if cores else ''} from {settings.get('spark.master')}"


_itself = int
"""The partition that a key names: a built-in, so that the workers import nothing of the job."""
