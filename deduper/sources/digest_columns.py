"""The digest of a dedup key as Catalyst expressions; `digests` defines it and computes the same in Python.

Everything runs in the JVM, in generated code. The caller has cast each column to its declared type: the digest of a
value depends on its type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from deduper.columns import ColumnType
from deduper.core.digests import check_salt, key_type

_DAY_US = 86_400_000_000


def fast_digest(columns: Sequence[tuple[Column, str]], salt: bytes) -> tuple[Column, Column]:
    """(hi, lo) as bigint, of (column, declared type) pairs: two salted xxhash64 over (is null, value) pairs."""
    check_salt(salt)
    for _, declared in columns:
        key_type(declared)
    parts = [part for column, _ in columns for part in (column.isNull(), column)]
    first, second = struct.unpack("<qq", salt)
    return _not_zero(F.xxhash64(_bigint(first), *parts), F.xxhash64(_bigint(second), *parts))


def secure_digest(columns: Sequence[tuple[Column, str]], salt: bytes) -> tuple[Column, Column]:
    """(hi, lo) as bigint, of (column, declared type) pairs: the first 16 bytes of a salted SHA-256, word by word.

    The two words go through xxhash64, which maps 8 bytes to a bigint one to one.
    """
    check_salt(salt)
    parts = [_part(column, key_type(declared)) for column, declared in columns]
    sha = F.unhex(F.sha2(F.concat(F.lit(bytearray(salt)), *parts), 256))
    return _not_zero(F.xxhash64(F.substring(sha, 1, 8)), F.xxhash64(F.substring(sha, 9, 8)))


def _not_zero(hi: Column, lo: Column) -> tuple[Column, Column]:
    return hi, F.when((hi == 0) & (lo == 0), _bigint(1)).otherwise(lo)


def _bigint(value: int) -> Column:
    # A small Python int would become an INT literal, which hashes unlike a bigint.
    return F.lit(value).cast("bigint")


def _part(column: Column, kind: ColumnType) -> Column:
    text = _text(column, kind)
    length = F.concat(F.octet_length(text).cast("string"), F.lit(":")).cast("binary")
    return F.coalesce(F.concat(length, text), F.lit(bytearray(b"-")))


def _text(column: Column, kind: ColumnType) -> Column:
    """The text of a value as binary, null for null; see `digests`."""
    match kind.name:
        case "binary":
            return column
        case "string" | "boolean" | "tinyint" | "smallint" | "int" | "bigint":
            text = column
        case "date":
            text = F.unix_date(column)
        case "timestamp":
            text = F.unix_micros(column)
        case "timestamp_ntz":
            text = ntz_micros(column)
        case "decimal":
            # A cast to string writes small ones with or without an exponent, as spark.sql.ansi.enabled says.
            text = _formatted(column, "%s", column)
        case _:
            number = column.cast("double")
            # -0.0 = 0.0 holds, and then the literal is taken.
            number = F.when(number == 0, F.lit(0.0)).otherwise(number)
            text = _formatted(column, "%a", number)
    return text.cast("string").cast("binary")


def _formatted(column: Column, form: str, value: Column) -> Column:
    # Without the check a null would become the text "null".
    return F.when(column.isNotNull(), F.format_string(form, value))


def ntz_micros(column: Column) -> Column:
    """Microseconds since 1970-01-01 on a clock without a zone; Spark has none but by way of the session's zone."""
    second_us = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("bigint")
    in_day = (F.hour(column).cast("bigint") * 60 + F.minute(column)) * 60_000_000 + second_us
    return F.unix_date(column.cast("date")).cast("bigint") * _DAY_US + in_day
