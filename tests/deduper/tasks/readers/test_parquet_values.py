"""Values of one type as values of another: each exactly, or as a fault."""

from __future__ import annotations

import itertools
import random
from datetime import date
from decimal import Context
from decimal import Decimal as D
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deduper.tasks.readers.parquet_values import Unlike, ValueFault, cast_of, converted
from tests import tiers

_WHOLE = [getattr(pa, f"{sign}int{bits}")() for sign, bits in itertools.product(("", "u"), (8, 16, 32, 64))]
_DECIMALS = [pa.decimal128(*shape) for shape in ((3, 0), (5, 2), (9, 2), (18, 0), (20, 0), (38, 0), (38, 20))]
_FLOATS = [pa.float16(), pa.float32(), pa.float64()]
_EXACT = Context(prec=80)
_UTC, _NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
_MS = (2**63 - 1) // 1_000
_F, _M, _U = ValueFault.FAR, ValueFault.MISFIT, ValueFault.NOT_UTF8


def read(values: pa.Array, declared: pa.DataType) -> tuple[list[Any], list[int]]:
    """The values as this type, and their faults."""
    made, faults = converted(values, cast_of(values.type, declared), declared)
    assert made.type == declared
    made.validate(full=True)
    assert faults is None or faults.any()
    return made.to_pylist(), [0] * len(values) if faults is None else faults.tolist()


