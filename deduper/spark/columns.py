"""Lists of columns as the JVM takes them, made once and applied to the rows of every window.

PySpark hands a list over column by column, with a call to the JVM for each, whenever it is used: a third of the time
that planning a small window takes. The methods called here are those that `DataFrame.select` and `withColumns` call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

try:
    from pyspark.sql.classic.column import _to_java_column, _to_seq
except ImportError:  # before PySpark 4.0
    from pyspark.sql.column import _to_java_column, _to_seq  # type: ignore[attr-defined,no-redef]  # of another release


class Selected:
    """The rows with these columns and no others."""

    def __init__(self, session: SparkSession, columns: Sequence[Column]) -> None:
        self._columns = _columns(session, columns)

    def of(self, rows: DataFrame) -> DataFrame:
        """Select them."""
        return DataFrame(rows._jdf.select(self._columns), rows.sparkSession)


class Added:
    """The rows with these columns besides their own, or in place of those of the same name."""

    def __init__(self, session: SparkSession, columns: Mapping[str, Column]) -> None:
        self._names = _to_seq(session.sparkContext, list(columns))
        self._columns = _columns(session, list(columns.values()))

    def to(self, rows: DataFrame) -> DataFrame:
        """Add them."""
        return DataFrame(rows._jdf.withColumns(self._names, self._columns), rows.sparkSession)


def _columns(session: SparkSession, columns: Sequence[Column]) -> Any:
    return _to_seq(session.sparkContext, list(columns), _to_java_column)
