"""What a reading task makes of records, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa

from deduper.read_task import ReadReceipt, ReadTask, read_function
from deduper.verdict import Fate


def test_a_category_may_be_no_text(tmp_path: Path) -> None:
    """Bytes of a Parquet file that are not UTF-8 are a category like any other; two of them are two."""
    invalid = [b"a", b"\xff", b"\xfe", b"\xff", None]
    count = len(invalid)
    text = pa.Array.from_buffers(pa.string(), count, pa.array(invalid, pa.binary()).buffers())
    numbers = pa.array(range(count), pa.int64())
    fate = pa.array([Fate.ADMITTED] * (count - 1) + [Fate.NULL_EXPIRY], pa.int8())
    records = pa.RecordBatch.from_arrays(
        [numbers, numbers, numbers, fate, text, pa.nulls(count, pa.string())],
        ["hi", "lo", "order", "fate", "category", "raw"],
    )
    task = ReadTask(str(tmp_path), shards=2, clock=None, in_order=False, keeps_latest=False, by_category=True)
    (row,) = read_function(task)(iter([records]))
    receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
    assert receipt.categories == ("a", "\\xff", "\\xfe")
    assert receipt.first_arrivals == {"a": 0, "\\xff": 1, "\\xfe": 2}
