"""The rows of a table's files whose keys are among wanted ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bucket_store.tables.kernels import match_sorted
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.index.entries import SortedKeys, in_order
from deduper.table.index.keys import UInt64s, row_keys, without_null

_BOUNDED = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Types whose bounds in footers compare as their values in Python."""


class WantedKeys:
    """Keys, to be found again in rows; digests with the salt of the look-up that gave them."""

    def __init__(self, keys: SortedKeys, columns: KeyColumns, salt: bytes) -> None:
        self._columns = columns
        self._salt = salt
        self._digests: dict[int, UInt64s] = {
            int(keys.bucket[begin]): keys.digests[begin:end] for begin, end in pairwise(keys.runs().tolist())
        }

    def among(self, arrays: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """Whether the key of each row is wanted; a key with a null never is. `arrays` are of `columns.digested`."""
        wanted = np.zeros(len(arrays[0]), np.bool_)
        rows, keys = in_order(*row_keys(arrays, self._columns, self._salt))
        for begin, end in pairwise(keys.runs().tolist()):
            digests = self._digests.get(int(keys.bucket[begin]))
            if digests is not None:
                wanted[rows[begin:end]] = match_sorted(digests, keys.digests[begin:end]) >= 0
        return wanted & without_null(arrays)


def bounded_column(columns: KeyColumns) -> KeyColumn | None:
    """The key column by whose bounds row groups are skipped; None when there is none that serves."""
    stored = (column for column in columns.key if column not in columns.partition_by)
    return next((column for column in stored if column.type in _BOUNDED), None)


def groups_with(parquet: pq.ParquetFile, column: KeyColumn, values: pa.Array) -> list[int]:
    """The row groups of an opened file that may have one of the values in a column, by the bounds in the footer."""
    wanted = pc.unique(values).sort().to_pylist()
    footer = parquet.metadata
    at = next(place for place in range(footer.num_columns) if footer.schema.column(place).path == column.name)
    return [group for group in range(footer.num_row_groups) if _may_have(footer.row_group(group).column(at), wanted)]


def _may_have(chunk: pq.ColumnChunkMetaData, wanted: Sequence[Any]) -> bool:
    bounds = chunk.statistics
    if bounds is None or not bounds.has_min_max:
        return bounds is None or not bounds.has_null_count or bool(bounds.null_count < chunk.num_values)
    place = bisect_left(wanted, bounds.min)
    return place < len(wanted) and bool(wanted[place] <= bounds.max)
