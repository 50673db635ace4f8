"""Functions of Arrow's batches in Spark's Python workers, and the index that travels to them."""

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
from pyspark.sql import Column
from pyspark.sql import types as T
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from deduper.ranges.aggregate.event_index import EventIndex
from deduper.ranges.aggregate.range_index import RangeIndex
from deduper.spark_promises import is_this_machine

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
