"""Values of a scalar type of Parquet as values of the declared type, each as it is or as a fault. PURE.

A number is read as any type of numbers that can hold it: whole numbers as other whole numbers, decimals and floats;
decimals as all of these; floats as floats. A float equals a decimal if it is printed with the same digits. A time is
read as a time, without a zone as one of UTC; a day as a day, or as its midnight without a zone; days, times of day and
times as the whole numbers in the file, and whole numbers as days; bytes as a text, a text as bytes. Nothing else is
read.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deduper.core.verdict import INT64_MAX, INT64_MIN


class ValueFault(IntEnum):
    """What is wrong with a value, by rising precedence. A value at fault is null."""

    NONE = 0
    FAR = 1
    """A time without µs in 64 bits."""
    MISFIT = 2
    """The declared type has no such value."""
    NOT_UTF8 = 3


Faults = NDArray[np.int8]
Bits = NDArray[np.bool_]
Read = tuple[pa.Array, Faults | None]
"""Values of the declared type, and the fault of each; None where there is none."""
Cast = Callable[[pa.Array], Read]

_STEPS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FLOATS: dict[pa.DataType, type[np.floating[Any]]] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_BYTES = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
_EXACT_DIGITS, _EXACT_POWER = 15, 22
"""A double has each decimal of so many digits, and each power of ten up to this one."""
_MOST_DIGITS, _WIDE_DIGITS = 38, 76
_EXACT = Context(prec=_WIDE_DIGITS, rounding=ROUND_HALF_UP)


class Unlike(Exception):
    """No value of the stored type is one of the declared type."""


def cast_of(found: pa.DataType, declared: pa.DataType) -> Cast | None:
    """The cast from a stored type to the declared one; None if only the Arrow types differ.

    Raises:
        Unlike: no value of the stored type is one of the declared type.
    """
    if isinstance(found, pa.BaseExtensionType):
        cast = cast_of(found.storage_type, declared)
        return lambda values: converted(values.storage, cast, declared)
    if pa.types.is_dictionary(found):
        cast = cast_of(found.value_type, declared)
        return lambda values: converted(values.dictionary_decode(), cast, declared)
    if pa.types.is_null(found):
        return lambda values: (pa.nulls(len(values), declared), None)
    if found in _BYTES and declared == pa.string():
        return _text
    if found == declared:
        return None
    if declared == pa.binary() and (found in _BYTES or pa.types.is_fixed_size_binary(found)):
        return None
    if pa.types.is_integer(found) or _is_decimal(found) or found in _FLOATS:
        return _of_number(found, declared)
    if pa.types.is_temporal(found):
        return _of_time(found, declared)
    raise Unlike


def converted(values: pa.Array, cast: Cast | None, declared: pa.DataType) -> Read:
    """Values of the declared type, by a cast of `cast_of`."""
    return (values.cast(declared), None) if cast is None else cast(values)


def worst(one: Faults | None, other: Faults | None) -> Faults | None:
    """The worse of two faults, value by value."""
    if one is None or other is None:
        return other if one is None else one
    return np.maximum(one, other)


def faults(where: Bits, fault: ValueFault) -> Faults | None:
    """This fault at these places."""
    return where.astype(np.int8) * np.int8(fault) if where.any() else None


def _text(values: pa.Array) -> Read:
    if values.type in (pa.large_string(), pa.string_view()):
        values = values.cast(pa.string())
    elif values.type != pa.string():
        values = values.cast(pa.binary()).view(pa.string())
    if _is_ascii(values.buffers()[2]):
        return values, None
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raw = values.view(pa.binary()).to_pylist()
        texts = [None if value is None else _decoded(value) for value in raw]
        wrong = [text is None and value is not None for text, value in zip(texts, raw, strict=True)]
        return pa.array(texts, pa.string()), faults(np.array(wrong), ValueFault.NOT_UTF8)
    return values, None


def _is_ascii(data: pa.Buffer | None) -> bool:
    if data is None:
        return True
    words = data.size // 8
    folded = np.bitwise_or.reduce(np.frombuffer(data, np.uint64, words)) if words else np.uint64(0)
    return not folded & np.uint64(0x8080808080808080) and bytes(data.slice(8 * words)).isascii()


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _of_number(found: pa.DataType, declared: pa.DataType) -> Cast:
    if _is_decimal(found) and found.precision > _MOST_DIGITS:
        raise Unlike
    if pa.types.is_integer(found):
        if pa.types.is_integer(declared):
            return lambda values: _whole(values, declared)
        if declared == pa.date32():
            return _days
        if declared in _FLOATS:
            return lambda values: _rounded(values, declared)
        if _is_decimal(declared):
            digits = pa.decimal128(19 + (found == pa.uint64()), 0)
            return lambda values: _decimal(values.cast(digits), declared)
    elif _is_decimal(found):
        if pa.types.is_integer(declared) or _is_decimal(declared):
            return lambda values: _decimal(values, declared)
        if declared in _FLOATS:
            return lambda values: _printed(values, declared)
    elif declared in _FLOATS:
        return lambda values: _rounded(values, declared)
    raise Unlike


def _whole(values: pa.Array, declared: pa.DataType) -> Read:
    try:
        return values.cast(declared), None
    except pa.ArrowInvalid:
        (low, high), (least, most) = _bounds(declared), _bounds(values.type)
        low, high = pa.scalar(max(low, least), values.type), pa.scalar(min(high, most), values.type)
        return _fitting(values, pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high)), declared)


def _days(values: pa.Array) -> Read:
    days, wrong = _whole(values, pa.int32())
    return days.view(pa.date32()), wrong


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1


def _rounded(values: pa.Array, declared: pa.DataType) -> Read:
    """Whole numbers and floats as floats that are the same numbers."""
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    given = values.fill_null(pa.scalar(0, values.type)).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        made = given.astype(_FLOATS[declared])
    if values.type in _FLOATS:
        fits = (made.astype(given.dtype) == given) | np.isnan(given)
    else:
        # The nearest float may be one beyond the last whole number of the type.
        is_within = made.astype(np.float64) < float(_bounds(values.type)[1] + 1)
        fits = is_within & (np.where(is_within, made, 0).astype(given.dtype) == given)
    return pa.array(made, declared, mask=is_null | ~fits), faults(~fits, ValueFault.MISFIT)


def _decimal(values: pa.Array, declared: pa.DataType) -> Read:
    """Decimals as other decimals, or as whole numbers."""
    try:
        return values.cast(declared), None
    except pa.ArrowInvalid:
        pass
    if pa.types.is_integer(declared):
        scale, (low, high) = 0, _bounds(declared)
        least, most = Decimal(low), Decimal(high)
    else:
        scale = declared.scale
        most = Decimal(10**declared.precision - 1).scaleb(-scale, _EXACT)
        least = -most
    wide = pa.decimal256(_WIDE_DIGITS, max(scale, values.type.scale, 0))
    exact = values.cast(wide)
    cut = exact.cast(pa.decimal256(_WIDE_DIGITS, scale), safe=False).cast(wide)
    within = pc.and_(pc.greater_equal(exact, pa.scalar(least, wide)), pc.less_equal(exact, pa.scalar(most, wide)))
    return _fitting(values, pc.and_(within, pc.equal(exact, cut)), declared)


def _printed(values: pa.Array, declared: pa.DataType) -> Read:
    """Decimals as floats that are printed with all their digits."""
    scale, nearest = values.type.scale, _FLOATS[declared]
    if declared == pa.float64() and values.type.precision <= _EXACT_DIGITS and 0 <= scale <= _EXACT_POWER:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        whole = values.cast(pa.decimal128(_MOST_DIGITS, scale)).view(pa.binary(16)).fill_null(bytes(16))
        digits = np.frombuffer(whole.buffers()[1], np.int64)[2 * whole.offset :: 2][: len(values)]
        return pa.array(digits / 10.0**scale, declared, mask=is_null), None
    made, wrong = [], np.zeros(len(values), np.bool_)
    for at, value in enumerate(values.to_pylist()):
        near = None if value is None else nearest(float(value))
        if near is not None:
            wrong[at] = not np.isfinite(near) or Decimal(str(near)).quantize(value, context=_EXACT) != value
        made.append(None if wrong[at] else near)
    return pa.array(made, declared), faults(wrong, ValueFault.MISFIT)


def _fitting(values: pa.Array, fits: pa.Array, declared: pa.DataType) -> Read:
    wrong = ~fits.fill_null(True).to_numpy(zero_copy_only=False)
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(declared), faults(wrong, ValueFault.MISFIT)


def _of_time(found: pa.DataType, declared: pa.DataType) -> Cast | None:
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(found):
        return None if found.unit == "us" else lambda values: _time(values, declared)
    if declared == pa.timestamp("us") and found == pa.date32():
        return lambda values: _time(values.cast(pa.timestamp("s")), declared)
    if pa.types.is_integer(declared):
        stored = pa.int32() if found.bit_width == 32 else pa.int64()
        cast = cast_of(stored, declared)
        return lambda values: converted(values.view(stored), cast, declared)
    raise Unlike


def _time(values: pa.Array, declared: pa.DataType) -> Read:
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    given = values.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if values.type.unit == "ns":
        us, wrong, fault = given // 1_000, given % 1_000 != 0, ValueFault.MISFIT
    else:
        step = _STEPS_US[values.type.unit]
        wrong, fault = (given > INT64_MAX // step) | (given < -(-INT64_MIN // step)), ValueFault.FAR
        us = np.where(wrong, 0, given) * step
    return pa.array(us, pa.int64(), mask=is_null | wrong).view(declared), faults(wrong, fault)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))
