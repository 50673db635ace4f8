"""Times as numbers in Spark's SQL, so that slices and lengths need one rule for all types of time."""

from __future__ import annotations

from pyspark.sql import types as T

from deduper.columns import backticked
from deduper.ranges.aggregate.rows import DAY_US

TIMES = (T.TimestampType, T.TimestampNTZType, T.DateType, T.IntegralType, T.FloatType, T.DoubleType)
"""Types that a time can have."""


def as_number(name: str, kind: T.DataType) -> str:
    """Numbers in the order of a column of times: µs, days, or the numbers that they are."""
    column = backticked(name)
    match kind:
        case T.TimestampType():
            return f"unix_micros({column})"
        case T.TimestampNTZType():
            # Spark has a function for it by way of the session's zone alone.
            in_day = f"(hour({column}) * 60L + minute({column})) * 60000000L"
            second_us = f"CAST(extract(SECOND FROM {column}) * 1000000 AS BIGINT)"
            return f"(unix_date(CAST({column} AS DATE)) * {DAY_US}L + {in_day} + {second_us})"
        case T.DateType():
            return f"CAST(unix_date({column}) AS BIGINT)"
        case T.FloatType() | T.DoubleType():
            return f"CAST({column} AS DOUBLE)"
        case _:
            return f"CAST({column} AS BIGINT)"


def step_us(kind: T.DataType) -> int | None:
    """µs between two neighbouring numbers of `as_number`; None if the times are plain numbers."""
    if isinstance(kind, T.DateType):
        return DAY_US
    return 1 if isinstance(kind, T.TimestampType | T.TimestampNTZType) else None
