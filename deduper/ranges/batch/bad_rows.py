"""Which rows of a DataFrame cannot be answered, and why; they stop the run, or are kept beside it with their reasons.

`aggregate.rows` has the same rules for Arrow tables. Conditions are texts of SQL: one call of the JVM each, where
columns of PySpark take a call for every operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from deduper.columns import backticked
from deduper.errors import UsageError
from deduper.ranges.aggregate.rows import DAY_US

Reasons = list[tuple[str, str]]
"""Reasons with the condition that they hold under; of several the first counts."""

TIMES = (T.TimestampType, T.TimestampNTZType, T.DateType, T.IntegralType, T.FloatType, T.DoubleType)
"""Types that a time can have."""


def event_reasons(events: DataFrame, keys: Sequence[str], time: str) -> Reasons:
    """Why an event is bad."""
    return [_null("null_id", *keys), _null("null_time", time), *_nan("nan_time", events, time)]


def range_reasons(ranges: DataFrame, keys: Sequence[str], start: str, end: str, longest_us: int | None) -> Reasons:
    """Why a range is bad; a null start or end is open for ever.

    Raises:
        UsageError: a greatest length for times that are numbers.
    """
    reasons = [
        _null("null_id", *keys),
        *_nan("nan_end_point", ranges, start, end),
        ("start_after_end", f"{backticked(start)} > {backticked(end)}"),
    ]
    if longest_us is not None:
        kind = ranges.schema[start].dataType
        step = _step_us(kind)
        if step is None:
            raise UsageError(f"`{start}` is a number, so a range has no length in time; leave out the greatest length")
        steps = f"try_subtract({_as_number(end, kind)}, {_as_number(start, kind)})"  # null too if it is beyond bigint
        reasons.append(("too_long", f"NOT coalesce({steps} <= {longest_us // step}L, false)"))
    return reasons


@dataclass(frozen=True, slots=True)
class FrameSide:
    """The rows of a side, `event` or `range`, and why some are bad; if it `stops`, a bad row fails Spark's job."""

    name: str
    rows: DataFrame
    reasons: Reasons
    stops: bool

    def good(self) -> DataFrame:
        """The good rows."""
        # Every row pays for this: one condition, and the texts only of a bad row.
        are_bad = " OR ".join(f"({holds})" for _, holds in self.reasons)
        is_good = f"NOT coalesce({are_bad}, false)"
        if self.stops:
            failure = f"concat('bad {self.name}: ', {self._reason()}, ': ', {self._record()})"
            is_good = f"if({is_good}, true, CAST(raise_error({failure}) AS BOOLEAN))"
        return self.rows.where(is_good)

    def bad(self) -> DataFrame:
        """The bad ones as (side, reason, record); none if they stop."""
        bad = self.rows.where(f"{self._reason()} IS NOT NULL")
        columns = f"'{self.name}' AS side", f"{self._reason()} AS reason", f"{self._record()} AS record"
        return bad.selectExpr(*columns).limit(0) if self.stops else bad.selectExpr(*columns)

    def _reason(self) -> str:
        cases = " ".join(f"WHEN {holds} THEN '{name}'" for name, holds in self.reasons)
        return f"CASE {cases} END"

    def _record(self) -> str:
        columns = ", ".join(map(backticked, self.rows.columns))
        return f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"


def _null(reason: str, *columns: str) -> tuple[str, str]:
    return reason, " OR ".join(f"{backticked(column)} IS NULL" for column in columns)


def _nan(reason: str, rows: DataFrame, *points: str) -> Reasons:
    """The reason, if the times are of a type that has NaN."""
    if not isinstance(rows.schema[points[0]].dataType, T.FloatType | T.DoubleType):
        return []
    return [(reason, " OR ".join(f"isnan({backticked(point)})" for point in points))]


def _as_number(name: str, kind: T.DataType) -> str:
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


def _step_us(kind: T.DataType) -> int | None:
    """µs between two neighbouring numbers of `_as_number`; None if the times are plain numbers."""
    if isinstance(kind, T.DateType):
        return DAY_US
    return 1 if isinstance(kind, T.TimestampType | T.TimestampNTZType) else None
