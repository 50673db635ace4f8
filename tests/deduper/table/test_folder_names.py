"""Folders of partitions: every reader takes their names for the same values, or they are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deduper.table.batch import Keep
from deduper.table.columns import KeyColumn, folder_name, folder_values, key_columns, partition_of
from deduper.table.errors import SchemaDriftError, SettingError, TableError, TableUsageError
from deduper.table.formats.files import data_paths
from deduper.table.operations.changes import load
from deduper.table.operations.questions import tag
from deduper.table.operations.receipts import WriteReceipt
from tests.deduper.table.scene import Place

TEXTS = ["Zürich", "日本", "a b", "a/b=c", "%41", "a%", "..", "~<>|`}", "{[]^\\'\"#*:?", "\x01\n\x7f", "+&@", "e\u0301"]


def _load(place: Place, texts: list[str], name: str = "p", keep: str = "first") -> WriteReceipt:
    rows = pa.table({"k": list(range(len(texts))), name: pa.array(texts, pa.string()), "v": [1] * len(texts)})
    ports = {"errors": place.ports["errors"]}
    return load(rows, place.root, key=["k"], partition_by=[name], table_format=place.format, keep=Keep(keep), **ports)  # type: ignore[arg-type]


def test_names_are_sparks() -> None:
    """Letters beyond ASCII stay; the signs that Spark and Hive escape are `%` and two hex digits; both ways."""
    assert folder_name("ä", "Zürich\x01\"#%'*/:=?\\{[]^\x7f }") == (
        "ä=Zürich%01%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E%7F }"
    )
    assert folder_name("p", None) == "p=__HIVE_DEFAULT_PARTITION__"
    for text in TEXTS:
        assert folder_values(f"{folder_name('p', text)}/x") == (("p", text),)
    assert folder_values("p=a%20b%zz%/x") == (("p", "a b%zz%"),)


@pytest.mark.slow
def test_texts_are_found_again(place: Place) -> None:
    """A second load finds all, whatever signs they have, and readers of the table see them."""
    assert _load(place, TEXTS).inserted == len(TEXTS)
    assert _load(place, TEXTS).found == len(TEXTS)
    if place.format == "delta":
        assert sorted(DeltaTable(str(place.root)).to_pyarrow_table()["p"].to_pylist()) == sorted(TEXTS)
    else:
        assert {path.name for path in place.root.glob("p=*")} == {folder_name("p", text) for text in TEXTS}


def test_a_folder_that_spark_made_is_the_same_one(tmp_path: Path) -> None:
    """Its keys are found, and no second folder is made."""
    place = Place(tmp_path, "parquet")
    (place.root / "p=Zürich").mkdir(parents=True)
    pq.write_table(pa.table({"k": [0], "v": [1]}), place.root / "p=Zürich" / "part-0.parquet")
    assert (_load(place, ["Zürich"] * 2).inserted, len(list(place.root.glob("p=*")))) == (1, 1)


@pytest.mark.parametrize(
    ("folder", "kind", "says"),
    [
        ("p=Z%C3%BCrich", "string", "`%C3` in the folder's name is a letter to Spark"),
        ("p=1_0", "int", "is no int"),
        ("p=300", "tinyint", "is no tinyint"),
        ("p= 7", "bigint", "is no bigint"),
        ("p=20240101", "date", "is no date"),
    ],
)
def test_folders_that_readers_read_differently_are_refused(folder: str, kind: str, says: str) -> None:
    """With the path in the message."""
    with pytest.raises(TableUsageError, match=says):
        partition_of(f"{folder}/x", [KeyColumn("p", kind)])


@pytest.mark.parametrize("name", ["a/b", "a=b", "p%20", "..", ".p", "", "a\0", "a\n", 'a"', "a" * 129])
def test_names_of_columns_that_no_folder_has_are_refused(name: str) -> None:
    """Before anything is written."""
    schema = pa.schema([("k", pa.int64()), (name, pa.string()), ("v", pa.int64())])
    with pytest.raises(SettingError, match=r"(?s)partition_by: .* rename the column"):
        key_columns(schema, ["k"], [name], "partition")
    key_columns(schema, ["k"], [], "partition")


@pytest.mark.slow
def test_other_names_of_columns_are_read_again(place: Place) -> None:
    """Letters beyond ASCII, spaces; of a Delta table a first underscore."""
    for name in ("Land ä", "_p")[: 2 if place.format == "delta" else 1]:
        place_of = Place(place.root.with_name(name), place.format)
        assert _load(place_of, ["DE", "FR"], name).inserted == 2
        assert _load(place_of, ["DE", "FR"], name).found == 2


def test_a_first_underscore_is_for_folder_tables_that_are_there(tmp_path: Path) -> None:
    """Arrow passes over such folders, Spark does not: a new table is refused, one of Spark's takes rows."""
    place = Place(tmp_path, "parquet")
    with pytest.raises(SettingError, match=r"partition_by: `_p` begins with `_`.*rename the column"):
        _load(place, ["DE"], "_p")
    assert list(place.root.glob("*")) == []
    (place.root / "_p=DE").mkdir(parents=True)
    pq.write_table(pa.table({"k": [0], "v": [1]}), place.root / "_p=DE" / "part-0.parquet")
    receipt = _load(place, ["DE", "DE"], "_p")
    assert (receipt.found, receipt.inserted) == (1, 1)


def test_types_of_partition_columns_are_those_of_the_index(tmp_path: Path) -> None:
    """A batch of other ones is refused by writes and questions: `1` and `01` are one day. Without files all go."""
    place = Place(tmp_path, "parquet")

    def batch(days: pa.Array) -> pa.Table:
        return pa.table({"k": [5], "v": ["a"], "d": days})

    assert place.load(batch(pa.array([1], pa.int32()))).inserted == 1
    for other in (batch(pa.array(["01"])), batch(pa.array([1], pa.int64()))):
        for refused in (place.load, place.upsert, lambda rows: tag(rows, place.config())):
            with pytest.raises(SchemaDriftError, match=r"`d` is (string|bigint) in the batch and int in the table"):
                refused(other)
    (only,) = data_paths(place.root)
    assert only.startswith("d=1/")
    assert place.load(batch(pa.array([1], pa.int32()))).found == 1
    (place.root / only).unlink()
    assert place.load(batch(pa.array(["01"]))).inserted == 1


@pytest.mark.slow
def test_a_text_too_long_for_a_name_is_an_error_row(place: Place) -> None:
    """On both sides of the longest: 255 bytes with the column's name, a sign that is escaped taking three."""
    texts = ["x" * 253, "x" * 254, "ü" * 126, "ü" * 127, "/" * 84, "/" * 85, "日" * 84, "日" * 85]
    receipt = _load(place, texts)
    assert (receipt.inserted, dict(receipt.errors)) == (4, {"bad_partition": 4})
    assert [row[0] for row in place.port("errors")] == [1, 3, 5, 7]


def test_names_of_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """An index has them as texts."""
    (tmp_path / "a\udcff").touch()
    with pytest.raises(TableError, match=r"'a\\udcff' in it has bytes that are not UTF-8"):
        data_paths(tmp_path)
