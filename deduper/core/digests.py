"""The digest of a dedup key, computed in Python: bit for bit what `sources.digest_columns` computes in Spark's JVM.

For `explain`, for tests, and as the definition. A digest is 128 bits, (hi, lo), both unsigned here and bigint in
Spark; (0, 0) marks an empty slot in the store's tables, so it becomes (0, 1). The salt is the store's own secret:
without it, nobody can prepare keys that collide.

fast
    hi and lo are two folds of Spark's xxhash64 over (salt half, c1 is null, c1, c2 is null, c2 ...), each element
    hashed with the running hash as its seed, from 42; salt[0:8] leads hi and salt[8:16] lo, as little-endian int64.
    A null leaves the hash as it is, which is why its flag is hashed too. The bytes of an element:
      boolean                     int32 1 or 0
      tinyint, smallint, int      int32, little endian
      date                        int32, days since 1970-01-01
      bigint                      int64, little endian
      timestamp, timestamp_ntz    int64, microseconds since 1970-01-01 (in UTC; as written on the clock)
      float, double               the IEEE bits, 4 or 8 bytes; -0.0 as 0.0, every NaN as one
      decimal, precision <= 18    int64, the unscaled value
      decimal, precision > 18     the unscaled value in two's complement, big endian, as few bytes as hold it
      string, binary              its bytes (UTF-8)
secure
    SHA-256 over salt + one part for every column: b"-" for null, else b"<length>:" + text, the length in decimal
    digits. The first two 8-byte words of it each go through xxhash64 with seed 42: for inputs of exactly 8 bytes that
    is one to one, so nothing of SHA-256 is lost, and it is the fastest way from bytes to a bigint in Spark SQL.
      boolean                     true or false
      integers, date, timestamps  decimal digits of the numbers above
      decimal                     Java's BigDecimal.toString at the declared scale: 1.50, 0.00, 1E-38
      float, double               as double, Java's Double.toHexString: 0x1.8p1, 0x0.0p0, NaN, -Infinity
      string, binary              its bytes (UTF-8)

Values are of their declared types, which are fixed for the life of a store: to `fast`, int 1, bigint 1, double 1.0
and "1" are four different keys.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from deduper.columns import ColumnType, parse_columns

SALT_BYTES: Final = 16
SEED: Final = 42

KeyValue = None | bool | int | float | Decimal | str | bytes | date | datetime
Plain = int | float | bytes

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_EPOCH_DAY = date(1970, 1, 1)
_LONG_DIGITS = 18
_WIDE = Context(prec=40)
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def key_type(declared: str) -> ColumnType:
    """The type of a key column, declared in any spelling Spark takes: `long`, `DECIMAL(10, 2)`, `string`.

    Raises:
        ValueError: not a scalar type; the message shows the text.
    """
    columns = parse_columns(f"key {declared}")
    if len(columns) != 1 or not columns[0].type.is_scalar:
        raise ValueError(f"a key column must be of a scalar type, not {declared!r}")
    return columns[0].type


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
    return plain_digest(plain, kinds, salt, secure=secure)


def plain_digest(
    plain: Sequence[Plain | None], kinds: Sequence[ColumnType], salt: bytes, *, secure: bool = False
) -> tuple[int, int]:
    """(hi, lo), unsigned, of values that are plain already; see `plain_value`. The same number of each.

    Raises:
        ValueError: the salt's length is wrong.
    """
    check_salt(salt)
    if secure:
        return _not_zero(*_secure(plain, kinds, salt))
    return _not_zero(_fold(plain, kinds, salt[:8]), _fold(plain, kinds, salt[8:]))


def shards_of(digests: NDArray[np.uint64], shards: int) -> NDArray[np.int64]:
    """Shard of each digest of uint64[n, 2]: its lo mod shards, as `kernels.partition` has it."""
    shard: NDArray[np.int64] = (digests[:, 1] % np.uint64(shards)).astype(np.int64)
    return shard


def check_salt(salt: bytes) -> None:
    """Raises ValueError unless the salt has 16 bytes."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")


