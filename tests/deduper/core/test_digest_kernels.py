"""The digest over whole Arrow columns against the digest value by value, which Spark's vectors stand behind."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.arrow_columns import arrow_type
from deduper.core.digest_kernels import array_digest
from deduper.core.digests import key_type
from tests.deduper.digest_cases import KEYS, SALT, SCALARS
from tests.deduper.digest_oracle import key_digest

both = pytest.mark.parametrize("secure", [False, True], ids=["fast", "secure"])


def digests_of(columns: list[pa.Array], types: list[str], *, secure: bool = False) -> list[tuple[int, int]]:
    """(hi, lo) of every row."""
    hi, lo = array_digest(columns, [key_type(name) for name in types], SALT, secure=secure)
    return [(int(one), int(other)) for one, other in zip(hi, lo, strict=True)]


def column(values: list[Any], name: str) -> pa.Array:
    """An Arrow column that begins in the middle of its buffers, as slices of a file's batches do."""
    padded = [*values[:3], None, *values]
    return pa.array(padded, arrow_type(key_type(name)))[len(padded) - len(values) :]


@both
@pytest.mark.parametrize("name", SCALARS)
def test_every_type(name: str, secure: bool) -> None:
    """Every scalar, with nulls between, digests to what the definition gives."""
    values = [*SCALARS[name], None, *reversed(SCALARS[name])]
    found = digests_of([column(values, name)], [name], secure=secure)
    assert found == [key_digest([value], [name], SALT, secure=secure) for value in values]


@both
def test_several_columns(secure: bool) -> None:
    """Keys of several columns, with nulls in any of them."""
    for types, values in KEYS:
        columns = [column([value], name) for value, name in zip(values, types, strict=True)]
        found = digests_of(columns, types, secure=secure)
        assert found == [key_digest(values, types, SALT, secure=secure)], (types, values)


@pytest.mark.slow
@both
@given(st.lists(st.one_of(st.none(), st.decimals(allow_nan=False, allow_infinity=False, places=3)), max_size=20))
def test_wide_decimals(secure: bool, values: list[Decimal | None]) -> None:
    """Of as many bytes as each needs, and in the text of Java."""
    name = "decimal(38,3)"
    values = [None if value is None or abs(value) >= 10**34 else value for value in values]
    found = digests_of([column(values, name)], [name], secure=secure)
    assert found == [key_digest([value], [name], SALT, secure=secure) for value in values]


@pytest.mark.slow
@both
@given(st.lists(st.one_of(st.none(), st.floats()), max_size=20))
def test_doubles(secure: bool, values: list[float | None]) -> None:
    """Of any size."""
    found = digests_of([column(values, "double")], ["double"], secure=secure)
    assert found == [key_digest([value], ["double"], SALT, secure=secure) for value in values]


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.binary(max_size=150)), max_size=20), st.randoms())
def test_texts_of_any_length(values: list[bytes | None], rng: random.Random) -> None:
    """Bytes of every length, next to whole numbers."""
    whole = [None if rng.random() < 0.2 else rng.randrange(-(2**63), 2**63) for _ in values]
    found = digests_of([column(values, "binary"), column(whole, "bigint")], ["binary", "bigint"])
    rows = zip(values, whole, strict=True)
    assert found == [key_digest(row, ["binary", "bigint"], SALT) for row in rows]


@pytest.mark.parametrize(("name", "bits"), [("float", np.uint32), ("double", np.uint64)])
def test_every_nan_is_one(name: str, bits: type[np.unsignedinteger[Any]]) -> None:
    """Whatever its sign and payload."""
    size = np.dtype(bits).itemsize * 8
    signalling = 0x7FF0000000000001 if size == 64 else 0x7F800001
    patterns = np.array([2**size - 1, 2 ** (size - 1) - 1, signalling], bits)
    values = pa.array(patterns.view(np.float32 if size == 32 else np.float64))
    assert set(digests_of([values], [name])) == {key_digest([float("nan")], [name], SALT)}


def test_rows_without_values_have_no_buffers() -> None:
    """Columns of nulls alone, and of nothing."""
    for secure in (False, True):
        digest = key_digest([None], ["string"], SALT, secure=secure)
        assert digests_of([pa.nulls(2, pa.string())], ["string"], secure=secure) == [digest] * 2
        assert digests_of([pa.array([], pa.string())], ["string"], secure=secure) == []


def test_the_salt_is_checked() -> None:
    """As everywhere: half a salt is no salt."""
    with pytest.raises(ValueError, match="16 bytes"):
        array_digest([pa.array(["a"])], [key_type("string")], b"short")
