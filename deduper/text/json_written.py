"""Rows as lines of JSON, column by column: what `block.parse` reads as the same values. PURE.

Times are ISO 8601 with microseconds, those with a zone in UTC; bytes are Base64; NaN and infinities are texts, as Spark
writes them. A null is written as `null`. Values of lists are written like these; those of other nested columns one by
one, with texts for what JSON has not.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROWS: Final = 1 << 16
"""Rows of which the lines are made at a time: Arrow's texts end at 2 GiB."""
_ESCAPED: Final = r'[\x00-\x1f"\\]'
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)


def json_lines(rows: pa.Table) -> pa.ChunkedArray:
    """A line of JSON for each row, without its line end."""
    names = [_JSON.encode(name) for name in rows.column_names]
    chunks = [_lines(names, batch) for batch in rows.combine_chunks().to_batches(max_chunksize=_ROWS)]
    return pa.chunked_array(chunks, pa.string())


def _lines(names: list[str], batch: pa.RecordBatch) -> pa.Array:
    parts: list[Any] = []
    for name, column in zip(names, batch.columns, strict=True):
        parts += [f"{',' if parts else '{'}{name}:", pc.fill_null(_texts(column), "null")]
    if not parts:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def _texts(column: pa.Array) -> pa.Array:
    """The values as JSON has them; null for null."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_string(kind):
        return _strings(column)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _quoted(pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1))
    if pa.types.is_binary(kind):
        values = (None if value is None else base64.b64encode(value).decode() for value in column.to_pylist())
        return _quoted(pa.array(values, pa.string()))
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())
    if pa.types.is_list(kind):
        return _lists(column)
    return pa.array([None if value is None else _JSON.encode(value) for value in column.to_pylist()], pa.string())


def _lists(column: pa.Array) -> pa.Array:
    lengths = pc.fill_null(column.value_lengths(), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    values = pa.ListArray.from_arrays(offsets, pc.fill_null(_texts(column.flatten()), "null"))
    texts = pc.binary_join_element_wise("[", pc.binary_join(values, ","), "]", "")
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))


def _floats(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    is_finite = pc.is_finite(column)
    if pc.all(is_finite, min_count=0).as_py():
        return texts
    others = pc.if_else(pc.is_nan(column), '"NaN"', pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(is_finite, texts, others)


def _strings(column: pa.Array) -> pa.Array:
    texts = _quoted(column)
    rows = np.flatnonzero(pc.match_substring_regex(column, _ESCAPED).fill_null(False).to_numpy(zero_copy_only=False))
    if not len(rows):
        return texts
    escaped = np.zeros(len(column), np.bool_)
    escaped[rows] = True
    values = [_JSON.encode(value) for value in column.take(pa.array(rows)).to_pylist()]
    return pc.replace_with_mask(texts, pa.array(escaped), pa.array(values, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")