def _not_zero(hi: int, lo: int) -> tuple[int, int]:
    return (hi, lo) if hi or lo else (0, 1)


def plain_value(value: KeyValue, kind: ColumnType) -> Plain:
    """The value as an int (all integers, booleans, times, unscaled decimals), a float, or bytes.

    Raises:
        ValueError: not a value of the type.
    """
    if kind.name == "boolean" and isinstance(value, bool):
        return int(value)
    if kind.name in _INTEGER_BITS and isinstance(value, int) and not isinstance(value, bool):
        half = 1 << _INTEGER_BITS[kind.name] - 1
        if not -half <= value < half:
            raise ValueError(f"{value} is no {kind.name}")
        return value
    if kind.name in ("float", "double") and isinstance(value, int | float) and not isinstance(value, bool):
        with np.errstate(over="ignore"):  # beyond a float's range is infinity, as in Spark's cast
            return float(np.float32(value)) if kind.name == "float" else float(value)
    if kind.name == "decimal" and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return _unscaled(Decimal(value), kind)
    if kind.name == "string" and isinstance(value, str):
        return value.encode()
    if kind.name == "binary" and isinstance(value, bytes):
        return value
    if kind.name == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH_DAY).days
    if kind.name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH_UTC) // timedelta(microseconds=1)
    if kind.name == "timestamp_ntz" and isinstance(value, datetime) and value.tzinfo is None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    raise ValueError(f"{value!r} is no {kind.name}")


def _unscaled(value: Decimal, kind: ColumnType) -> int:
    if not value.is_finite():
        raise ValueError(f"{value} is no decimal")
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)))
    precision, scale = kind.precision or 0, kind.scale or 0
    shift = int(exponent) + scale
    # Before any power is taken: 1e999999999 is typed in a moment and computed for hours.
    if number and value.adjusted() + scale >= precision:
        raise ValueError(f"{value} is no {kind.text}")
    if number and shift >= 0:
        number *= int(10**shift)
    elif number:
        number, rest = divmod(number, int(10 ** min(-shift, len(digits))))
        if rest:
            raise ValueError(f"{value} has more than {scale} digits after the point")
    return -number if sign else number


def _fold(plain: Sequence[int | float | bytes | None], kinds: Sequence[ColumnType], salt_half: bytes) -> int:
    running = xxhash.xxh64_intdigest(salt_half, seed=SEED)
    for value, kind in zip(plain, kinds, strict=True):
        running = xxhash.xxh64_intdigest(struct.pack("<i", value is None), seed=running)
        if value is not None:
            running = xxhash.xxh64_intdigest(_hashed_bytes(value, kind), seed=running)
    return int(running)


def _hashed_bytes(value: int | float | bytes, kind: ColumnType) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        normal = math.nan if math.isnan(value) else value + 0.0
        return struct.pack("<f" if kind.name == "float" else "<d", normal)
    if kind.name == "decimal" and (kind.precision or 0) > _LONG_DIGITS:
        # As few bytes as hold the number and its sign, as Java's BigInteger.toByteArray gives them.
        magnitude = value if value >= 0 else ~value
        return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    is_int32 = kind.name in ("boolean", "date") or _INTEGER_BITS.get(kind.name, 64) <= 32
    return struct.pack("<i" if is_int32 else "<q", value)


def _secure(plain: Sequence[int | float | bytes | None], kinds: Sequence[ColumnType], salt: bytes) -> tuple[int, int]:
    sha = hashlib.sha256(salt)
    for value, kind in zip(plain, kinds, strict=True):
        if value is None:
            sha.update(b"-")
        else:
            text = _text(value, kind)
            sha.update(b"%d:" % len(text) + text)
    digest = sha.digest()
    return xxhash.xxh64_intdigest(digest[:8], seed=SEED), xxhash.xxh64_intdigest(digest[8:16], seed=SEED)


def _text(value: int | float | bytes, kind: ColumnType) -> bytes:
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


def java_hex(value: float) -> str:
    """Java's Double.toHexString, with -0.0 as 0.0: exact, and the same in every release of Java."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, exponent = (value + 0.0).hex().split("p")
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}p{int(exponent)}"
