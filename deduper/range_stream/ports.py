"""The rows of a port as the bytes of a file in its format. PURE."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deduper.text.json_written import json_lines


def file_bytes(rows: pa.Table, sink_format: str) -> bytes:
    """A whole file: Parquet, or a line of JSON for each row."""
    return _parquet(rows) if sink_format == "parquet" else _lines(rows)


def _parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, store_schema=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _lines(rows: pa.Table) -> bytes:
    chunks = [pc.binary_join_element_wise(chunk, "\n", "") for chunk in json_lines(rows).chunks]
    return b"".join(_bytes_of(chunk) for chunk in chunks)


def _bytes_of(texts: pa.Array) -> bytes:
    """All texts, one behind another."""
    return b"".join(texts.cast(pa.binary()).to_pylist())
