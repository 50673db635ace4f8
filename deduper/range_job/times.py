"""Times as Spark's columns of numbers, so that slices and lengths need one rule for all types of time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import quoted
from deduper.sources.digest_columns import ntz_micros

TIMES = (T.TimestampType, T.TimestampNTZType, T.DateType, T.IntegralType, T.FloatType, T.DoubleType)
"""Types that a time can have."""
DAY_US = 86_400_000_000


def as_number(rows: DataFrame, name: str) -> Column:
    """Numbers in the order of the times: µs, days, or the numbers that they are."""
    column = rows[quoted(name)]
    match rows.schema[name].dataType:
        case T.TimestampType():
            return F.unix_micros(column)
        case T.TimestampNTZType():
            return ntz_micros(column)
        case T.DateType():
            return F.unix_date(column).cast("bigint")
        case T.FloatType() | T.DoubleType():
            return column.cast("double")
        case _:
            return column.cast("bigint")


def step_us(kind: T.DataType) -> int | None:
    """µs between two neighbouring numbers of `as_number`; None if the times are plain numbers."""
    if isinstance(kind, T.DateType):
        return DAY_US
    return 1 if isinstance(kind, T.TimestampType | T.TimestampNTZType) else None
