"""Calls of DataFrames in place of PySpark's, which are slower or need pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from deduper.columns import backticked

try:
    from pyspark.sql.classic.column import _to_java_column, _to_seq
except ImportError:  # before PySpark 4.0
    from pyspark.sql.column import _to_java_column, _to_seq  # type: ignore[attr-defined,no-redef]  # of another release
try:
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
    from pyspark.util import PythonEvalType
except ImportError:  # before PySpark 4.2
    vectorized_udf = None


class Selected:
    """Columns as the JVM takes them, made once and applied to the rows of every window.

    PySpark hands a list over column by column, with a call to the JVM for each, whenever it is used: a third of the
    time that planning a small window takes. The method called here is the one that `DataFrame.select` calls.
    """

    def __init__(self, session: SparkSession, columns: Sequence[Column]) -> None:
        self._columns = _to_seq(session.sparkContext, list(columns), _to_java_column)

    def of(self, rows: DataFrame) -> DataFrame:
        """Select them."""
        return DataFrame(rows._jdf.select(self._columns), rows.sparkSession)


BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: BatchFunction, schema: str | StructType) -> DataFrame:
    """The rows that a function makes of the batches of each partition; `schema` may be DDL.

    It is `DataFrame.mapInArrow` without pandas, where PySpark has a way to do without: no part of it uses pandas.
    """
    if vectorized_udf is None:
        return rows.mapInArrow(function, schema)
    udf: Any = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*map(backticked, rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)
