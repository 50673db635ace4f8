"""Which columns of a Parquet file are worth a dictionary: those whose values repeat.

For the others a writer hashes every value until the dictionary is full, and then discards it: a fifth of the time of
writing, and a larger file. Arrow takes the columns with a dictionary by their paths in the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from deduper.tasks.readers.parquet_leaves import leaves

_SAMPLE, _LARGE_SAMPLE = 4096, 16_384
"""Rows to sample, more if some of them repeat; only the size of the file depends on the result."""
_MOST_FRESH = 0.5
_NO_HOPE = 0.9


def dictionary_columns(table: pa.Table) -> list[str]:
    """Paths of the leaves of a table's columns that repeat: at most half of the values of its first rows are new.

    If a tenth of the sample repeats, a larger one is taken: among few rows some thousand different values look new.
    Elements of lists and maps are not sampled and get a dictionary, and so do columns of nulls.
    """
    return [
        path for name in table.column_names for path in _repeating(name, table.column(name).slice(0, _LARGE_SAMPLE))
    ]


def _repeating(path: str, values: pa.ChunkedArray) -> Iterator[str]:
    if pa.types.is_struct(values.type):
        names = [field.name for field in values.type]
        for name, part in zip(names, values.flatten(), strict=True):
            yield from _repeating(f"{path}.{name}", part)
    elif pa.types.is_nested(values.type):
        yield from (leaf for leaf, _ in leaves(values.type, path))
    elif pa.types.is_dictionary(values.type) or _repeat(values):
        yield path


def _repeat(values: pa.ChunkedArray) -> bool:
    fresh = _fresh(values.slice(0, _SAMPLE))
    if _MOST_FRESH < fresh < _NO_HOPE:
        fresh = _fresh(values)
    return fresh <= _MOST_FRESH


def _fresh(values: pa.ChunkedArray) -> float:
    """The share of values that no earlier one equals; 0 if all are null."""
    known = values.drop_null()
    return len(known.unique()) / len(known) if len(known) else 0.0
