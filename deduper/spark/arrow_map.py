"""`DataFrame.mapInArrow` without pandas, where PySpark has a way to do without: no part of it uses pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from deduper.columns import backticked

try:
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
    from pyspark.util import PythonEvalType
except ImportError:  # before PySpark 4.2
    vectorized_udf = None

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: BatchFunction, schema: str | StructType) -> DataFrame:
    """The rows that a function makes of the batches of each partition; `schema` may be DDL."""
    if vectorized_udf is None:
        return rows.mapInArrow(function, schema)
    udf: Any = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*map(backticked, rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)
