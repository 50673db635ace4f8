"""Columns and texts of a batch: spellings of types, texts beyond 2 GiB or not UTF-8, dotted names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deduper.table import schema
from deduper.table.batch import ArrowBatch, FileBatch, Keep
from deduper.table.errors import TableUsageError
from deduper.table.index.simple import ReadKeys
from deduper.table.operations import questions as read
from deduper.table.operations import questions as tag
from deduper.table.operations.changes import delete, load, upsert
from deduper.table.settings import load_config
from tests.deduper.table.scene import Place, arrow


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


VIEWS = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint32()), pa.array(["x", "y"], pa.string_view()))
BYTES = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array([b"x", b"y"], pa.binary_view()))
TEXT_BYTES = 1 << 20
"""Of each text of `zeros`; their pages take no memory until they are written."""


def zeros(texts: int) -> pa.Array:
    """So many texts in one array."""
    offsets = pa.py_buffer(np.arange(texts + 1, dtype=np.int64) * TEXT_BYTES)
    return pa.Array.from_buffers(
        pa.large_string(), texts, [None, offsets, pa.py_buffer(np.zeros(texts * TEXT_BYTES, np.uint8))]
    )


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (VIEWS, ["x", "y", None]),
        (BYTES, [b"x", b"y", None]),
        (pa.ListArray.from_arrays([0, 1, 3, 3], VIEWS), [["x"], ["y", None], []]),
        (pa.LargeListArray.from_arrays([0, 1, 3, 3], VIEWS), [["x"], ["y", None], []]),
        (pa.StructArray.from_arrays([VIEWS], names=["a"]), [{"a": "x"}, {"a": "y"}, {"a": None}]),
        (
            pa.MapArray.from_arrays([0, 1, 3, 3], pa.array(["a", "b", "c"]), VIEWS),
            [[("a", "x")], [("b", "y"), ("c", None)], []],
        ),
    ],
    ids=["text", "bytes", "list", "large list", "struct", "map"],
)
def test_dictionaries_of_views(column: pa.Array, values: list[Any], tmp_path: Path) -> None:
    """Polars gives its types Categorical and Enum so."""
    load(pa.table({"k": [1, 2, 3], "c": column}), tmp_path / "table", key=["k"])
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().sort_by("k")
    assert found["c"].to_pylist() == values


def test_the_last_texts_of_a_long_array() -> None:
    """Their offsets are beyond 2 GiB, as those of a data frame with one chunk; no batch of rows is."""
    long = pa.table({"k": zeros(2100)}).slice(2098)
    batches = list(ArrowBatch(long).batches(["k"]))
    assert [batch.schema for batch in batches] == [pa.schema([("k", pa.string())])] * len(batches)
    assert sum(batch.num_rows for batch in batches) == 2


def test_rows_whose_texts_take_more_than_two_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are passed in parts, in order; here it is more than two of them that take so much."""
    cast = schema._cast

    def with_few_bits(values: pa.Array, kind: pa.DataType) -> pa.Array:
        if len(values) > 2:
            raise pa.ArrowInvalid("input array too large")
        return cast(values, kind)

    monkeypatch.setattr(schema, "_cast", with_few_bits)
    rows = pa.table({"n": range(7), "k": pa.array(list("abcdefg"), pa.large_string())})
    parts = list(ArrowBatch(rows).batches(["k", "n"]))
    assert [part.num_rows for part in parts] == [1, 2, 2, 2]
    assert pa.Table.from_batches(parts).to_pydict() == {"k": list("abcdefg"), "n": list(range(7))}


@pytest.mark.slow
@pytest.mark.parametrize("index", ["bloom", "simple"])
def test_all_texts_of_a_batch_have_offsets_of_64_bits(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the key, for a look-up and for the bounds of a read, and those of `keep: {greatest: COLUMN}`."""
    seen: list[pa.DataType] = []
    find, take = ReadKeys.find, read.SortedValues

    def looked_up(self: ReadKeys, keys: Any, values: Any) -> Any:
        seen.extend(column.type for column in values.values())
        return find(self, keys, values)

    def bounded(values: Any) -> Any:
        seen.append(values.type)
        return take(values)

    monkeypatch.setattr(ReadKeys, "find", looked_up)
    monkeypatch.setattr(read, "SortedValues", bounded)
    place = Place(tmp_path, "delta", index)
    rows = pa.table({"k": ["a", "b", "a"], "v": [b"1", b"2", b"3"]})
    load(rows, place.root, key=["k"], index=index, keep=Keep("greatest", "v"))
    file = place.root.parent / "own.yaml"
    file.write_text(f"source: {{path: in}}\ntable: {{path: table}}\nkey: k\nindex: {index}\n", encoding="utf-8")
    found = read.read(rows, load_config(file))
    assert sorted(found["v"].to_pylist()) == [b"2", b"3"]
    assert set(seen) == {pa.large_string()}


@pytest.mark.slow
def test_files_of_many_rows_are_tagged_in_chunks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is the same."""
    place.load([(1, "a", 0), (2, "b", 1), (3, "c", 1)])
    asked = arrow([(3, "", 1), (9, "", 0), (1, "", 0), (2, "", 1), (2, "", 1)])
    whole = tag.tag(asked, place.config())
    monkeypatch.setattr(tag, "_CHUNK_ROWS", 2)
    parts = tag.tag(asked, place.config())
    assert parts["files"].num_chunks == 3
    assert parts.to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("above", [pa.array([1, 2]), pa.array([{"b.c": 1, "b": 2}] * 2)])
@pytest.mark.parametrize("name", ["a.b", "a.b.c"])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_name_that_is_a_part_of_another_is_refused(place: Place, above: pa.Array, name: str, turn: int) -> None:
    """Whichever comes first, and whether the other is a struct or not."""
    rows = pa.table({"k": [1, 2], "a": above, name: [3, 4]})
    rows = rows.select(rows.schema.names[::turn])
    with pytest.raises(TableUsageError, match=rf"column `{name}` is taken for a part of column `a`"):
        load(rows, place.root, key=["k"], table_format=place.format)
    assert not place.root.exists()


@pytest.mark.slow
@pytest.mark.parametrize("index", ["exact", "bloom", "simple"])
def test_a_dot_alone_is_no_matter(place: Place, index: str) -> None:
    """Keys of such a column are found again."""
    rows = pa.table({"a.b": [1, 2], "ab": [{"b": 1}] * 2, "a.": ["x", "y"], ".a": [0.5, 1.0]})
    for new in (2, 0):
        receipt = load(rows, place.root, key=["a.b", "a."], index=index, table_format=place.format)
        assert (receipt.inserted, receipt.found) == (new, 2 - new)
