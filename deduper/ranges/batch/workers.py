"""How Spark's Python workers have an index: whole, sent to each of them, or in parts, one a task.

A large set of indexed rows is cut into parts by id, so a part needs nothing of the others. Its indexed rows come first
and make an index; then the asked rows stream by. All rows of one id are in one part: an id whose rows outgrow a task's
memory needs an index that every worker has (`index_bytes`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from deduper.columns import quoted
from deduper.ranges.aggregate.event_index import EventIndex
from deduper.ranges.aggregate.range_index import RangeIndex
from deduper.ranges.batch.work import ID_HI, Batches, Work
from deduper.spark.dataframes import map_in_arrow
from deduper.spark_promises import is_this_machine

_PART, _IS_ASKED, _INDEXED, _ASKED = "part", "is_asked", "indexed", "asked"
_TASKS_A_CORE = 2


def parts_for(size_bytes: int, index_bytes: int, cores: int) -> int:
    """How many parts an index of this size makes, each of about `index_bytes` at most (0: of any size)."""
    return max(-(-size_bytes // index_bytes) if index_bytes else 1, cores * _TASKS_A_CORE)


def in_parts(
    asked: DataFrame, indexed: DataFrame, work: Work, parts: int, columns: Sequence[str], schema: T.StructType
) -> DataFrame:
    """The asked rows with their aggregates: one shuffle, sorted so that the indexed rows of a part come first."""
    both = _packed(asked, _ASKED, parts).unionByName(_packed(indexed, _INDEXED, parts), allowMissingColumns=True)
    placed = both.repartitionById(parts, F.col(_PART)).sortWithinPartitions(_IS_ASKED)
    return map_in_arrow(placed.select(_IS_ASKED, _INDEXED, _ASKED), _AnswerPart(work, tuple(columns)), schema)


def _packed(rows: DataFrame, side: str, parts: int) -> DataFrame:
    """Rows as one column of this name, with their part."""
    part = F.pmod(ID_HI, F.lit(parts)).cast("int")
    row = F.struct(*(F.col(quoted(name)) for name in rows.columns))
    return rows.select(part.alias(_PART), F.lit(side == _ASKED).alias(_IS_ASKED), row.alias(side))


@dataclass(frozen=True, slots=True)
class _AnswerPart:
    """The task of one part."""

    work: Work
    columns: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """The asked rows of the part with their aggregates."""
        held: list[pa.Table] = []
        index = None
        for batch in batches:
            first = batch.num_rows - batch[_IS_ASKED].true_count
            if first:
                held.append(pa.Table.from_struct_array(batch[_INDEXED].slice(0, first)))
            if first == batch.num_rows:
                continue
            asked = pa.RecordBatch.from_struct_array(batch[_ASKED].slice(first))
            if index is None:
                empty = pa.Table.from_struct_array(batch[_INDEXED].slice(0, 0))
                index = self.work.index([*held, empty])
                held.clear()
            yield from self.work.answers(index, asked, self.columns)


_ALIGNED = 64


def shared_by_workers(index: RangeIndex | EventIndex, context: SparkContext) -> Shared:
    """Broadcast to the executors, or a file where all of them are on this machine."""
    if is_this_machine(str(context.master)):
        return Mapped.of(index, context._temp_dir)  # where a broadcast's file lies too
    return context.broadcast(Sent(index))


@dataclass(frozen=True)
class Mapped:
    """An index whose arrays lie in a file that workers map: no copy is made of it, and none is read whole.

    Spark removes the file with its session.
    """

    path: str
    rest: bytes
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, index: RangeIndex | EventIndex, folder: str) -> Mapped:
        """Of a file that is written into the folder."""
        rest, arrays = _taken_apart(index)
        with NamedTemporaryFile(dir=folder, delete=False) as file:
            for array in arrays:
                raw = array.raw()
                file.write(raw)
                file.write(bytes(_gap(raw.nbytes)))
        return cls(file.name, rest, tuple(array.raw().nbytes for array in arrays))

    @cached_property
    def value(self) -> Any:
        """The index, once in a task."""
        with Path(self.path).open("rb") as file:
            # Kernels are compiled for writable arrays; nothing writes to these.
            whole = memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))
        arrays, at = [], 0
        for size in self.sizes:
            arrays.append(whole[at : at + size])
            at += size + _gap(size)
        return _put_together(self.rest, arrays)


Shared: TypeAlias = "Mapped | Broadcast[Any]"
"""An index that every worker has: its `value`, which the first call in a worker may load."""


def _gap(size: int) -> int:
    """Bytes behind an array, at least one, so that the next one is aligned and no file is empty."""
    return _ALIGNED - size % _ALIGNED


@dataclass(frozen=True, slots=True)
class Sent:
    """Arrives at a worker as the index itself; the functions of custom aggregates travel with it.

    Its arrays are written and read as they are, without a copy in between.
    """

    index: RangeIndex | EventIndex

    def __reduce__(self) -> tuple[Any, ...]:
        return _put_together, _taken_apart(self.index)


def _taken_apart(index: RangeIndex | EventIndex) -> tuple[bytes, list[pickle.PickleBuffer]]:
    arrays: list[pickle.PickleBuffer] = []
    return cloudpickle.dumps(index, 5, arrays.append), arrays  # type: ignore[no-untyped-call]


def _put_together(rest: bytes, arrays: Sequence[Any]) -> Any:
    return pickle.loads(rest, buffers=arrays)  # from the driver, as all code in a worker is


def arrow_columns(function: Callable[..., pa.Array], answer: T.StructType) -> Callable[..., Column]:
    """A function of columns as Arrow's arrays that gives one column.

    It counts as not deterministic: Spark would repeat it for every condition on an answer.
    """
    kind = PythonEvalType.SQL_SCALAR_ARROW_UDF
    return UserDefinedFunction(function, answer, evalType=kind, deterministic=False)
