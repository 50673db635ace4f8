"""Numbers of a Parquet file that the declared type may not hold: Spark reads them by a type that does."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from deduper.tasks.readers.parquet_numbers import exact_type, may_misread

_WHOLE = [getattr(pa, f"{sign}int{bits}")() for sign, bits in itertools.product(("", "u"), (8, 16, 32, 64))]
_RANGES = {
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "decimal(20,0)": (-(10**20) + 1, 10**20 - 1),
}


def bounds(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest number of a type."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


@pytest.mark.parametrize("declared", _WHOLE[:4], ids=str)
@pytest.mark.parametrize("found", _WHOLE, ids=str)
def test_whole_numbers(found: pa.DataType, declared: pa.DataType) -> None:
    """The declared type where it holds all numbers of the file's, else one that does."""
    exact = exact_type(found, declared)
    least, greatest = bounds(declared) if exact is None else _RANGES[exact]
    assert least <= bounds(found)[0]
    assert bounds(found)[1] <= greatest
    fits = bounds(declared)[0] <= bounds(found)[0] and bounds(found)[1] <= bounds(declared)[1]
    assert fits == (exact is None)


@pytest.mark.parametrize(
    ("found", "declared", "exact"),
    [
        (pa.date32(), pa.int16(), "int"),
        (pa.date32(), pa.int32(), None),
        (pa.time32("ms"), pa.int8(), "int"),
        (pa.timestamp("ns"), pa.int64(), None),
        (pa.timestamp("ns"), pa.int32(), None),
        (pa.decimal128(9, 2), pa.int32(), "decimal(9,2)"),
        (pa.decimal128(9, 2), pa.float64(), "decimal(9,2)"),
        (pa.decimal128(9, 2), pa.date32(), None),
        (pa.decimal128(9, 2), pa.decimal128(18, 2), None),
        (pa.decimal256(40, 2), pa.int64(), None),
        (pa.uint32(), pa.float64(), "bigint"),
        (pa.uint16(), pa.float64(), None),
        (pa.uint32(), pa.date32(), "bigint"),
        (pa.int32(), pa.date32(), None),
        (pa.uint32(), pa.string(), None),
        (pa.string(), pa.int8(), None),
    ],
    ids=str,
)
def test_other_numbers(found: pa.DataType, declared: pa.DataType, exact: str | None) -> None:
    """Days, times, decimals and floating point; None also for what Spark refuses by itself."""
    assert exact_type(found, declared) == exact


@pytest.mark.parametrize(
    ("found", "declared", "misread"),
    [
        (pa.list_(pa.uint64()), pa.list_(pa.int64()), True),
        (pa.large_list(pa.uint64()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int64()), False),
        (pa.map_(pa.string(), pa.uint8()), pa.map_(pa.string(), pa.int8()), True),
        (pa.map_(pa.uint32(), pa.string()), pa.map_(pa.int32(), pa.string()), True),
        (pa.struct({"X": pa.list_(pa.uint32())}), pa.struct({"x": pa.list_(pa.int32())}), True),
        (pa.struct({"y": pa.uint32()}), pa.struct({"x": pa.int32()}), False),
        (pa.int64(), pa.list_(pa.int64()), False),
        (pa.list_(pa.uint64()), pa.int64(), False),
    ],
    ids=str,
)
def test_numbers_inside(found: pa.DataType, declared: pa.DataType, misread: bool) -> None:
    """At any depth of lists, maps and structs, whose fields go by name in any case."""
    assert may_misread(found, declared) is misread
