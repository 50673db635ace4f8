"""The fast digest of a key as Catalyst expressions; `digests` defines it and computes the same in Python.

Everything runs in the JVM, in generated code. The caller has cast each column to its declared type: the digest of a
value depends on its type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from deduper.core.digests import check_salt, key_type


def fast_digest(columns: Sequence[tuple[Column, str]], salt: bytes) -> tuple[Column, Column]:
    """(hi, lo) as bigint, of (column, declared type) pairs: two salted xxhash64 over (is null, value) pairs."""
    check_salt(salt)
    for _, declared in columns:
        key_type(declared)
    parts = [part for column, _ in columns for part in (column.isNull(), column)]
    first, second = struct.unpack("<qq", salt)
    return not_zero(F.xxhash64(_bigint(first), *parts), F.xxhash64(_bigint(second), *parts))


def not_zero(hi: Column, lo: Column) -> tuple[Column, Column]:
    """The words, of which one is not 0: (0, 0) is no key."""
    return hi, F.when((hi == 0) & (lo == 0), _bigint(1)).otherwise(lo)


def _bigint(value: int) -> Column:
    # A small Python int would become an INT literal, which hashes unlike a bigint.
    return F.lit(value).cast("bigint")
