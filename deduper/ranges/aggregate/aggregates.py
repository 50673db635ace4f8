"""Which aggregates there are, how they are written, and what type an answer has. PURE."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from deduper.errors import DeduperError, UsageError


class Kind(StrEnum):
    """The merge of an aggregate, as it is written."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    VARIANCE = "variance"
    MIN = "min"
    MAX = "max"
    LAST = "last"
    TOP_K = "top_k"
    LIST = "list"
    SET = "set"


OF_NUMBERS = (Kind.SUM, Kind.MEAN, Kind.VARIANCE)
OF_ONE = (Kind.MIN, Kind.MAX, Kind.LAST)
"""Aggregates whose answer is one of the values."""
SUBTRACTED = (Kind.COUNT, Kind.SUM, Kind.MEAN, Kind.VARIANCE)
"""Aggregates of which ranges can be taken back: their answers are subtracted."""
_TEXT = re.compile(r"\s*(\w+)\s*(?:\(\s*(`[^`]+`|\w[\w.]*)?\s*(?:,\s*([0-9]{1,9})\s*)?\))?\s*")
_MOST_K = 1000


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a column; `count` may have none, `k` is of `top_k` alone."""

    kind: Kind
    column: str | None
    k: int = 1


@dataclass(frozen=True, slots=True)
class Own:
    """An aggregate of four functions; `type` is the answer's, as Spark writes it.

    `remove` undoes `add`, and the state must not depend on the order of calls. A function as `zero` makes the first
    state of each id or range. Compiled if all functions are numba's, `zero` is none, and both the column and the answer
    are numbers.
    """

    column: str
    zero: Any
    add: Callable[[Any, Any], Any]
    remove: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    type: str


AnyAggregate = Aggregate | Own


class AnswerTooLargeError(DeduperError):
    """An exact sum has no place in the type of its answer. The operator: cast the column to a wider type."""


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate of `count`, `sum(points)`, `top_k(points, 3)`; a column of any name stands in backticks.

    Raises:
        UsageError: naming the text, and what to write.
    """
    match = _TEXT.fullmatch(text)
    if match is None or match[1] not in list(Kind):
        raise UsageError(f"`{text}` is not an aggregate; write one of {', '.join(Kind)}, as `sum(points)` or `count`")
    kind, column, k = Kind(match[1]), match[2], match[3]
    if column is None and kind is not Kind.COUNT:
        raise UsageError(f"`{text}` has no column; write `{kind}(points)`")
    if (k is not None) != (kind is Kind.TOP_K) or not 1 <= int(k or 1) <= _MOST_K:
        raise UsageError(
            f"`{text}` is not an aggregate; `top_k` alone has a number, 1 to {_MOST_K}: `top_k(points, 3)`"
        )
    return Aggregate(kind, column and column.strip("`"), int(k or 1))


def require_types(aggregates: Mapping[str, AnyAggregate], types: Mapping[str, pa.DataType], side: str) -> None:
    """Refuse aggregates of columns that are absent or of a type that they do not take.

    Raises:
        UsageError: naming the aggregate, the column and its type.
    """
    for name, aggregate in aggregates.items():
        column = aggregate.column
        if column is None:
            continue
        if column not in types:
            raise UsageError(f"{name}: {side} have no column `{column}`; columns are {', '.join(types)}")
        if isinstance(aggregate, Own) or aggregate.kind is Kind.COUNT:
            continue
        kind, found = aggregate.kind, types[column]
        if kind in OF_NUMBERS and not is_number(found):
            raise UsageError(f"{name}: {kind} takes numbers, and `{column}` is {found}; cast the column")
        if pa.types.is_nested(found) or pa.types.is_null(found):
            raise UsageError(
                f"{name}: {kind} takes values with an order, and `{column}` is {found}; take one of its fields"
            )


def require_free_names(names: Iterable[str], columns: Iterable[str]) -> None:
    """Refuse names of answers that the rows have for a column, in any case of letters.

    Raises:
        UsageError: naming the first of them.
    """
    taken = {column.lower() for column in columns}
    for name in names:
        if name.lower() in taken:
            raise UsageError(f"aggregate `{name}` has the name of a column; write another name for it")


def is_number(found: pa.DataType) -> bool:
    """Whether values of the type can be summed."""
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found))


def answer_type(aggregate: Aggregate, column: pa.DataType | None) -> pa.DataType:
    """The type of an answer."""
    match aggregate.kind:
        case Kind.COUNT:
            return pa.int64()
        case Kind.MEAN | Kind.VARIANCE:
            return pa.float64()
        case Kind.SUM if column is not None and pa.types.is_decimal(column):
            return pa.decimal128(min(38, column.precision + 10), column.scale)
        case Kind.SUM:
            return pa.float64() if pa.types.is_floating(column) else pa.int64()
        case Kind.MIN | Kind.MAX | Kind.LAST:
            return column
        case _:
            return pa.list_(column)
