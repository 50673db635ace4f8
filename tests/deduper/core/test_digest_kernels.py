"""The digest over whole Arrow columns against the digest value by value, which Spark's vectors stand behind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.arrow_columns import arrow_type
from deduper.core.digest_kernels import array_digest, has_array_digest
from deduper.core.digests import key_digest, key_type
from tests.deduper.digest_cases import KEYS, SALT, SCALARS


def digests_of(columns: list[pa.Array], types: list[str]) -> list[tuple[int, int]]:
    """(hi, lo) of every row."""
    hi, lo = array_digest(columns, [key_type(name) for name in types], SALT)
    return [(int(one), int(other)) for one, other in zip(hi, lo, strict=True)]


def column(values: list[Any], name: str) -> pa.Array:
    """An Arrow column that begins in the middle of its buffers, as slices of a file's batches do."""
    padded = [*values[:3], None, *values]
    return pa.array(padded, arrow_type(key_type(name)))[len(padded) - len(values) :]


@pytest.mark.parametrize("name", [name for name in SCALARS if has_array_digest(key_type(name))])
def test_every_type(name: str) -> None:
    """Every scalar, with nulls between, digests to what the definition gives."""
    values = [*SCALARS[name], None, *reversed(SCALARS[name])]
    assert digests_of([column(values, name)], [name]) == [key_digest([value], [name], SALT) for value in values]


def test_wide_decimals_have_none() -> None:
    """Their bytes are as many as each needs: they are left to Spark."""
    assert [name for name in SCALARS if not has_array_digest(key_type(name))] == [
        "decimal(19,2)",
        "decimal(38,0)",
        "decimal(38,38)",
    ]


def test_several_columns() -> None:
    """Keys of several columns, with nulls in any of them."""
    for types, values in KEYS:
        if all(has_array_digest(key_type(name)) for name in types):
            columns = [column([value], name) for value, name in zip(values, types, strict=True)]
            assert digests_of(columns, types) == [key_digest(values, types, SALT)], (types, values)


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
    assert digests_of([pa.nulls(2, pa.string())], ["string"]) == [key_digest([None], ["string"], SALT)] * 2
    assert digests_of([pa.array([], pa.string())], ["string"]) == []


def test_the_salt_is_checked() -> None:
    """As everywhere: half a salt is no salt."""
    with pytest.raises(ValueError, match="16 bytes"):
        array_digest([pa.array(["a"])], [key_type("string")], b"short")
