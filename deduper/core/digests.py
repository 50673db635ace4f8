"""The digest of a dedup key: its definition, and the values that it is made of.

`digest_kernels` computes it for columns of Arrow, `sources.digest_columns` the fast one in Spark's JVM; tests have both
in the JVM and row by row. A digest is 128 bits, (hi, lo), both unsigned here and bigint in Spark; (0, 0) marks an empty
slot in the store's tables, so it becomes (0, 1). The salt is the store's own secret: without it, nobody can prepare
keys that collide.

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

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deduper.columns import ColumnType, parse_columns

SALT_BYTES: Final = 16
SEED: Final = 42

KeyValue = None | bool | int | float | Decimal | str | bytes | date | datetime
Plain = int | float | bytes

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_EPOCH_DAY = date(1970, 1, 1)
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


def shards_of(digests: NDArray[np.uint64], shards: int) -> NDArray[np.int64]:
    """Shard of each digest of uint64[n, 2]: its lo mod shards, as `kernels.partition` has it."""
    shard: NDArray[np.int64] = (digests[:, 1] % np.uint64(shards)).astype(np.int64)
    return shard


def check_salt(salt: bytes) -> None:
    """Raises ValueError unless the salt has 16 bytes."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")


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


def java_hex(value: float) -> str:
    """Java's Double.toHexString, with -0.0 as 0.0: exact, and the same in every release of Java."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, exponent = (value + 0.0).hex().split("p")
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}p{int(exponent)}"
