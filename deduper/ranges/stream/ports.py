"""The rows of a port as the records for its topic. PURE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from deduper.tasks.kafka_rows import HEADERS, KEY, TIMESTAMP, VALUE, with_headers
from deduper.tasks.kafka_rows import SLOT as SLOT_COLUMN
from deduper.text.written import json_lines

SLOT = 0
"""The one writer of a port that is a topic: a window is one transaction."""
_NO_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def topic_rows(rows: pa.Table, on: Sequence[str], window: int) -> pa.Table:
    """Records as `sinks.staged_records` has them: the id as the key, if there is one; the row as JSON; the window.

    The id is a text or a whole number as it is, and JSON otherwise. Rows of `late` and `errors` have none.
    """
    values = json_lines(rows).combine_chunks()
    windows = pa.repeat(pa.scalar(str(window)), rows.num_rows)
    records = {
        KEY: _keys(rows, on).cast(pa.binary()),
        VALUE: values.cast(pa.binary()),
        HEADERS: with_headers(pa.nulls(rows.num_rows, _NO_HEADERS), {"dedup-window": windows}),
        TIMESTAMP: pa.nulls(rows.num_rows, pa.int64()),
        SLOT_COLUMN: pa.array(np.full(rows.num_rows, SLOT, np.int32)),
    }
    return pa.table(records)


def _keys(rows: pa.Table, on: Sequence[str]) -> pa.Array:
    if not set(on) <= set(rows.column_names):
        return pa.nulls(rows.num_rows, pa.string())
    first = rows[on[0]].combine_chunks()
    if len(on) == 1 and (pa.types.is_string(first.type) or pa.types.is_integer(first.type)):
        return first.cast(pa.string())
    return json_lines(rows.select(list(on))).combine_chunks()
