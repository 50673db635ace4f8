"""The rows of Kafka ports as they are staged: what `sinks.staged_records` reads and sends.

Key, value, headers and timestamp are the source record's; headers of our own (`dedup_column.OWN_HEADERS`) come after
them, so that of several of one name (records that have gone through two jobs) the last counts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deduper.dedup_column import OWN_HEADERS
from deduper.tasks import layout

KEY, VALUE, HEADERS, TIMESTAMP, SLOT = "key", "value", "headers", "timestamp_ms", "slot"
SEND_COLUMNS = (KEY, VALUE, HEADERS, TIMESTAMP, SLOT)
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


def rows_to_send(
    records: pa.RecordBatch, dedup: Mapping[str, pa.Array], slot: np.ndarray[Any, Any], wanted: Collection[str]
) -> pa.RecordBatch:
    """The columns of `SEND_COLUMNS`, from `layout.SENT` of the records, the fields of `_dedup`, and the writers.

    `wanted` are the headers of ours to add, as in `OWN_HEADERS`.
    """
    reported = {
        header: _text(value, dedup)
        for name, headers in OWN_HEADERS.items()
        if name in wanted
        for header, value in headers.items()
        if re.split("[@.]", value)[0] in dedup
    }
    own = headers_of(records.column(layout.HEADERS))
    columns = {
        KEY: records.column(layout.KEY),
        VALUE: records.column(layout.VALUE),
        HEADERS: with_headers(own, reported) if reported else own,
        TIMESTAMP: records.column(layout.TIMESTAMP),
        SLOT: pa.array(slot, pa.int32()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SEND_COLUMNS], list(SEND_COLUMNS))


def _text(value: str, dedup: Mapping[str, pa.Array]) -> pa.Array:
    """The text of a header: of a field, or of two, null where one is."""
    texts = [_field(path.split("."), dedup).cast(pa.string()) for path in value.split("@")]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "@")


def _field(path: Sequence[str], dedup: Mapping[str, pa.Array]) -> pa.Array:
    name, *inner = path
    return pc.struct_field(dedup[name], inner) if inner else dedup[name]


def headers_of(texts: pa.Array) -> pa.ListArray:
    """Headers from JSON, values in Base64; null where there are none."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.list_(_HEADER))
    lists = [None if text is None else [_header(one) for one in json.loads(text)] for text in texts.to_pylist()]
    return pa.array(lists, pa.list_(_HEADER))


def _header(one: Mapping[str, str]) -> dict[str, str | bytes | None]:
    value = one.get("value")
    return {"key": one["key"], "value": None if value is None else base64.b64decode(value)}


def with_headers(own: pa.ListArray, reported: Mapping[str, pa.Array]) -> pa.ListArray:
    """Each row's own headers, none for null, followed by ours under these names; null is left out."""
    own_counts = pc.fill_null(pc.list_value_length(own), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = own.flatten()
    is_present = [column.is_valid().to_numpy(zero_copy_only=False) for column in reported.values()]
    counts = own_counts + sum((valid.astype(np.int64) for valid in is_present), np.zeros(len(own), np.int64))
    starts = np.concatenate([[0], np.cumsum(counts)])
    keys, values = [flat.field("key").cast(pa.string())], [flat.field("value").cast(pa.binary())]
    # Where each header goes, those that are there already first; then the inverse: what stands at each place.
    own_starts = np.concatenate([[0], np.cumsum(own_counts)])[:-1]
    places = [np.repeat(starts[:-1] - own_starts, own_counts) + np.arange(len(flat))]
    filled = starts[:-1] + own_counts
    for (name, column), valid in zip(reported.items(), is_present, strict=True):
        places.append(filled[valid])
        keys.append(pa.repeat(pa.scalar(name), int(np.count_nonzero(valid))))
        values.append(column.drop_null().cast(pa.binary()))
        filled = filled + valid
    stands = np.empty(int(starts[-1]), np.int64)
    stands[np.concatenate(places)] = np.arange(stands.size)
    headers = pa.StructArray.from_arrays([pa.concat_arrays(keys), pa.concat_arrays(values)], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), headers.take(pa.array(stands)))
