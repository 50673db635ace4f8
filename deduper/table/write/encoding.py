"""How new Parquet files are encoded: which columns get a dictionary, and the compression of an old one.

Of a column whose values hardly repeat, a writer builds a dictionary until that outgrows its page, and gives it up: two
fifths of the time of writing, for a larger file.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_SAMPLE = 1 << 11
_FEWEST = 1 << 8
"""Fewer rows say nothing, and their dictionaries cost nothing."""
_LEAST_REPEATS = 1 / 256
"""With fewer repeats than this in the sample, a column has some 128 times as many values as the sample has rows. Of
eight bytes each they are 2 MiB, and a dictionary's page has 1 MiB."""


def dictionary_columns(records: pa.RecordBatch) -> list[str] | bool:
    """The columns that get a dictionary, by a sample of these rows; True for all of them, as with nested ones."""
    if records.num_rows < _FEWEST or any(pa.types.is_nested(field.type) for field in records.schema):
        return True  # of nested ones the writer wants the paths of their leaves
    step = records.num_rows // _SAMPLE
    if step > 1:
        # One row in each stretch, at random: values may come round by round.
        places = np.arange(_SAMPLE) * step + np.random.default_rng(step).integers(0, step, _SAMPLE)
        records = records.take(pa.array(places))
    return [name for name in records.schema.names if _repeats(records.column(name))] or False


def _repeats(values: pa.Array) -> bool:
    """Whether values come again, or there are none."""
    values = values.drop_null()
    return len(values) - len(pc.unique(values)) >= len(values) * _LEAST_REPEATS


def codec_of(footer: pq.FileMetaData) -> str:
    """The compression of a file, by its first column, as writers name it."""
    found = footer.row_group(0).column(0).compression if footer.num_row_groups and footer.num_columns else "SNAPPY"
    return {"UNCOMPRESSED": "none", "LZO": "snappy"}.get(found, found)