def drawn(rnd: random.Random, kind: pa.DataType) -> list[Any]:
    """Numbers of a type: its ends, round ones, any."""
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        units = [most, -most, 0, 10**kind.scale, *(rnd.randint(-most, most) // 10 ** rnd.randint(0, 38) for _ in "abc")]
        return [D(unit).scaleb(-kind.scale, _EXACT) for unit in units]
    if pa.types.is_floating(kind):
        width = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
        values = [0.0, -0.0, 0.1, 1.5, 2.0**15, float("inf"), rnd.uniform(-9, 9), 10.0 ** rnd.randint(-300, 300)]
        with np.errstate(over="ignore"):
            return [width(value) for value in values]
    least = 0 if pa.types.is_unsigned_integer(kind) else -(1 << kind.bit_width - 1)
    most = least + (1 << kind.bit_width) - 1
    near = [n for n in (2**24 + 1, 2**53 + 1, 127, 128, 1000) if n <= most]
    return [least, most, 0, 1, *near, rnd.randint(least, most)]


@pytest.mark.slow
@pytest.mark.parametrize("declared", [*_WHOLE[:4], *_DECIMALS, *_FLOATS[1:]], ids=str)
@pytest.mark.parametrize("found", [*_WHOLE, *_DECIMALS, *_FLOATS], ids=str)
def test_a_number_is_itself_or_a_misfit(found: pa.DataType, declared: pa.DataType) -> None:
    """By exact arithmetic; a decimal is a float's if the float is printed with its digits."""
    if pa.types.is_floating(found) and not pa.types.is_floating(declared):
        with pytest.raises(Unlike):
            cast_of(found, declared)
        return
    values = [*drawn(random.Random(f"{found} {declared} {tiers.seed()}"), found), None]
    made, faults = read(pa.array(values, found), declared)
    for value, got, fault in zip(values, made, faults, strict=True):
        if value is None:
            assert (got, fault) == (None, ValueFault.NONE)
            continue
        assert (fault == _M) == (got is None)
        if pa.types.is_floating(found):
            fits = value != value or float(nearest(declared, value)) == float(value)
        else:
            fits = is_exact(D(value), declared)
        assert fits == (fault == ValueFault.NONE), (value, got)
        if fits and value == value:
            assert got == value or (pa.types.is_floating(declared) and D(str(nearest(declared, value))) == D(value))


def nearest(kind: pa.DataType, value: Any) -> Any:
    """The float of this width."""
    with np.errstate(over="ignore"):
        return (np.float32 if kind.bit_width == 32 else np.float64)(float(value))


def is_exact(value: D, kind: pa.DataType) -> bool:
    """Whether a type has a number."""
    if pa.types.is_floating(kind):
        near = nearest(kind, value)
        return bool(np.isfinite(near)) and (D(str(near)) == value or D(float(near)) == value)
    if pa.types.is_decimal(kind):
        units = value.scaleb(kind.scale, _EXACT)
        return units == units.to_integral_value(context=_EXACT) and units.copy_abs() < 10**kind.precision
    return (
        value == value.to_integral_value(context=_EXACT)
        and -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1
    )


@pytest.mark.parametrize(
    ("values", "declared", "made", "faults"),
    [
        (pa.array([0.1, float("nan"), 1e300]), pa.float32(), [None, "nan", None], [_M, 0, _M]),
        (pa.array([b"a", b"\xff", "ü".encode(), None]), pa.string(), ["a", None, "ü", None], [0, _U, 0, 0]),
        (pa.array([b"\xff" * 9, None]).view(pa.string()), pa.string(), [None, None], [_U, 0]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"], [0]),
        (pa.array([b"\xc3", b"\xa9"], pa.large_binary()), pa.string(), [None, None], [_U, _U]),
        (pa.array(["ü"]), pa.binary(), ["ü".encode()], [0]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"], [0]),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"], [0, 0, 0]),
        (pa.array([300, 1]).dictionary_encode(), pa.int8(), [None, 1], [_M, 0]),
        (pa.nulls(2), pa.list_(pa.int8()), [None, None], [0, 0]),
        (pa.array([1, None, 300], pa.int32()).view(pa.date32()), pa.int8(), [1, None, None], [0, 0, _M]),
        (pa.array([7], pa.int64()).view(pa.timestamp("ns", "UTC")), pa.int64(), [7], [0]),
        (pa.array([7], pa.int64()).view(pa.time64("us")), pa.int8(), [7], [0]),
        (pa.array([1, 2**40]), pa.date32(), [date(1970, 1, 2), None], [0, _M]),
        (pa.array([b"0" * 16], pa.uuid()), pa.binary(), [b"0" * 16], [0]),
    ],
    ids=str,
)
def test_other_values(values: pa.Array, declared: pa.DataType, made: list[Any], faults: list[int]) -> None:
    """Texts are UTF-8; dictionaries and extensions are what they hold; times are numbers, as they are in the file."""
    found, of = read(values, declared)
    assert (["nan" if value != value else value for value in found], of) == (made, faults)


@pytest.mark.parametrize(
    ("unit", "values", "made", "faults"),
    [
        ("ns", [1_001, 2_000, -1_000, -1, None], [None, 2, -1, None, None], [_M, 0, 0, _M, 0]),
        ("us", [-(2**63), 2**63 - 1, None], [-(2**63), 2**63 - 1, None], [0, 0, 0]),
        ("ms", [-_MS - 1, _MS, _MS + 1, -_MS], [None, _MS * 1_000, None, -_MS * 1_000], [_F, 0, _F, 0]),
        ("s", [2**63 // 10**6, 2**63 // 10**6 + 1], [9223372036854000000, None], [0, _F]),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kathmandu"])
@pytest.mark.parametrize("declared", [_UTC, _NTZ], ids=str)
def test_times(
    unit: str, zone: str | None, declared: pa.DataType, values: list[Any], made: list[Any], faults: list[int]
) -> None:
    """Of any unit in µs; digits below them are none of the type, nor are times beyond 64 bits."""
    times = pa.array(values, pa.int64()).view(pa.timestamp(unit, zone))
    got, of = converted(times, cast_of(times.type, declared), declared)
    assert got.type == declared
    assert got.view(pa.int64()).to_pylist() == made
    assert ([0] * len(values) if of is None else of.tolist()) == faults


def test_a_day_is_its_midnight_without_a_zone() -> None:
    """As for Spark; a day without µs in 64 bits is far."""
    days = pa.array([1, None, 2**31 - 1], pa.int32()).view(pa.date32())
    made, faults = converted(days, cast_of(days.type, _NTZ), _NTZ)
    assert (made.view(pa.int64()).to_pylist(), faults.tolist()) == ([86_400_000_000, None, None], [0, 0, _F])


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        (pa.string(), pa.int64()),
        (pa.string(), pa.float64()),
        (pa.binary(), pa.date32()),
        (pa.int32(), pa.string()),
        (pa.int64(), _UTC),
        (pa.float64(), pa.date32()),
        (pa.decimal128(5, 0), pa.date32()),
        (pa.date32(), _UTC),
        (_UTC, pa.date32()),
        (pa.time32("ms"), _UTC),
        (pa.time64("us"), pa.float64()),
        (pa.decimal128(5, 0), pa.binary()),
        (pa.bool_(), pa.int8()),
        (pa.int8(), pa.bool_()),
        (pa.decimal256(40, 2), pa.decimal128(38, 2)),
        (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
    ],
    ids=str,
)
def test_types_without_values_of_the_other(found: pa.DataType, declared: pa.DataType) -> None:
    """A text is no number, a number is no time, though it may be a day."""
    with pytest.raises(Unlike):
        cast_of(found, declared)


def test_a_slice_has_its_own_faults() -> None:
    """Offsets of arrays count."""
    for values, declared in (
        (pa.array([b"\xff", b"a", b"\xff"]), pa.string()),
        (pa.array([300, 1, 300]), pa.int8()),
        (pa.array([D("0.1"), D("0.2"), D("0.3")], pa.decimal128(9, 1)), pa.float64()),
        (pa.array([1, 2000, 3], pa.timestamp("ns")), _NTZ),
    ):
        (value,), (fault,) = read(values.slice(1, 1), declared)
        assert value is not None
        assert fault == ValueFault.NONE
