"""The digest of a dedup key, value by value, as `deduper.core.digests` defines it."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal

import xxhash

from deduper.columns import ColumnType
from deduper.core.digests import SEED, KeyValue, Plain, check_salt, java_hex, key_type, plain_value

_LONG_DIGITS = 18
_WIDE = Context(prec=40)
_INT32 = ("boolean", "date", "tinyint", "smallint", "int")


def key_digest(
    values: Sequence[KeyValue], types: Sequence[str], salt: bytes, *, secure: bool = False
) -> tuple[int, int]:
    """(hi, lo), unsigned, of the key made of `values`, declared as `types`.

    Raises:
        ValueError: a value is none of its type (out of range, digits beyond the scale, a timestamp without a zone or
            a timestamp_ntz with one), or the counts or the salt's length are wrong.
    """
    kinds = [key_type(declared) for declared in types]
    plain = [None if value is None else plain_value(value, kind) for value, kind in zip(values, kinds, strict=True)]
    check_salt(salt)
    if secure:
        return not_zero(*_secure(plain, kinds, salt))
    return not_zero(_fold(plain, kinds, salt[:8]), _fold(plain, kinds, salt[8:]))


def not_zero(hi: int, lo: int) -> tuple[int, int]:
    """(0, 0) marks an empty slot in the tables of a store."""
    return (hi, lo) if hi or lo else (0, 1)


def _fold(plain: Sequence[Plain | None], kinds: Sequence[ColumnType], salt_half: bytes) -> int:
    running = xxhash.xxh64_intdigest(salt_half, seed=SEED)
    for value, kind in zip(plain, kinds, strict=True):
        running = xxhash.xxh64_intdigest(struct.pack("<i", value is None), seed=running)
        if value is not None:
            running = xxhash.xxh64_intdigest(hashed_bytes(value, kind), seed=running)
    return int(running)


def hashed_bytes(value: Plain, kind: ColumnType) -> bytes:
    """The bytes of an element of a fast digest."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        normal = math.nan if math.isnan(value) else value + 0.0
        return struct.pack("<f" if kind.name == "float" else "<d", normal)
    if kind.name == "decimal" and (kind.precision or 0) > _LONG_DIGITS:
        # As few bytes as hold the number and its sign, as Java's BigInteger.toByteArray gives them.
        magnitude = value if value >= 0 else ~value
        return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    return struct.pack("<i" if kind.name in _INT32 else "<q", value)


def _secure(plain: Sequence[Plain | None], kinds: Sequence[ColumnType], salt: bytes) -> tuple[int, int]:
    sha = hashlib.sha256(salt)
    for value, kind in zip(plain, kinds, strict=True):
        if value is None:
            sha.update(b"-")
        else:
            text = _text(value, kind)
            sha.update(b"%d:" % len(text) + text)
    digest = sha.digest()
    return xxhash.xxh64_intdigest(digest[:8], seed=SEED), xxhash.xxh64_intdigest(digest[8:16], seed=SEED)


def _text(value: Plain, kind: ColumnType) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return java_hex(value).encode()
    if kind.name == "boolean":
        return b"true" if value else b"false"
    if kind.name == "decimal":
        # The two standards agree on this text.
        return str(Decimal(value).scaleb(-(kind.scale or 0), _WIDE)).encode()
    return b"%d" % value
