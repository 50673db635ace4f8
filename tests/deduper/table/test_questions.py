"""Questions: the rows that a load would add, what an upsert would do with each, the rows of some keys."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.config.problems import ConfigError
from deduper.table.columns import KeyColumn
from deduper.table.errors import FileVanishedError, IndexDamagedError, SchemaDriftError, TableUsageError
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index import reading
from deduper.table.index.matching import SortedValues, groups_with
from deduper.table.operations.changes import load
from deduper.table.operations.questions import filter_exists, read, tag
from deduper.table.settings import LoadedLoad, load_config
from tests.deduper.table.scene import CONFIG, Place, Row, arrow, foreign


def new_rows(place: Place, rows: list[Row] | pa.Table) -> list[bool]:
    """The mask; no file is made or changed."""
    before = {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")}
    batch = rows if isinstance(rows, pa.Table) else arrow(rows)
    mask = filter_exists(batch, load_config(place.root.parent / "load.yaml"))
    assert {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")} == before
    assert mask.type == pa.bool_()
    assert batch.filter(mask).num_rows == sum(mask.to_pylist())
    found: list[bool] = mask.to_pylist()
    return found


def test_rows_that_are_new(place: Place) -> None:
    """Not in the table, the kept one of repeats, no error; with an index, behind it, and without one."""
    rows: list[Row] = [(1, "a", 0), (1, "b", 0), (1, "c", 1), (None, "d", 0), (2, "e", None), (3, "f", 2)]
    assert new_rows(place, rows) == [True, False, True, False, False, True]
    assert not place.root.exists()
    place.load([(1, "a", 0)])
    assert new_rows(place, rows) == [False, False, True, False, False, True]
    foreign(place, 3, 2)
    foreign(place, 4, 0)
    assert new_rows(place, rows) == [False, False, True, False, False, False]
    assert new_rows(place, [(4, "a", 0), (4, "a", 1), (5, "a", 0)]) == [False, True, True]
    shutil.rmtree(place.root / PRIVATE / "index")
    assert new_rows(place, rows) == [False, False, True, False, False, False]
    assert new_rows(place, []) == []


def test_the_settings_of_the_config(place: Place) -> None:
    """The rule for repeats, the scope; columns that no setting names may be left out."""
    place.load([(1, "a", 0)])
    assert new_rows(place, arrow([(1, "", 0), (1, "", 1), (2, "", 0)]).drop_columns(["v"])) == [False, True, True]
    config = place.root.parent / "load.yaml"
    written = config.read_text(encoding="utf-8")
    config.write_text(f"{written}keep: {{greatest: v}}\n", encoding="utf-8")
    assert new_rows(place, [(2, "a", 0), (2, "c", 0), (2, "b", 0)]) == [False, True, False]
    config.write_text(f"{written}scope: global\nkeep: last\n", encoding="utf-8")
    assert new_rows(place, [(1, "a", 1), (2, "a", 0), (2, "b", 1)]) == [False, False, True]


def test_what_does_not_fit(place: Place) -> None:
    """A setting with its place, a column with its types, a damaged index with its folder."""
    place.load([(1, "a", 0)])
    with pytest.raises(ConfigError, match="there is no column `k`"):
        new_rows(place, arrow([]).drop_columns(["k"]))
    with pytest.raises(SchemaDriftError, match="`k` is string in the batch and bigint in the table"):
        new_rows(place, arrow([(1, "a", 0)]).set_column(0, "k", pa.array(["1"])))
    (piece,) = (place.root / PRIVATE / "index/pieces").iterdir()
    piece.write_bytes(b"no piece")
    with pytest.raises(IndexDamagedError, match="the next load builds the index anew"):
        new_rows(place, [(1, "a", 0)])
    piece.unlink()
    with pytest.raises(IndexDamagedError, match="the next load builds the index anew"):
        new_rows(place, [(1, "a", 0)])


def config(place: Place, more: str = "") -> LoadedLoad:
    """The configuration of the place, with further settings."""
    file = place.root.parent / "other.yaml"
    file.write_text(CONFIG.replace("FORMAT", place.format) + more, encoding="utf-8")
    return load_config(file)


def untouched(place: Place, ask: Any) -> Any:
    """An answer; no file is made or changed."""
    before = {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")}
    found = ask()
    assert {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")} == before
    return found


def tags(place: Place, rows: list[Row] | pa.Table, more: str = "") -> list[tuple[str | None, str | None, Any]]:
    """(action, reason, files) of each row."""
    loaded = config(place, more)
    batch = rows if isinstance(rows, pa.Table) else arrow(rows)
    found = untouched(place, lambda: tag(batch, loaded))
    assert found.schema == pa.schema(
        [("action", pa.string()), ("reason", pa.string()), ("files", pa.list_(pa.string()))]
    )
    return [(row["action"], row["reason"], row["files"]) for row in found.to_pylist()]


def rows_of(place: Place, keys: pa.Table | list[Row], more: str = "") -> list[tuple[int, str, Any]]:
    """(k, v, d as text) of the rows with these keys, sorted."""
    loaded = config(place, more)
    batch = keys if isinstance(keys, pa.Table) else arrow(keys)
    found = untouched(place, lambda: read(batch, loaded))
    assert sorted(found.schema.names) == ["d", "k", "v"]
    return sorted((row["k"], row["v"], str(row["d"])[-2:]) for row in found.to_pylist())


@pytest.mark.slow
def test_insert_or_update_and_the_file(place: Place) -> None:
    """By rows in their order: the kept ones of repeats, files of updates, reasons of the others."""
    rows: list[Row] = [(1, "a", 0), (1, "b", 0), (1, "c", 1), (None, "d", 0), (2, "e", None), (3, "f", 2)]
    insert, repeat = ("insert", None, None), (None, "same_load", None)
    wrong = [(None, "null_key", None), (None, "null_partition", None)]
    assert tags(place, rows) == [insert, repeat, insert, *wrong, insert]
    assert not place.root.exists()
    place.load([(1, "a", 0), (3, "a", 2)])
    of_day_0, of_day_2 = place.files()
    update, other = ("update", None, [of_day_0]), ("update", None, [of_day_2])
    assert tags(place, rows) == [update, repeat, insert, *wrong, other]
    assert tags(place, rows, "keep: last\n") == [repeat, update, insert, *wrong, other]
    assert tags(place, []) == []
    assert tags(place, arrow([(1, "", 0)]).drop_columns(["v"])) == [update]


@pytest.mark.slow
def test_a_key_that_another_writer_added_again(place: Place) -> None:
    """Has two files, the first one first; with an index, behind it and without one."""
    place.load([(1, "a", 0), (2, "a", 0)])
    (ours,) = place.files()
    foreign(place, 1, 0)
    (theirs,) = set(place.files()) - {ours}
    for _ in range(2):
        (one, two) = tags(place, [(1, "b", 0), (2, "b", 0)])
        assert (one[:2], sorted(one[2])) == (("update", None), sorted([ours, theirs]))
        assert two == ("update", None, [ours])
        assert rows_of(place, [(1, "", 0)]) == [(1, "a", "01"), (1, "foreign", "01")]
        shutil.rmtree(place.root / PRIVATE / "index", ignore_errors=True)
    place.load([])
    assert len(tags(place, [(1, "b", 0)])[0][2]) == 2


@pytest.mark.slow
def test_the_scope_of_a_tag_and_of_a_read(place: Place) -> None:
    """In the whole table a key of another partition is an update, and a read needs the key alone."""
    place.load([(1, "a", 0), (2, "b", 1)], scope="global")
    of_day_0, of_day_1 = place.files()
    found = tags(place, [(1, "x", 1), (2, "x", 1), (3, "x", 1)], "scope: global\n")
    assert found == [("update", None, [of_day_0]), ("update", None, [of_day_1]), ("insert", None, None)]
    keys = pa.table({"k": [2, 7, None]})
    assert rows_of(place, keys, "scope: global\n") == [(2, "b", "02")]
    with pytest.raises(ConfigError, match=r"other\.yaml:4:15: partition_by: there is no column `d`"):
        rows_of(place, keys)


@pytest.mark.slow
def test_only_the_files_and_row_groups_of_the_keys_are_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files need not even be there."""
    place.load([(key, "a", 0) for key in range(10)])
    place.load([(key, "b", 1) for key in range(10)])
    place.load([(key, "c", 1) for key in range(10, 20)])
    opened: list[str] = []
    made = reading.opened_parquet
    # That of this module alone: a folder table's first footer has its columns.
    monkeypatch.setattr(reading, "opened_parquet", lambda path: (opened.append(Path(path).name), made(path))[1])
    assert rows_of(place, [(3, "", 1), (99, "", 1), (4, "", 1)]) == [(3, "b", "02"), (4, "b", "02")]
    (one,) = opened
    opened.clear()
    assert rows_of(place, [(3, "", 2), (99, "", 1)]) == []
    assert opened == []
    path = next(path for path in place.files() if path.endswith(one))
    (place.root / path).unlink()
    assert rows_of(place, [(12, "", 1), (3, "", 0)]) == [(3, "a", "01"), (12, "c", "02")]
    if place.format == "delta":
        with pytest.raises(FileVanishedError, match=one):
            rows_of(place, [(3, "", 1)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "asked", "groups"),
    [
        (pa.array([1, 2, 5, 6, 9, 9, None, None]), pa.array([3, 6, 9, 9]), [1, 2]),
        (pa.array([1, 2, 5, 6, 9, 9, None, None]), pa.array([0, 3, 4, 7, 10]), []),
        (pa.array(["a", "é", "f", "z", "~", "ü", "", "A"]), pa.array(["é", "\U00010000", ""]), [0, 2, 3]),
        (pa.array(range(8), pa.date32()), pa.array([7, 0], pa.date32()), [0, 3]),
    ],
)
def test_row_groups_by_their_bounds(values: pa.Array, asked: pa.Array, groups: list[int], tmp_path: Path) -> None:
    """A group that may have a value is never left out, and one that cannot is; other columns are nested."""
    nested = pa.array([{"k": 1, "j": [2]}] * 8)
    rows = pa.table({"n": nested, "k": values})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=2)
    with pq.ParquetFile(tmp_path / "a.parquet") as parquet:
        assert groups_with(parquet.metadata, KeyColumn("k", "any"), SortedValues(asked)) == groups
    pq.write_table(
        pa.table({"n": nested, "k": values}), tmp_path / "b.parquet", row_group_size=2, write_statistics=False
    )
    with pq.ParquetFile(tmp_path / "b.parquet") as parquet:
        assert groups_with(parquet.metadata, KeyColumn("k", "any"), SortedValues(asked)) == [0, 1, 2, 3]


