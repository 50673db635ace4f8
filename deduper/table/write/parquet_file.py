"""A Parquet file of a table while it is written; of its floating-point columns it sees the bounds itself.

A footer's bounds leave NaN out, as Parquet has it, and to Spark NaN is greater than any number: it would skip a row
group with one for `x > 100`. So footers have no bounds of such columns, at any depth, as Spark's own do not beside NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deduper.table.formats.delta_stats import FloatBounds
from deduper.tasks.readers.parquet_leaves import leaves


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is written. `floats`: by column."""

    path: Path
    footer: pq.FileMetaData
    floats: Mapping[str, FloatBounds]


class TableFile:
    """A file that is being written; `close` is called once. Not for several threads."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        dictionaries: list[str] | bool,
        *,
        compression: str = "snappy",
        notes: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._path = path
        self._footers: list[pq.FileMetaData] = []
        self._floats = {field.name: FloatBounds() for field in schema if pa.types.is_floating(field.type)}
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=compression,
            use_dictionary=dictionaries,
            write_statistics=bounded_columns(schema),
            metadata_collector=self._footers,
        )
        if notes:
            self._writer.add_key_value_metadata(dict(notes))

    @property
    def size_bytes(self) -> int:
        """What is written so far, without the footer."""
        return self._path.stat().st_size

    def write(self, rows: pa.Table, row_group: int) -> None:
        """Adds rows, in groups of at most so many."""
        self._writer.write_table(rows, row_group)
        for name, bounds in self._floats.items():
            self._floats[name] = _with(bounds, rows.column(name))

    def close(self) -> Written:
        """Ends the file."""
        self._writer.close()
        return Written(self._path, self._footers[0], self._floats)


def bounded_columns(schema: pa.Schema) -> list[str] | bool:
    """The leaves whose bounds a footer has, as writers want them."""
    found = [leaf for field in schema for leaf in leaves(field.type, field.name)]
    bounded = [path for path, kind in found if not pa.types.is_floating(kind)]
    return True if len(bounded) == len(found) else bounded or False


def _with(bounds: FloatBounds, values: pa.ChunkedArray) -> FloatBounds:
    is_finite = bounds.is_finite and pc.all(pc.is_finite(values)).as_py() is not False
    found = pc.min_max(values)
    known = [one for one in (bounds.least, found["min"].as_py()) if one is not None]
    most = [one for one in (bounds.greatest, found["max"].as_py()) if one is not None]
    return FloatBounds(min(known, default=None), max(most, default=None), bounds.nulls + values.null_count, is_finite)
