"""Custom aggregates: a first state and the functions add, remove and finish, in plain Python or compiled. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numba.extending import is_jitted

from deduper.ranges.aggregate.aggregates import Own, is_number
from deduper.ranges.aggregate.cells import Cells
from deduper.ranges.aggregate.points import Ints, ranks


def run_cells(own: Own, kind: pa.DataType, values: pa.Array, cells: Cells) -> pa.Array:
    """The answer in each cell. Null values are left out; a cell in which no event can be is null."""
    offsets, marks = cells.timeline.offsets, cells.marks
    is_there = ~values.is_null().to_numpy(zero_copy_only=False)
    if can_compile(own, kind, values.type):
        found = np.zeros(len(marks) + 1, kind.to_pandas_dtype())
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        _compiled_cells(own.zero, own.add, own.remove, own.finish, numbers, is_there, offsets, marks, found)
        return pa.array(found)
    plain, answers, is_seen = values.to_pylist(), [own.finish(_zero_of(own))], cells.last_of_time()
    for group in range(len(offsets) - 1):
        state = _zero_of(own)
        for at in range(offsets[group], offsets[group + 1]):
            mark = int(marks[at])
            row = mark if mark >= 0 else ~mark
            if is_there[row]:
                state = own.add(state, plain[row]) if mark >= 0 else own.remove(state, plain[row])
            answers.append(own.finish(state) if is_seen[at + 1] else None)
    return pa.array(answers, kind)


def fold(own: Own, kind: pa.DataType, values: pa.Array, begin: Ints, end: Ints) -> pa.Array:
    """The answer for each stretch of values without nulls."""
    if can_compile(own, kind, values.type):
        found = np.zeros(len(begin), kind.to_pandas_dtype())
        numbers = values.to_numpy(zero_copy_only=False)
        _compiled_fold(own.zero, own.add, own.finish, numbers, begin, end, found)
        return pa.array(found)
    plain = values.to_pylist()
    return pa.array([_folded(own, plain[first:last]) for first, last in zip(begin, end, strict=True)], kind)


def _folded(own: Own, values: Sequence[Any]) -> Any:
    state = _zero_of(own)
    for value in values:
        state = own.add(state, value)
    return own.finish(state)


def canonical(values: pa.Array) -> Ints:
    """A number by which rows of one time are ordered: the value's rank, or its place where values have no order."""
    if pa.types.is_nested(values.type):
        return np.arange(len(values))
    return ranks(values)


def can_compile(own: Own, kind: pa.DataType, column: pa.DataType) -> bool:
    """Whether the loop over the marks is compiled, with the three functions inside it.

    Not if `zero` is a function: its states may change in place, and the compiled loops begin with one state each time.
    """
    numbers = all(is_number(one) and not pa.types.is_decimal(one) for one in (kind, column))
    is_value = not callable(own.zero)
    return numbers and is_value and all(is_jitted(one) for one in (own.add, own.remove, own.finish))


def _zero_of(own: Own) -> Any:
    return own.zero() if callable(own.zero) else own.zero


# Compiled for the three functions at hand, so in memory alone.
@njit(nogil=True)
def _compiled_cells(
    zero: Any, add: Any, remove: Any, finish: Any, values: Any, is_there: Any, offsets: Ints, marks: Ints, out: Any
) -> None:
    out[0] = finish(zero)
    for group in range(len(offsets) - 1):
        state = zero
        for at in range(offsets[group], offsets[group + 1]):
            mark = marks[at]
            row = mark if mark >= 0 else ~mark
            if is_there[row]:
                state = add(state, values[row]) if mark >= 0 else remove(state, values[row])
            out[at + 1] = finish(state)


@njit(nogil=True)
def _compiled_fold(zero: Any, add: Any, finish: Any, values: Any, begin: Ints, end: Ints, out: Any) -> None:
    for at in range(len(begin)):
        state = zero
        for place in range(begin[at], end[at]):
            state = add(state, values[place])
        out[at] = finish(state)
