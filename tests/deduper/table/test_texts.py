"""Texts that are not UTF-8 are in no file that a write makes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.table.batch import ArrowBatch, FileBatch
from deduper.table.errors import TableUsageError
from deduper.table.operations.changes import delete, load, upsert
from deduper.table.settings import load_config
from tests.deduper.table.scene import Place


def _texts(*values: bytes | None) -> pa.Array:
    made = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(made), made.buffers())


BAD = _texts(b"ok", None, b"\xff", b"caf\xe9")


@pytest.mark.parametrize("column", ["k", "p", "v", "nested"])
def test_batches_with_other_bytes_are_refused(place: Place, tmp_path: Path, column: str) -> None:
    """Key, partition and any other text, in memory and in a file; the column is named, and no table begins."""
    values = {**dict.fromkeys("kpv", pa.array(list("abcd"))), column: BAD}
    if column == "nested":
        values[column] = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), BAD)
    rows = pa.table(values)
    pq.write_table(rows, tmp_path / "a")
    for batch in (ArrowBatch(rows), FileBatch([tmp_path / "a"])):
        with pytest.raises(TableUsageError, match=rf"`{column}` has a text that is not UTF-8 .*; mend it"):
            load(batch, place.root, key=["k"], partition_by=["p"], table_format=place.format)
    assert not [path for path in place.root.rglob("*.parquet") if "_deduper" not in path.parts]
    assert not (place.root / "_delta_log").exists()


def test_a_rewrite_writes_no_other_bytes(tmp_path: Path) -> None:
    """A file of the table with such a text is not written on; a change of the very row mends it."""
    root, file = tmp_path / "table", tmp_path / "load.yaml"
    root.mkdir()
    pq.write_table(pa.table({"k": [1, 2], "v": _texts(b"ok", b"\xff")}), root / "a.parquet")
    file.write_text("source: {path: in}\ntable: {path: table, format: parquet}\nkey: k\n", encoding="utf-8")
    config = load_config(file)
    with pytest.raises(TableUsageError, match=r"a\.parquet: `v` has a text that is not UTF-8 .*; replace or delete"):
        delete(pa.table({"k": [1]}), config)
    assert (root / "a.parquet").is_file()
    assert upsert(pa.table({"k": [2], "v": ["b"]}), config).updated == 1
    assert delete(pa.table({"k": [1]}), config)
    [left] = root.glob("*.parquet")
    assert pq.read_table(left).to_pylist() == [{"k": 2, "v": "b"}]