@pytest.mark.slow
def test_rows_are_read_as_the_table_has_them(place: Place) -> None:
    """Every type, odd names of folders, columns that a foreign file lacks; nulls in keys are no key."""
    rows = pa.table(
        {
            "p": pa.array(["a b/c ü%=", "x", "x"]),
            "k": pa.array([1, 1, 2]),
            "t": pa.array([0, 1000, 2000], pa.timestamp("ns", "Europe/Paris")),
            "n": pa.array([[{"a": 1}], None, []], pa.list_(pa.struct([("a", pa.int32())]))),
            "s": pa.array(["é", None, "z"], pa.large_string()),
        }
    )
    options: dict[str, Any] = {"key": ["k"], "partition_by": ["p"], "table_format": place.format}
    load(rows, place.root, **options)
    if place.format == "parquet":
        pq.write_table(pa.table({"k": pa.array([5, None])}), place.root / "p=x/z.parquet")
    file = place.root.parent / "odd.yaml"
    written = CONFIG.replace("FORMAT", place.format).replace("partition_by: d", "partition_by: p")
    file.write_text(written, encoding="utf-8")
    keys = pa.table({"p": ["a b/c ü%=", "x", "x", "x", None], "k": pa.array([1, 2, 5, None, 1])})
    found = read(keys, load_config(file))
    kept = sorted(found.select(["p", "k", "n", "s"]).to_pylist(), key=lambda row: row["k"])
    expected = [
        {"p": "a b/c ü%=", "k": 1, "n": [{"a": 1}], "s": "é"},
        {"p": "x", "k": 2, "n": [], "s": "z"},
        {"p": "x", "k": 5, "n": None, "s": None},
    ]
    assert kept == expected[: 2 + (place.format == "parquet")]
    assert found["t"].cast(pa.int64()).to_pylist().count(2) == 1
    with pytest.raises(SchemaDriftError, match="`k` is string in the batch and bigint in the table"):
        read(pa.table({"p": ["x"], "k": ["1"]}), load_config(file))
    with pytest.raises(TableUsageError, match="no Arrow data"):
        read([1], load_config(file))


@pytest.mark.slow
def test_a_file_of_another_type_is_named(tmp_path: Path) -> None:
    """A text is not read as a number."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    pq.write_table(pa.table({"k": [2], "v": [3]}), place.root / "d=1970-01-01/z.parquet")
    with pytest.raises(SchemaDriftError, match=r"z\.parquet: `v` is bigint, and string in the table"):
        rows_of(place, [(2, "", 0)])


@pytest.mark.slow
def test_a_read_without_a_table(place: Place) -> None:
    """Says so; for plain files the types of partition columns are the source's, so it is named first."""
    (place.root.parent / "in").mkdir()
    pq.write_table(arrow([(1, "a", 0)]), place.root.parent / "in/a.parquet")
    with pytest.raises(ConfigError, match="has no table yet"):
        rows_of(place, [(1, "", 0)])
