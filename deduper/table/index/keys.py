"""PURE. Keys of Arrow columns: their digests, and the buckets of partition values, exact and not by hash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.digest_kernels import array_digest
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.formats.protocol import PartitionValue

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]


def row_keys(arrays: Sequence[pa.Array], columns: KeyColumns, salt: bytes) -> tuple[Int64s, UInt64s, UInt64s]:
    """(bucket, hi, lo) of every row; `arrays` are those of `columns.digested`. Rows with a null have any."""
    hi, lo = digests_of(arrays, columns.digested, salt)
    by = columns.bucket_column
    bucket = np.zeros(len(hi), np.int64) if by is None else buckets_of(arrays[columns.digested.index(by)], by)
    return bucket, hi, lo


def without_null(arrays: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Whether each row has no null."""
    whole = np.ones(len(arrays[0]), np.bool_)
    for array in arrays:
        if array.null_count:
            whole &= array.is_valid().to_numpy(zero_copy_only=False)
    return whole


def digests_of(columns: Sequence[pa.Array], kinds: Sequence[KeyColumn], salt: bytes) -> tuple[UInt64s, UInt64s]:
    """(hi, lo) of every row; columns of the kinds' own Arrow types."""
    return array_digest(columns, [kind.kind for kind in kinds], salt)


def buckets_of(column: pa.Array, kind: KeyColumn) -> Int64s:
    """The bucket of every value of an integer or date column: the number itself, a date's days. Nulls get any."""
    buckets: Int64s = plain_of(column, kind).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return buckets


def plain_of(column: pa.Array, kind: KeyColumn) -> pa.Array:
    """A partition column as `PartitionValue`s: a date is its days."""
    return column.view(pa.int32()) if kind.type == "date" else column


def wide(values: pa.Array) -> pa.Array:
    """Texts and bytes with offsets of 64 bits: all those of a column may take more than 2 GiB."""
    kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return values.cast(kinds.get(values.type, values.type))


def array_of(value: PartitionValue, kind: KeyColumn, rows: int) -> pa.Array:
    """A column with the value of a partition in every row."""
    plain = pa.repeat(pa.scalar(value, pa.int32() if kind.type == "date" else kind.arrow), rows)
    return plain.cast(kind.arrow)
