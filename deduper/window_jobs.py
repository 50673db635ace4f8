"""The three steps of a window's judging on Spark: read, judge, write. Each gives the receipts of its tasks.

    read    one task a source partition: Catalyst reads, parses and digests; Python sets the records aside. Of plain
            Parquet one task a core, each with some neighbouring files
    judge   one task a shard
    write   some tasks, each with some source partitions; no job for what is written sooner than one would start

The last two have no plan: they are functions over numbers, so nothing is analysed or compiled for them. Neither has the
first where the files are plain Parquet (`parquet_records`); then the tasks of one job do all three (`crew`), otherwise
each step is a job of its own.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
from pyspark.util import PythonEvalType

from deduper.aside import OneThread
from deduper.config import Config
from deduper.crew import Crew
from deduper.file_batch import FileBatch
from deduper.judge_plan import ReadPlan
from deduper.parquet_plan import parquet_reading
from deduper.parquet_records import NotPlain, ParquetReading, read_part, read_parts
from deduper.read_task import ReadReceipt, ReadTask, read_function
from deduper.receipts import Receipt
from deduper.shard_task import BatchTask, judge
from deduper.source_batch import SourceBatch
from deduper.write_task import WriteReceipt, WriteTask, grouped, is_small, write

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Jobs(Protocol):
    """Who runs the jobs of a window; the service's are `SparkJobs`."""

    @property
    def session(self) -> SparkSession:
        """Makes ports of other formats."""

    def read(self, batch: SourceBatch, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        """Set the records of a batch aside: the receipts, in source order, and how many records were counted."""

    def judge(self, task: BatchTask, shards: int) -> list[Receipt]:
        """Judge every shard."""

    def write(self, task: WriteTask) -> list[WriteReceipt]:
        """Write the ports."""

    @property
    def have_settled(self) -> bool:
        """Whether no task of the window can still be running, nor one that was run again, or is thought to be lost."""

    def end(self) -> None:
        """The window's jobs are over, or were given up. Safe to repeat."""


class SparkJobs:
    """The jobs, on a session."""

    def __init__(self, session: SparkSession, config: Config, salt: bytes) -> None:
        self.session = session
        self._plan = ReadPlan(session, config, salt)
        self._parquet = parquet_reading(config, salt)
        self._cores = session.sparkContext.defaultParallelism
        self._crew: Crew | None = None
        self._calling = OneThread()
        self.have_settled = False

    def read(self, batch: SourceBatch, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        """Set the records of a batch aside: the receipts, in source order, and how many records Spark has counted.

        Of plain Parquet files, how many their footers count.
        """
        self.have_settled = False
        if self._parquet is not None and isinstance(batch, FileBatch):
            try:
                return self._read_plain(self._parquet, batch, task)
            except NotPlain as exc:
                self.end()  # its tasks hold the cores that Spark is to read on
                logger.info("read by Spark: %s", exc)
        counted = Observation()
        tuples = batch.tuples(self.session).observe(counted, F.count(F.lit(1)).alias("rows"))
        records = self._plan.records(tuples, task.clock)
        # `DataFrame.mapInArrow` does the same, and asks for pandas, which no part of it uses.
        function: Any = vectorized_udf(
            read_function(task), returnType="receipt binary", functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        )
        column = function(*records.columns)
        rows = DataFrame(records._jdf.mapInArrow(column._jc, False, None), self.session).collect()
        receipts: list[ReadReceipt] = [pickle.loads(row.receipt) for row in rows]
        left_out = sum(receipt.left_out for receipt in receipts)
        return sorted(receipts, key=lambda receipt: receipt.first_order), int(counted.get["rows"]) - left_out

    def _read_plain(self, reading: ParquetReading, batch: FileBatch, task: ReadTask) -> tuple[list[ReadReceipt], int]:
        parts = reading.parts(batch.files)
        if is_small(sum(part.plain_bytes for part in parts)):
            read = [read_part(task, reading, part) for part in parts]
        else:
            # Between two tasks a core has nothing to do for 20 ms: as many as there are cores, of about as many bytes.
            groups = grouped([part.plain_bytes for part in parts], self._cores)
            members = min(self._cores, os.cpu_count() or 1, max(len(groups), task.shards))
            try:
                self._crew = Crew(Path(task.directory), self._run, members, self._calling)
            except OSError as exc:
                # Not every file system has sockets, and a job a step does the same.
                logger.info("three jobs a window, no socket in %s: %s", task.directory, exc)
            of_groups = self._for_each(len(groups), partial(read_parts, task, reading, parts, groups))
            read = [receipt for receipts in of_groups for receipt in receipts]
        receipts = []
        for receipt in read:
            if isinstance(receipt, str):
                raise NotPlain(receipt)
            receipts.append(receipt)
        return receipts, sum(part.rows for part in parts)

    def judge(self, task: BatchTask, shards: int) -> list[Receipt]:
        """Judge every shard."""
        return self._for_each(shards, partial(judge, task))

    def write(self, task: WriteTask) -> list[WriteReceipt]:
        """Write the ports."""
        try:
            if task.is_small:
                # A job would take ten times as long. It touches nothing of the store, and holds few megabytes.
                return [write(task, writer) for writer in range(len(task.groups))]
            return self._for_each(len(task.groups), partial(write, task))
        finally:
            # Of the tasks of a job, nobody knows.
            self.have_settled = self._crew is not None and self._crew.has_lost_none
            self.end()  # its tasks hold the cores on which Spark is to make ports of other formats

    def close(self) -> None:
        """No window comes any more. Safe to repeat."""
        self.end()
        self._calling.close()

    def end(self) -> None:
        """The window's jobs are over, or were given up. Safe to repeat."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def _for_each(self, count: int, function: Callable[[int], _T]) -> list[_T]:
        """What a function gives for each of the numbers below `count`, in tasks of a job or of the crew."""
        if not count:
            return []
        return self._run(function, count) if self._crew is None else self._crew.map(function, count)

    def _run(self, function: Callable[[int], _T], count: int) -> list[_T]:
        """In a job of their own."""
        return self.session.sparkContext.parallelize(range(count), count).map(function).collect()
