"""The three jobs of a window on Spark: read, judge, write. Each gives the receipts of its tasks.

    read    one task a source partition: Catalyst reads, parses and digests; Python sets the records aside
    judge   one task a shard
    write   some tasks, each with some source partitions

The last two have no plan: they are functions over numbers, so nothing is analysed or compiled for them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
from pyspark.util import PythonEvalType

from deduper.read_task import ReadReceipt, ReadTask, read_function
from deduper.receipts import Receipt
from deduper.shard_task import BatchTask, judge
from deduper.write_task import WriteReceipt, WriteTask, write

_T = TypeVar("_T")


def run_read(records: DataFrame, task: ReadTask) -> list[ReadReceipt]:
    """Set the records of a window aside; the receipts are in source order."""
    # `DataFrame.mapInArrow` does the same, and asks for pandas, which no part of it uses.
    function: Any = vectorized_udf(
        read_function(task), returnType="receipt binary", functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = function(*[records[name] for name in records.columns])
    rows = DataFrame(records._jdf.mapInArrow(column._jc, False, None), records.sparkSession).collect()
    receipts: list[ReadReceipt] = [pickle.loads(row.receipt) for row in rows]
    return sorted(receipts, key=lambda receipt: receipt.first_order)


def run_judge(session: SparkSession, task: BatchTask, shards: int) -> list[Receipt]:
    """Judge every shard."""
    return _for_each(session, shards, lambda shard: judge(task, shard))


def run_write(session: SparkSession, task: WriteTask) -> list[WriteReceipt]:
    """Write the ports."""
    return _for_each(session, len(task.groups), lambda writer: write(task, writer))


def _for_each(session: SparkSession, count: int, function: Callable[[int], _T]) -> list[_T]:
    """What a function gives for each of the numbers below `count`, each in a task of its own."""
    numbers: Sequence[int] = range(count)
    return session.sparkContext.parallelize(numbers, count).map(function).collect() if count else []
