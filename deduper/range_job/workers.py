"""Functions of Arrow's batches in Spark's Python workers, and the index that travels to them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from deduper.columns import quoted
from deduper.range_job.work import Batches
from deduper.range_join.event_index import EventIndex
from deduper.range_join.range_index import RangeIndex


@dataclass(frozen=True, slots=True)
class Sent:
    """Arrives at a worker as the index itself; functions of one's own travel with it.

    Its arrays are written and read as they are, without a copy in between.
    """

    index: RangeIndex | EventIndex

    def __reduce__(self) -> tuple[Any, ...]:
        arrays: list[pickle.PickleBuffer] = []
        rest = cloudpickle.dumps(self.index, 5, arrays.append)  # type: ignore[no-untyped-call]
        return _received, (rest, arrays)


def _received(rest: bytes, arrays: list[bytes | bytearray]) -> Any:
    return pickle.loads(rest, buffers=arrays)  # from the driver, as all code in a worker is


def map_in_arrow(rows: DataFrame, function: Callable[[Batches], Batches], schema: T.StructType) -> DataFrame:
    """What a function makes of the rows; `DataFrame.mapInArrow` does the same, and asks for pandas, unused here."""
    udf: Any = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*(rows[quoted(name)] for name in rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def arrow_columns(function: Callable[..., pa.Array], answer: T.StructType) -> Callable[..., Column]:
    """A function of columns as Arrow's arrays that gives one column.

    It counts as not deterministic: Spark would repeat it for every condition on an answer.
    """
    kind = PythonEvalType.SQL_SCALAR_ARROW_UDF
    return UserDefinedFunction(function, answer, evalType=kind, deterministic=False)
