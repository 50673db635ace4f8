"""Exact sums: numbers are whole multiples of one unit, kept as 32-bit digits, each digit summed by itself. PURE.

    value = (digits[0] + digits[1] * 2^32 + digits[2] * 2^64 + ...) * unit

Digits have signs and 64 bits, so 2^30 of them can be added before any carry. Adding and removing is exact, whatever
the order; an answer is rounded once. Numbers so small that their sum fits 63 bits are one digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.aggregates import Aggregate, AnswerTooLargeError, Kind, answer_type, is_number
from deduper.ranges.aggregate.points import Ints

_DIGIT = (1 << 32) - 1
_ONE_DIGIT = 1 << 62
_EXACT_DOUBLE = 1 << 53
_COUNT, _NAN, _ABOVE, _BELOW = range(4)
"""Columns of a table of sums: values; NaN, +inf, -inf among them, if there are any; then the digits."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column as rows to sum, or its sums: counts and digits; the unit is 2^binary / 10^decimal."""

    table: Ints
    has_infinite: bool = False
    binary: int = 0
    decimal: int = 0

    @property
    def digits(self) -> Ints:
        """Without the counts."""
        return self.table[:, 4 if self.has_infinite else 1 :]

    def counts(self, has_infinite: bool) -> Ints:
        """The counts, of infinite numbers too if they are wanted."""
        own = self.table[:, : 4 if self.has_infinite else 1]
        if has_infinite and not self.has_infinite:
            own = np.concatenate((own, np.zeros((len(own), 3), np.int64)), axis=1)
        return own

    @classmethod
    def of(cls, values: pa.Array | None, rows: int, *, squared: bool = False) -> Numbers:
        """Each value, or its square; nulls are rows of zeros. Without numbers rows are only counted."""
        if values is None:
            return cls(np.ones((rows, 1), np.int64))
        counts = [~values.is_null().to_numpy(zero_copy_only=False)]
        if not is_number(values.type):
            return cls(counts[0].astype(np.int64).reshape(-1, 1))
        binary, decimal, has_infinite = 0, 0, False
        if pa.types.is_floating(values.type):
            doubles = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
            is_finite = np.isfinite(doubles)
            if has_infinite := not is_finite.all():
                counts += [np.isnan(doubles), doubles == np.inf, doubles == -np.inf]
            digits, binary = _of_doubles(np.where(is_finite, doubles, 0.0))
        elif pa.types.is_decimal(values.type):
            digits, decimal = _of_decimals(values), values.type.scale
        else:
            digits = _of_integers(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
        if squared:
            whole = as_whole(digits)
            digits, binary, decimal = _of_whole(whole * whole), 2 * binary, 2 * decimal
        return cls(np.column_stack((*counts, digits)).astype(np.int64, copy=False), has_infinite, binary, decimal)

    def at(self, rows: Ints) -> Numbers:
        """Some of the rows."""
        return replace(self, table=self.table.take(rows, axis=0))


def _of_integers(numbers: Ints) -> Ints:
    most = max(abs(int(numbers.min())), abs(int(numbers.max()))) if len(numbers) else 0
    if most * max(1, len(numbers)) < _ONE_DIGIT:
        return numbers.reshape(-1, 1)
    return np.stack((numbers & _DIGIT, numbers >> 32), axis=1)


def _of_decimals(values: pa.Array) -> Ints:
    wide = values.cast(pa.decimal128(38, values.type.scale)).fill_null(0)
    words = np.frombuffer(wide.buffers()[1], np.int64).reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
    low, high = words[:, 0], words[:, 1]
    if np.array_equal(high, low >> 63):
        return _of_integers(low)
    return np.stack((low & _DIGIT, (low >> 32) & _DIGIT, high & _DIGIT, high >> 32), axis=1)


def _of_doubles(doubles: NDArray[np.float64]) -> tuple[Ints, int]:
    """Digits, and the power of two of the unit: the lowest bit that any of the finite numbers has."""
    fractions, exponents = np.frexp(doubles)
    mantissas = (fractions * _EXACT_DOUBLE).astype(np.int64)
    used = mantissas != 0
    if not used.any():
        return np.zeros((len(doubles), 1), np.int64), 0
    zeros = np.frexp((mantissas & -mantissas).astype(np.float64))[1].astype(np.int64) - 1
    mantissas, lowest = mantissas >> np.maximum(zeros, 0), exponents - 53 + zeros
    binary = int(lowest[used].min())
    shifts = np.where(used, lowest - binary, 0)
    if int(shifts.max()) + 53 + len(doubles).bit_length() < 62:
        return (mantissas << shifts).reshape(-1, 1), binary
    digits = np.zeros((len(doubles), int(shifts.max()) // 32 + 3), np.int64)
    row, at, shift = np.arange(len(doubles)), shifts // 32, shifts % 32
    low, high = (np.abs(mantissas) & _DIGIT) << shift, (np.abs(mantissas) >> 32) << shift
    sign = np.sign(mantissas)
    digits[row, at] = sign * (low & _DIGIT)
    digits[row, at + 1] = sign * (((low >> 32) & _DIGIT) + (high & _DIGIT))
    digits[row, at + 2] = sign * (high >> 32)
    return digits, binary


def _of_whole(whole: NDArray[Any]) -> Ints:
    most = max((abs(number) for number in whole), default=0)
    if most * max(1, len(whole)) < _ONE_DIGIT:
        return whole.astype(np.int64).reshape(-1, 1)
    digits = [((whole >> (32 * at)) & _DIGIT).astype(np.int64) for at in range(most.bit_length() // 32)]
    return np.stack((*digits, (whole >> (32 * len(digits))).astype(np.int64)), axis=1)


def as_whole(digits: Ints) -> NDArray[Any]:
    """The numbers of digits as Python's integers, in units."""
    whole = digits[:, -1].astype(object)
    for at in range(digits.shape[1] - 2, -1, -1):
        whole = (whole << 32) + digits[:, at]
    return whole


@kernel()
def _run(offsets: Ints, marks: Ints, rows: Ints, out: Ints) -> None:
    """Sums after each mark: a start adds the row of its range, an end removes it; ids begin anew.

    The rows, which lie in no order, are fetched by a loop without a sum: no fetch waits for one before it.
    """
    width = rows.shape[1]
    for one in range(0, width, 2):  # two columns of a row are one fetch
        other = min(one + 1, width - 1)
        for at in range(len(marks)):
            is_end = marks[at] >> 63
            row, sign = marks[at] ^ is_end, 1 | is_end
            out[at + 1, one], out[at + 1, other] = rows[row, one] * sign, rows[row, other] * sign
        for group in range(len(offsets) - 1):
            sums = (0, 0)
            for at in range(offsets[group] + 1, offsets[group + 1] + 1):
                sums = sums[0] + out[at, one], sums[1] + out[at, other]
                out[at, one], out[at, other] = sums


def sums_of_cells(numbers: Numbers, offsets: Ints, marks: Ints) -> Numbers:
    """The sums in each cell."""
    table = np.zeros((len(marks) + 1, numbers.table.shape[1]), np.int64)
    _run(offsets, marks, numbers.table, table)
    return replace(numbers, table=table)


def added(parts: Sequence[tuple[Numbers, int]]) -> Numbers:
    """The sums of several tables, row by row, each times its sign, 1 or -1; exact whatever their units."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    has_infinite = any(one.has_infinite for one, _ in parts)
    binary = min(one.binary for one, _ in parts)
    counts: Ints = np.sum([sign * one.counts(has_infinite) for one, sign in parts], axis=0)
    moved = [
        (one.digits if one.binary == binary else _shifted(one.digits, one.binary - binary), sign) for one, sign in parts
    ]
    if any(digits.shape[1] for digits, _ in moved):
        if sum(_most(digits) if digits.shape[1] == 1 else _ONE_DIGIT for digits, _ in moved) >= _ONE_DIGIT:
            moved = [(_carried(digits), sign) for digits, sign in moved]
        total = np.zeros((len(counts), max(digits.shape[1] for digits, _ in moved)), np.int64)
        for digits, sign in moved:
            total[:, : digits.shape[1]] += sign * digits
        counts = np.concatenate((counts, total), axis=1)
    return Numbers(counts, has_infinite, binary, parts[0][0].decimal)


def _most(digits: Ints) -> int:
    return max(abs(int(digits.min())), abs(int(digits.max()))) if len(digits) else 0


def _carried(digits: Ints) -> Ints:
    """The same numbers with every digit but the last one in 32 bits without a sign, and the last one small."""
    carried = np.empty((len(digits), digits.shape[1] + 1), np.int64)
    carry = np.zeros(len(digits), np.int64)
    for at in range(digits.shape[1]):
        whole = digits[:, at] + carry
        carried[:, at], carry = whole & _DIGIT, whole >> 32
    carried[:, -1] = carry
    return carried


def _shifted(digits: Ints, bits: int) -> Ints:
    """The same numbers in a unit that is 2^bits times smaller."""
    carried = _carried(digits)
    words, rest = divmod(bits, 32)
    shifted = np.zeros((len(digits), carried.shape[1] + words), np.int64)
    shifted[:, words:] = carried << rest
    shifted[:, words:-1] &= _DIGIT
    shifted[:, words + 1 :] += carried[:, :-1] >> (32 - rest)
    return shifted


def sum_answers(
    name: str, aggregate: Aggregate, column: pa.DataType | None, sums: Numbers, squares: Numbers | None
) -> pa.Array:
    """`count`, `sum`, `mean` or `variance`: one answer a row of sums; `squares` are for the variance alone.

    Raises:
        AnswerTooLargeError: an integer or decimal sum has no place in the type of the answer.
    """
    count, kind = sums.table[:, _COUNT], answer_type(aggregate, column)
    if aggregate.kind is Kind.COUNT:
        return pa.array(count)
    if not pa.types.is_floating(kind):
        whole = _sums_as_whole(sums)
        _require_place(name, whole, sums.decimal, kind)
        return _exact_array(whole, kind, count < 1)
    if squares is not None:
        # Of n values with sum S and sum of squares Q it is (n Q - S^2) / (n (n - 1)), exact until the division.
        whole = count.astype(object) * as_whole(squares.digits) - as_whole(sums.digits) ** 2
        found = nearest_doubles(whole, (count * (count - 1)).astype(object), squares.binary, squares.decimal)
    else:
        divisor = count if aggregate.kind is Kind.MEAN else np.ones_like(count)
        found = nearest_doubles(_sums_as_whole(sums), divisor, sums.binary, sums.decimal)
    if sums.has_infinite:
        _put_infinite(found, sums.table, is_variance=squares is not None)
    return pa.array(found, mask=count < (1 if squares is None else 2))


def _sums_as_whole(sums: Numbers) -> NDArray[Any]:
    """The sums in units: int64 where they are one digit or two that fit, else Python's integers."""
    digits = sums.digits
    if digits.shape[1] == 1:
        return digits[:, 0]
    if digits.shape[1] == 2:
        high = digits[:, 1] + (digits[:, 0] >> 32)
        if np.array_equal(high, (high << 32) >> 32):
            whole: Ints = (high << 32) + (digits[:, 0] & _DIGIT)
            return whole
    return as_whole(digits)


def _require_place(name: str, whole: NDArray[Any], decimal: int, kind: pa.DataType) -> None:
    if whole.dtype != object:
        return
    most = 10**kind.precision if pa.types.is_decimal(kind) else 1 << 63
    for value in whole:
        if not -most < value < most and (pa.types.is_decimal(kind) or value != -most):
            shown = Decimal(value).scaleb(-decimal, Context(prec=100))
            write = "cast the column to decimal(38,0)" if kind == pa.int64() else "cast the column to double"
            raise AnswerTooLargeError(f"{name}: a sum is {shown}, which {kind} cannot hold; {write}")


def _exact_array(whole: NDArray[Any], kind: pa.DataType, mask: NDArray[np.bool_]) -> pa.Array:
    if kind == pa.int64():
        return pa.array(whole.astype(np.int64), mask=mask)
    words = np.empty((len(whole), 2), np.int64)
    if whole.dtype == object:
        words[:, 0] = (whole & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)
        words[:, 1] = (whole >> 64).astype(np.int64)
    else:
        words[:, 0], words[:, 1] = whole, whole >> 63
    is_valid = pa.array(~mask).buffers()[1]
    return pa.Array.from_buffers(kind, len(whole), [is_valid, pa.py_buffer(words)])


def nearest_doubles(whole: NDArray[Any], divisor: NDArray[Any], binary: int, decimal: int) -> NDArray[np.float64]:
    """whole / divisor * 2^binary / 10^decimal, rounded once; 0 for a divisor of 0, infinite if it is too large."""
    divisor = np.where(divisor == 0, 1, divisor)
    is_small = whole.dtype != object and divisor.dtype != object and not decimal and -900 < binary < 900
    if is_small and (not len(whole) or max(abs(int(whole.min())), abs(int(whole.max()))) < _EXACT_DOUBLE):
        return np.asarray(np.ldexp(whole / divisor, binary), np.float64)
    scale_up, scale_down = 1 << max(0, binary), 10**decimal << max(0, -binary)
    above, below = whole.astype(object) * scale_up, divisor.astype(object) * scale_down
    try:
        return np.asarray(above / below, np.float64)
    except OverflowError:
        return np.array([_quotient(one, other) for one, other in zip(above, below, strict=True)], np.float64)


def _quotient(above: int, below: int) -> float:
    try:
        return above / below
    except OverflowError:
        return math.inf if above > 0 else -math.inf


def _put_infinite(found: NDArray[np.float64], table: Ints, *, is_variance: bool) -> None:
    """NaN and infinities that are among the summed values decide the answer."""
    above, below = table[:, _ABOVE] > 0, table[:, _BELOW] > 0
    found[above] = np.inf
    found[below] = -np.inf
    found[(table[:, _NAN] > 0) | (above & below) | (is_variance & (above | below))] = np.nan
