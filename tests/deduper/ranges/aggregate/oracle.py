"""The aggregates of events and ranges by comparing every pair, in Python's exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

Row = dict[str, Any]
_WIDE = Context(prec=100)


def covers(start: Any, end: Any, time: Any, ends: str) -> bool:
    """Whether a time lies in a range; None is an end that is open for ever."""
    begun = start is None or (start <= time if ends[0] == "[" else start < time)
    return begun and (end is None or (time <= end if ends[1] == "]" else time < end))


def order_key(value: Any) -> Any:
    """Values in their order: NaN is the greatest."""
    if isinstance(value, float):
        return (2, 0.0, 0) if math.isnan(value) else (1, value, math.copysign(1, value))
    return value


def answer(text: str, values: Sequence[Any], rows: int, kind: str) -> Any:
    """The aggregate of values in the order of `last` and `list`, without nulls, of this many rows."""
    if text == "count":
        return rows
    name = text.partition("(")[0]
    by_value = sorted(values, key=order_key)
    match name:
        case "count":
            return len(values)
        case "list":
            return list(values)
        case "set":
            return [one for at, one in enumerate(by_value) if not at or order_key(one) != order_key(by_value[at - 1])]
        case "top_k":
            return by_value[::-1][: int(text.partition(",")[2].strip(" )"))]
        case _ if not values:
            return None
        case "min" | "max" | "last":
            return by_value[0] if name == "min" else by_value[-1] if name == "max" else values[-1]
    if name == "variance" and len(values) < 2:
        return None
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        total = math.fsum(value for value in values if not math.isfinite(value)) if not _opposed(values) else math.nan
        return math.nan if name == "variance" else total
    exact = [Fraction(value) for value in values]
    if name == "sum" and kind == "int":
        return int(sum(exact))
    if name == "sum" and kind == "decimal":
        total = sum(exact)
        return _WIDE.divide(Decimal(total.numerator), Decimal(total.denominator))
    if name == "sum":
        return nearest(sum(exact, Fraction()))
    mean = sum(exact) / len(exact)
    return nearest(mean if name == "mean" else sum((one - mean) ** 2 for one in exact) / (len(exact) - 1))


def _opposed(values: Sequence[float]) -> bool:
    return any(map(math.isnan, values)) or (math.inf in values and -math.inf in values)


def nearest(value: Fraction) -> float:
    """The double nearest to an exact number, infinite if that is too large."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def of_events(events: Sequence[Row], ranges: Sequence[Row], ends: str, text: str, kind: str) -> list[Any]:
    """The answer of each event: rows have `id`, `time` or `start` and `end`, and `value`."""
    return [
        _of(
            [
                one
                for one in ranges
                if one["id"] == event["id"] and covers(one["start"], one["end"], event["time"], ends)
            ],
            text,
            kind,
            _begun_first(ends),
        )
        for event in events
    ]


def of_ranges(events: Sequence[Row], ranges: Sequence[Row], ends: str, text: str, kind: str) -> list[Any]:
    """The mirror image: the answer of each range."""
    return [
        _of(
            [one for one in events if one["id"] == row["id"] and covers(row["start"], row["end"], one["time"], ends)],
            text,
            kind,
            lambda event: (event["time"], order_key(event["value"])),
        )
        for row in ranges
    ]


def _begun_first(ends: str) -> Callable[[Row], Any]:
    """Start, end, value; an end that is open for ever and one at a closed limit of the integers are the same."""

    def key(row: Row) -> Any:
        start, end = row["start"], row["end"]
        since_ever = start is None or (start == -(2**63) and ends[0] == "[")
        for_ever = end is None or (end == 2**63 - 1 and ends[1] == "]")
        return not since_ever, 0 if since_ever else start, for_ever, 0 if for_ever else end, order_key(row["value"])

    return key


def _of(rows: Sequence[Row], text: str, kind: str, order: Callable[[Row], Any]) -> Any:
    there = sorted((row for row in rows if row["value"] is not None), key=order)
    return answer(text, [row["value"] for row in there], len(rows), kind)
