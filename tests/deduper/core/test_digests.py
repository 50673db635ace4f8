"""The digest in Python against what Spark once said, what equals what, and Spark against what it once said."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from deduper.admin.keys import stored
from deduper.core.digests import java_hex, key_type, shards_of
from tests.deduper import digest_oracle
from tests.deduper.digest_cases import KEYS, SALT, VECTORS, digests_by_spark, local_session
from tests.deduper.digest_oracle import key_digest


def _vectors() -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    return vectors


@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_vectors(mode: str) -> None:
    """Every scalar type digests in Python to what Spark's JVM gave."""
    vectors = _vectors()
    assert len(vectors) == len(KEYS)
    for (types, values), vector in zip(KEYS, vectors, strict=True):
        assert vector["types"] == types
        assert vector["values"] == [repr(value) for value in values]
        digest = key_digest(values, types, SALT, secure=mode == "secure")
        assert [f"{word:016x}" for word in digest] == vector[mode], (types, values)


@pytest.mark.parametrize("secure", [False, True])
def test_commands_digest_one_key_alike(secure: bool) -> None:
    """A key that a command is asked for has the digest that its record has."""
    for types, values in KEYS:
        kinds = [key_type(declared) for declared in types]
        found = stored.key_digest(values, kinds, SALT, secure=secure)
        assert found == key_digest(values, types, SALT, secure=secure), (types, values)


@pytest.mark.night
@pytest.mark.spark
def test_spark_still_gives_the_vectors() -> None:
    """The Catalyst expressions give the stored digests: otherwise a new Spark would forget every key."""
    session = local_session()
    try:
        answers = digests_by_spark(session)
    finally:
        session.stop()
    assert answers == [{mode: vector[mode] for mode in ("fast", "secure")} for vector in _vectors()]


@pytest.mark.parametrize("shards", [1, 4, 7])
def test_a_shard_is_lo_modulo_the_shards(shards: int) -> None:
    """lo taken as unsigned, whatever its highest bit: otherwise a store would forget every key."""
    words = [0, 1, 2**64 - 1, 2**63 - 1, 2**63, 2**63 + 12345]
    pairs = np.array([[0, word] for word in words], np.uint64)
    assert shards_of(pairs, shards).tolist() == [word % shards for word in words]


@pytest.mark.parametrize("secure", [False, True])
def test_different_keys(secure: bool) -> None:
    """Null, empty, shifted fields, Unicode forms and types as declared: all different keys."""
    keys: list[tuple[list[Any], list[str]]] = [
        ([None], ["string"]),
        ([""], ["string"]),
        (["a", "bc"], ["string", "string"]),
        (["ab", "c"], ["string", "string"]),
        (["abc", ""], ["string", "string"]),
        (["abc", None], ["string", "string"]),
        ([None, "abc"], ["string", "string"]),
        (["é"], ["string"]),
        (["e\u0301"], ["string"]),
        ([None, None], ["string", "string"]),
    ]
    assert len({key_digest(values, types, SALT, secure=secure) for values, types in keys}) == len(keys)


def test_types_are_as_declared() -> None:
    """In fast, the width of a number is part of it: 1 as int, bigint, double, string and long decimal all differ."""
    keys: list[tuple[Any, str]] = [(1, "int"), (1, "bigint"), (1.0, "double"), ("1", "string"), (1.0, "float")]
    assert len({key_digest([value], [declared], SALT) for value, declared in keys}) == len(keys)
    assert key_digest([Decimal(1)], ["decimal(18,0)"], SALT) != key_digest([Decimal(1)], ["decimal(19,0)"], SALT)


@pytest.mark.parametrize("secure", [False, True])
def test_equal_keys(secure: bool) -> None:
    """-0.0 is 0.0, every NaN is one, an instant is its instant in any zone, trailing zeros of a decimal are nothing."""

    def same(left: Any, right: Any, declared: str) -> bool:
        return key_digest([left], [declared], SALT, secure=secure) == key_digest(
            [right], [declared], SALT, secure=secure
        )

    assert same(-0.0, 0.0, "double")
    assert same(-0.0, 0.0, "float")
    assert same(math.nan, -math.nan, "double")
    assert same(Decimal("1.5"), Decimal("1.500"), "decimal(9,3)")
    assert same(datetime(2024, 1, 1, 12, tzinfo=UTC), datetime.fromisoformat("2024-01-01T17:45:00+05:45"), "timestamp")


def test_salt_matters() -> None:
    """Each half of the salt changes its half of a fast digest, and any of it all of a secure one."""
    other = SALT[:8] + bytes(8)
    fast, fast_other = (key_digest(["k"], ["string"], salt) for salt in (SALT, other))
    assert fast[0] == fast_other[0]
    assert fast[1] != fast_other[1]
    secure, secure_other = (key_digest(["k"], ["string"], salt, secure=True) for salt in (SALT, other))
    assert secure[0] != secure_other[0]
    with pytest.raises(ValueError, match="16 bytes"):
        key_digest(["k"], ["string"], b"short")


def test_zero_is_avoided() -> None:
    """(0, 0) marks an empty slot of a table, so no key has it."""
    assert digest_oracle.not_zero(0, 0) == (0, 1)
    assert digest_oracle.not_zero(0, 7) == (0, 7)
    assert digest_oracle.not_zero(7, 0) == (7, 0)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (128, "tinyint"),
        (True, "int"),
        (1, "boolean"),
        (Decimal("1.005"), "decimal(9,2)"),
        (Decimal("1000"), "decimal(3,0)"),
        (Decimal("NaN"), "decimal(3,0)"),
        (datetime(2024, 1, 1, tzinfo=UTC), "timestamp_ntz"),
        (datetime.fromisoformat("2024-01-01"), "timestamp"),
        (datetime.fromisoformat("2024-01-01"), "date"),
        ("text", "binary"),
        ("x", "array<string>"),
    ],
)
def test_values_not_of_their_type(value: Any, declared: str) -> None:
    """A value that Spark could not hold in the declared type is refused, not rounded."""
    with pytest.raises(ValueError, match=r"."):
        key_digest([value], [declared], SALT)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0x0.0p0"),
        (-0.0, "0x0.0p0"),
        (1.0, "0x1.0p0"),
        (-1.5, "-0x1.8p0"),
        (0.1, "0x1.999999999999ap-4"),
        (5e-324, "0x0.0000000000001p-1022"),
        (1.7976931348623157e308, "0x1.fffffffffffffp1023"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
    ],
)
def test_java_hex(value: float, text: str) -> None:
    """The examples of Double.toHexString's own documentation."""
    assert java_hex(value) == text


def test_shards_are_unsigned() -> None:
    """The upper half of lo is no negative number."""
    pairs = np.array([[0, 2**64 - 1], [0, 2**63], [5, 7]], np.uint64)
    assert shards_of(pairs, 7).tolist() == [(2**64 - 1) % 7, 2**63 % 7, 0]
