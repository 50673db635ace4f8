"""A list of columns as the JVM takes it, made once and applied to the rows of every window.

PySpark hands a list over column by column, with a call to the JVM for each, whenever it is used: a third of the time
that planning a small window takes. The method called here is the one that `DataFrame.select` calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession

try:
    from pyspark.sql.classic.column import _to_java_column, _to_seq
except ImportError:  # before PySpark 4.0
    from pyspark.sql.column import _to_java_column, _to_seq  # type: ignore[attr-defined,no-redef]  # of another release


class Selected:
    """The rows with these columns and no others."""

    def __init__(self, session: SparkSession, columns: Sequence[Column]) -> None:
        self._columns = _to_seq(session.sparkContext, list(columns), _to_java_column)

    def of(self, rows: DataFrame) -> DataFrame:
        """Select them."""
        return DataFrame(rows._jdf.select(self._columns), rows.sparkSession)
