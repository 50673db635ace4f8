"""Which rows cannot be answered, and why; they stop the run, or are kept beside it with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import quoted
from deduper.errors import UsageError
from deduper.range_job.times import as_number, step_us

Reasons = list[tuple[str, Column]]
"""Reasons with the rows that they hold for; of several the first counts."""


def event_reasons(events: DataFrame, keys: Sequence[str], time: str) -> Reasons:
    """Why an event is bad."""
    null_time = ("null_time", events[quoted(time)].isNull())
    return [_null_id(events, keys), null_time, *_nan("nan_time", events, time)]


def range_reasons(ranges: DataFrame, keys: Sequence[str], start: str, end: str, longest_us: int | None) -> Reasons:
    """Why a range is bad; a null start or end is open for ever.

    Raises:
        UsageError: a greatest length for times that are numbers.
    """
    reasons = [
        _null_id(ranges, keys),
        *_nan("nan_end_point", ranges, start, end),
        ("start_after_end", ranges[quoted(start)] > ranges[quoted(end)]),
    ]
    if longest_us is not None:
        step = step_us(ranges.schema[start].dataType)
        if step is None:
            raise UsageError(f"`{start}` is a number, so a range has no length in time; leave out the greatest length")
        steps = F.try_subtract(as_number(ranges, end), as_number(ranges, start))  # null too if it is beyond bigint
        reasons.append(("too_long", ~F.coalesce(steps <= longest_us // step, F.lit(False))))
    return reasons


def without_bad_rows(
    rows: DataFrame, reasons: Reasons, side: str, policy: Literal["stop", "keep"], malformed: str | None
) -> tuple[DataFrame, DataFrame]:
    """The good rows, and the bad ones as (side, reason, record); by the policy `stop`, a bad row fails Spark's job."""
    if malformed is not None and malformed in rows.columns:
        reasons = [("unparsable", rows[malformed].isNotNull()), *reasons]
    reason = F.lit(None).cast("string")
    for name, holds in reversed(reasons):
        reason = F.when(holds, F.lit(name)).otherwise(reason)
    # Every row pays for this: one condition, and the texts only of a bad row.
    is_good = ~F.coalesce(reduce(lambda one, other: one | other, (holds for _, holds in reasons)), F.lit(False))
    record = F.to_json(F.struct(*(rows[quoted(name)] for name in rows.columns)), {"ignoreNullFields": "false"})
    bad = rows.where(reason.isNotNull()).select(
        F.lit(side).alias("side"), reason.alias("reason"), record.alias("record")
    )
    if policy == "stop":
        failure = F.concat(F.lit(f"bad {side}: "), reason, F.lit(": "), record)
        good = rows.where(F.when(is_good, True).otherwise(F.raise_error(failure).cast("boolean")))
        bad = bad.limit(0)
    else:
        good = rows.where(is_good)
    return good.drop(malformed) if malformed is not None else good, bad


def _null_id(rows: DataFrame, keys: Sequence[str]) -> tuple[str, Column]:
    return "null_id", reduce(lambda one, other: one | other, (rows[quoted(key)].isNull() for key in keys))


def _nan(reason: str, rows: DataFrame, *points: str) -> Reasons:
    """The reason, if the times are of a type that has NaN."""
    if not isinstance(rows.schema[points[0]].dataType, T.FloatType | T.DoubleType):
        return []
    are_nan = (F.isnan(rows[quoted(point)]) for point in points)
    return [(reason, reduce(lambda one, other: one | other, are_nan))]


def is_bad_row(failure: str) -> bool:
    """Whether Spark's job failed for a bad row, by the policy `stop`."""
    return failure.startswith(("bad event: ", "bad range: "))
