"""Which rows have wanted keys: row groups by the bounds of a key column, rows by their digests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bucket_store.tables.matching import match_sorted
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.index.keys import SortedKeys, UInt64s, in_order, row_keys, without_null
from deduper.table.stored_times import has_old_dates

_BOUNDED = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Types whose bounds in footers compare as their values in Python; a date is its days, of which Python lacks some."""
_FIRST_DAY = date(1970, 1, 1)
_MARKS_A_KEY = 16
_LEAST_MARK_BITS, _MOST_MARK_BITS = 10, 24


class WantedKeys:
    """Keys, to be found again in rows; digests with the salt of the look-up that gave them.

    The first bits of a digest rule out most rows; the rest is sorted.
    """

    def __init__(self, keys: SortedKeys, columns: KeyColumns, salt: bytes) -> None:
        self._columns = columns
        self._salt = salt
        self._digests: dict[int, UInt64s] = {
            int(keys.bucket[begin]): keys.digests[begin:end] for begin, end in pairwise(keys.runs().tolist())
        }
        bits = min(max((keys.count * _MARKS_A_KEY).bit_length(), _LEAST_MARK_BITS), _MOST_MARK_BITS)
        self._shift = np.uint64(64 - bits)
        self._is_marked = np.zeros(1 << bits, np.bool_)
        self._is_marked[keys.digests[:, 0] >> self._shift] = True

    def among(self, arrays: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """Whether the key of each row is wanted; a key with a null never is. `arrays` are of `columns.digested`."""
        wanted = np.zeros(len(arrays[0]), np.bool_)
        bucket, hi, lo = row_keys(arrays, self._columns, self._salt)
        likely = np.flatnonzero(self._is_marked[hi >> self._shift])
        rows, keys = in_order(bucket[likely], hi[likely], lo[likely])
        for begin, end in pairwise(keys.runs().tolist()):
            digests = self._digests.get(int(keys.bucket[begin]))
            if digests is not None:
                wanted[likely[rows[begin:end]]] = match_sorted(digests, keys.digests[begin:end]) >= 0
        return wanted & without_null(arrays)


def bounded_column(columns: KeyColumns) -> KeyColumn | None:
    """The key column by whose bounds row groups are skipped; None when there is none that serves."""
    stored = (column for column in columns.key if column not in columns.partition_by)
    return next((column for column in stored if column.type in _BOUNDED), None)


class SortedValues:
    """The different values of a column in their order; nulls are left out."""

    def __init__(self, values: pa.Array) -> None:
        self._values = pc.unique(values).drop_null().sort()

    def has_between(self, least: Any, greatest: Any) -> bool:
        """Whether one of them is between two as `value_of` has them, both included; None is no bound."""
        place = 0 if least is None else bisect_left(self._values, least, key=value_of)
        return place < len(self._values) and (greatest is None or bool(value_of(self._values[place]) <= greatest))


def groups_with(footer: pq.FileMetaData, column: KeyColumn, wanted: SortedValues) -> list[int]:
    """The row groups of a file that may have one of the values in a column, by the bounds in its footer."""
    at = _place_of(footer, column)
    if _has_no_bounds(footer, column):
        return list(range(footer.num_row_groups))
    return [group for group in range(footer.num_row_groups) if _may_have(footer.row_group(group).column(at), wanted)]


def bounds_of(footer: pq.FileMetaData, column: KeyColumn) -> tuple[Any, Any] | None:
    """The least and the greatest value of a file's column, as `value_of` has them; None if its footer does not say."""
    if _has_no_bounds(footer, column):
        return None
    at = _place_of(footer, column)
    chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
    bounds = [_bounds(chunk) for chunk in chunks if not _is_null(chunk)]
    known = [one for one in bounds if one is not None]
    if not known or len(known) < len(bounds):
        return None
    return min(one[0] for one in known), max(one[1] for one in known)


def _has_no_bounds(footer: pq.FileMetaData, column: KeyColumn) -> bool:
    """Whether bounds are of another calendar than the values that are read."""
    return column.type == "date" and has_old_dates(footer)


def _may_have(chunk: pq.ColumnChunkMetaData, wanted: SortedValues) -> bool:
    if _is_null(chunk):
        return False
    bounds = _bounds(chunk)
    return bounds is None or wanted.has_between(*bounds)


def _is_null(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a column of a row group is said to have nulls alone."""
    found = chunk.statistics
    return found is not None and not found.has_min_max and found.has_null_count and found.null_count == chunk.num_values


def _bounds(chunk: pq.ColumnChunkMetaData) -> tuple[Any, Any] | None:
    found = chunk.statistics
    if found is None or not found.has_min_max:
        return None
    try:
        return _in_days(found.min), _in_days(found.max)
    except (OverflowError, ValueError):  # dates that Python does not have
        return None


def _place_of(footer: pq.FileMetaData, column: KeyColumn) -> int:
    return next(place for place in range(footer.num_columns) if footer.schema.column(place).path == column.name)


def value_of(value: pa.Scalar) -> Any:
    """A value for comparing it with bounds; a date as its days since 1970-01-01."""
    return value.value if isinstance(value, pa.Date32Scalar) else value.as_py()


def _in_days(bound: Any) -> Any:
    return (bound - _FIRST_DAY).days if isinstance(bound, date) else bound
