"""Upserts and deletes of tables of both formats: rows that are left, files that are rewritten, plans, conflicts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from deduper.config.problems import ConfigError
from deduper.table.errors import (
    FileVanishedError,
    IndexDamagedError,
    SchemaDriftError,
    TableChangedError,
    TableHeldError,
    TableUsageError,
    UnsupportedTableError,
)
from deduper.table.formats.delta import DeltaFiles
from deduper.table.formats.folder import FolderTable
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index import exact as index_module
from deduper.table.index.exact import FORM, EntryKeys
from deduper.table.index.pieces import FEWEST_MERGED
from deduper.table.index.reading import OpenFile
from deduper.table.operations.changes import load, plan_delete, plan_upsert, upsert
from deduper.table.operations.new_files import dictionary_columns
from deduper.table.operations.questions import filter_exists
from deduper.table.operations.receipts import ChangePlan
from deduper.table.operations.rewriting import FileRewrite, Workload
from deduper.table.operations.verify import verify
from deduper.table.operations.write import Write, locked
from deduper.table.settings import load_config
from tests.deduper.table.scene import CONFIG, Place, Row, arrow, foreign

pytestmark = pytest.mark.slow


def planned(place: Place, rows: list[Row], more: str = "") -> ChangePlan:
    """The plan of an upsert; no file is made or changed."""
    config = place.config(more)
    before = {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")}
    plan = plan_upsert(arrow(rows), config)
    assert {path: path.stat().st_mtime_ns for path in place.root.parent.rglob("*")} == before
    return plan


def counts(one: Any) -> tuple[int, ...]:
    """rows, inserted, updated, deleted, absent, repeats, all errors."""
    names = ("rows", "inserted", "updated", "deleted", "absent", "repeats")
    return (*(getattr(one, name) for name in names), sum(one.errors.values()))


def test_an_upsert_of_rows_of_every_kind(place: Place) -> None:
    """New rows, changed ones, repeats by `keep`, errors; only files with a key change, and ports have the rest."""
    place.load([(1, "a", 0), (2, "a", 0), (3, "a", 1), (4, "a", 2)])
    of_day_0, of_day_1, of_day_2 = place.files()
    rows: list[Row] = [(1, "b", 0), (1, "c", 0), (5, "b", 0), (3, "b", 1), (4, "b", 0), (None, "x", 0), (1, "x", None)]
    plan = planned(place, rows)
    assert counts(plan) == (7, 2, 2, 0, 0, 1, 2)
    size = sum((place.root / path).stat().st_size for path in (of_day_0, of_day_1))
    assert (plan.version, plan.files, plan.file_rows, plan.size_bytes, plan.filled_files) == (0, 2, 3, size, 0)
    receipt = place.upsert(rows)
    assert counts(receipt) == counts(plan)
    assert (receipt.removed_files, receipt.removed_bytes, receipt.removed_rows) == (2, size, 2)
    assert (receipt.carried_rows, receipt.files, receipt.tries) == (1, 3, 1)
    assert sorted(place.rows()) == [(1, "b", 0), (2, "a", 0), (3, "b", 1), (4, "a", 2), (4, "b", 0), (5, "b", 0)]
    assert set(place.files()) & {of_day_0, of_day_1, of_day_2} == {of_day_2}
    assert place.port("duplicates") == [(1, "same_load", None)]
    assert sorted(reason for _, reason, _ in place.port("errors")) == ["null_key", "null_partition"]
    again = place.upsert(rows, "keep: last\n")
    assert counts(again) == (7, 0, 4, 0, 0, 1, 2)
    assert (1, "c", 0) in place.rows()
    assert len(place.rows()) == 6
    assert place.leftovers() == []
    assert verify(place.config()).is_sound


def test_an_upsert_without_updates_is_an_append(tmp_path: Path) -> None:
    """Also the one that makes the table; an empty one commits nothing."""
    place = Place(tmp_path, "delta")
    first = place.upsert([(1, "a", 0)])
    assert (counts(first), first.version) == ((1, 1, 0, 0, 0, 0, 0), 0)
    assert place.upsert([(2, "a", 0)]).removed_files == 0
    empty = place.upsert([])
    assert (empty.version, empty.files, empty.rows) == (1, 0, 0)
    assert "remove" not in (place.root / "_delta_log/00000000000000000001.json").read_text(encoding="utf-8")


def test_a_delete(place: Place) -> None:
    """Keys alone suffice; those that the table does not have are counted; a file without rows is not written."""
    place.load([(1, "a", 0), (2, "a", 0), (3, "a", 1), (4, "a", 2)])
    keys = arrow([(1, "", 0), (1, "", 0), (3, "", 1), (3, "", 2), (9, "", 0), (None, "", 0)]).select(["d", "k"])
    plan = plan_delete(keys, place.config())
    assert counts(plan) == (6, 0, 0, 2, 2, 1, 1)
    assert (plan.files, plan.file_rows) == (2, 3)
    receipt = place.delete(keys)
    assert counts(receipt) == counts(plan)
    assert (receipt.removed_files, receipt.removed_rows, receipt.carried_rows, receipt.files) == (2, 2, 1, 1)
    assert sorted(place.rows()) == [(2, "a", 0), (4, "a", 2)]
    errors = [pq.ParquetFile(file).read() for file in place.ports["errors"].glob("*.parquet")]
    assert [table.select(["d", "k"]).to_pydict()["k"] for table in errors] == [[None]]
    assert not list(place.ports["duplicates"].glob("*"))
    nothing = place.delete(keys)
    assert counts(nothing) == (6, 0, 0, 0, 4, 1, 1)
    assert nothing.version == receipt.version
    assert place.load([(1, "b", 0), (2, "b", 0)]).inserted == 1
    assert place.leftovers() == []


def test_all_rows_may_go(place: Place) -> None:
    """And others come again."""
    place.load([(1, "a", 0), (2, "a", 1)])
    assert place.delete([(1, "", 0), (2, "", 1)]).files == 0
    assert place.rows() == []
    place.upsert([(1, "b", 0)])
    assert place.rows() == [(1, "b", 0)]


def test_a_delete_without_a_table(place: Place) -> None:
    """Is a mistake with a place, and makes nothing."""
    with pytest.raises(ConfigError, match=r"place\.yaml:2:15: table\.path: .* has no table yet"):
        place.delete([(1, "", 0)])
    assert not place.root.exists()


def test_a_commit_adds_and_removes_at_once(tmp_path: Path) -> None:
    """Both change data; readers of the version before read it until a vacuum; odd names of folders are removed too."""
    place = Place(tmp_path, "delta")
    rows = pa.table({"k": [1, 2, 3], "p": ["a b/c ü%=", "x", "a b/c ü%="], "v": ["a"] * 3})
    file = tmp_path / "odd.yaml"
    file.write_text(CONFIG.replace("FORMAT", "delta").replace("partition_by: d", "partition_by: p"), encoding="utf-8")
    config = load_config(file)
    upsert(rows, config)
    upsert(rows.slice(0, 1).set_column(2, "v", pa.array(["b"])), config)
    log = (place.root / "_delta_log/00000000000000000001.json").read_text(encoding="utf-8")
    actions = [json.loads(line) for line in log.splitlines()]
    (added,) = (action["add"] for action in actions if "add" in action)
    (removed,) = (action["remove"] for action in actions if "remove" in action)
    assert added["dataChange"] is removed["dataChange"] is True
    assert added["partitionValues"] == removed["partitionValues"] == {"p": "a b/c ü%="}
    assert json.loads(added["stats"])["numRecords"] == 2
    table = DeltaTable(str(place.root))
    assert sorted(zip(*(table.to_pyarrow_table()[name].to_pylist() for name in "kv"), strict=True)) == [
        (1, "b"),
        (2, "a"),
        (3, "a"),
    ]
    table.load_as_version(0)
    assert table.to_pyarrow_table()["v"].to_pylist() == ["a"] * 3


@pytest.mark.parametrize("moves", [True, False])
def test_a_key_in_another_partition(moves: bool, place: Place) -> None:
    """In global scope it moves to the partition of the row, or the row stays in the partition of the key."""
    place.load([(1, "a", 0), (2, "a", 1), (3, "a", 1)], scope="global")
    more = f"scope: global\nupdate_partition_path: {str(moves).lower()}\n"
    receipt = place.upsert([(1, "b", 1), (2, "b", 1), (4, "b", 2)], more)
    assert counts(receipt)[:3] == (3, 1, 2)
    assert sorted(place.rows()) == [(1, "b", 1 if moves else 0), (2, "b", 1), (3, "a", 1), (4, "b", 2)]
    assert receipt.removed_files == 2
    assert verify(place.config("scope: global\n")).is_sound
    assert place.delete(pa.table({"k": [1, 4, 9]}), "scope: global\n").deleted == 2
    assert place.held() == [(2, 1), (3, 1)]
    assert place.delete(pa.table({"k": [9]}), "scope: global\n").absent == 1


def test_keys_that_move_together_make_one_file(place: Place) -> None:
    """Whatever files they come from; with a setting they fill one that new rows fill."""
    place.load([(1, "a", 0), (2, "a", 1), (3, "a", 2)], scope="global")
    receipt = place.upsert([(1, "b", 3), (2, "b", 3), (4, "b", 3)], "scope: global\n")
    assert (receipt.removed_files, receipt.files) == (2, 1)
    assert [path[:12] for path in place.files()] == ["d=1970-01-03", "d=1970-01-04"]
    receipt = place.upsert([(3, "c", 3), (5, "c", 3)], "scope: global\nsmall_file_bytes: 1MiB\n")
    assert (receipt.removed_files, receipt.files) == (2, 1)
    assert place.held() == [(1, 3), (2, 3), (3, 3), (4, 3), (5, 3)]


def test_a_key_in_two_partitions_stays_in_the_first(place: Place) -> None:
    """Another writer has added it again; the row takes the place of the first file's."""
    place.load([(1, "a", 2), (2, "a", 2)], scope="global")
    foreign(place, 1, 0)
    place.load([], scope="global")
    receipt = place.upsert([(1, "b", 1)], "scope: global\nupdate_partition_path: false\n")
    assert receipt.removed_rows == 2
    assert sorted(place.rows()) == [(1, "b", 2), (2, "a", 2)]


def test_a_key_of_the_partition_null(tmp_path: Path) -> None:
    """Another writer may have one: in global scope its rows are found, change and stay."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)], scope="global")
    table = DeltaTable(str(place.root))
    write_deltalake(table, arrow([(2, "a", None), (3, "a", None)]), mode="append")
    place.upsert([(2, "b", 1)], "scope: global\nupdate_partition_path: false\n")
    found = sorted(DeltaTable(str(place.root)).to_pyarrow_table().to_pylist(), key=lambda row: row["k"])
    assert [(row["k"], row["v"], row["d"] is None) for row in found] == [
        (1, "a", False),
        (2, "b", True),
        (3, "a", True),
    ]


def test_small_files_are_filled(place: Place) -> None:
    """With a setting, new rows of a partition go into its smallest file below the size, not into one more."""
    for number in range(3):
        place.load([(10 * number + key, "a", 0) for key in range(3 - number)])
    place.load([(99, "a", 1)])
    assert place.upsert([(200, "b", 0)]).removed_files == 0
    more = "small_file_bytes: 1MiB\n"
    plan = planned(place, [(100, "b", 0), (101, "b", 0), (100, "b", 2)], more)
    assert (plan.files, plan.filled_files, plan.file_rows) == (1, 1, 1)
    receipt = place.upsert([(100, "b", 0), (101, "b", 0), (100, "b", 2)], more)
    assert (receipt.removed_files, receipt.carried_rows, receipt.removed_rows, receipt.files) == (1, 1, 0, 2)
    with_update = planned(place, [(0, "c", 0), (102, "c", 0)], more)
    assert (with_update.files, with_update.filled_files) == (1, 1)
    place.upsert([(0, "c", 0), (102, "c", 0)], more)
    held = {
        (0, 0),
        (1, 0),
        (2, 0),
        (10, 0),
        (11, 0),
        (20, 0),
        (99, 1),
        (100, 0),
        (100, 2),
        (101, 0),
        (102, 0),
        (200, 0),
    }
    assert place.held() == sorted(held)
    assert verify(place.config()).is_sound
    too_large = planned(place, [(300, "b", 0)], "small_file_bytes: 10B\n")
    assert (too_large.files, too_large.filled_files) == (0, 0)


@pytest.mark.parametrize("by_day", [True, False])
def test_a_file_is_filled_up_to_the_target(tmp_path: Path, by_day: bool) -> None:
    """By the size of its rows so far; other new rows make files of their own, which end at the target too."""
    place = Place(tmp_path, "delta")
    rows = 2000
    file = tmp_path / "more.yaml"
    text = CONFIG.replace("FORMAT", "delta").replace("partition_by: d\n", "partition_by: d\n" if by_day else "")
    file.write_text(text, encoding="utf-8")

    def values(keys: range) -> pa.Table:
        return arrow([(key, hashlib.sha256(b"%d" % key).hexdigest(), 0) for key in keys])

    upsert(values(range(rows)), load_config(file))
    (path,) = place.files()
    size = (place.root / path).stat().st_size
    file.write_text(f"{text}small_file_bytes: {size + 1}B\ntarget_file_bytes: {2 * size}B\n", encoding="utf-8")
    receipt = upsert(values(range(rows - 1, 4 * rows)), load_config(file))
    assert (receipt.removed_files, receipt.files, receipt.inserted) == (1, 2, 3 * rows)
    held = {"-of-" in path: pq.read_metadata(place.root / path).num_rows for path in place.files()}
    assert held == {True: 2 * rows, False: 2 * rows}
    assert sorted(key for key, _, _ in place.rows()) == [*range(4 * rows)]
    assert verify(load_config(file)).is_sound


@pytest.mark.parametrize("by", [[], ["p", "d"]])
def test_files_are_filled_by_all_partition_columns(tmp_path: Path, by: list[str]) -> None:
    """Of a table without any, the one small file takes all new rows; with two, each row the file of both its values."""
    place = Place(tmp_path, "delta")
    file = tmp_path / "by.yaml"
    settings = CONFIG.replace("FORMAT", "delta").replace("partition_by: d", f"partition_by: {by}")
    file.write_text(f"{settings}small_file_bytes: 1MiB\n", encoding="utf-8")

    def rows(keys: range) -> pa.Table:
        days = pa.array([key % 3 for key in keys], pa.int32()).cast(pa.date32())
        return pa.table({"k": [*keys], "p": ["xy"[key % 2] for key in keys], "d": days})

    config = load_config(file)
    upsert(rows(range(12)), config)
    files = len(place.files())
    receipt = upsert(rows(range(11, 30)), config)
    assert files == (6 if by else 1)
    assert (receipt.removed_files, receipt.carried_rows, len(place.files())) == (files, 11, files)
    table = DeltaTable(str(place.root)).to_pyarrow_table(columns=["k", "p", "d"])
    assert table.sort_by("k") == rows(range(30))


def test_large_files_are_rewritten_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is begun last leaves the other cores idle."""
    for day, count in enumerate((1, 3000, 30)):
        place.load([(key, str(key), day) for key in range(count)])
    begun = []
    kept = FileRewrite.remaining

    def counted(rewrite: FileRewrite, number: int) -> Iterator[pa.RecordBatch]:
        begun.append(rewrite.removed[number].partition)
        return kept(rewrite, number)

    monkeypatch.setattr(FileRewrite, "remaining", counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    place.upsert([(0, "b", day) for day in range(3)])
    assert begun == [(1,), (2,), (0,)]


def test_repeated_upserts_keep_files_as_they_are(place: Place) -> None:
    """A rewritten file has the rows of one old file: a partition's files do not become one."""
    place.load([(key, "a", 0) for key in range(10)])
    place.load([(key, "a", 0) for key in range(10, 20)])
    for turn in "bc":
        place.upsert([(key, turn, 0) for key in range(0, 20, 3)])
        sizes = [pq.read_metadata(place.root / path).num_rows for path in place.files()]
        assert sizes == [10, 10]
    assert {v for k, v, _ in place.rows() if k % 3 == 0} == {"c"}


def test_a_key_that_another_writer_added_again_is_one_afterwards(place: Place) -> None:
    """All its rows are replaced by one, or go."""
    place.load([(1, "a", 0), (2, "a", 0)])
    foreign(place, 1, 0)
    assert place.upsert([(1, "b", 0)]).removed_rows == 2
    assert sorted(place.rows()) == [(1, "b", 0), (2, "a", 0)]
    foreign(place, 2, 0)
    receipt = place.delete([(2, "", 0)])
    assert (receipt.deleted, receipt.removed_rows) == (1, 2)
    assert place.rows() == [(1, "b", 0)]


def test_rows_with_a_null_in_their_key_stay(place: Place) -> None:
    """Another writer may have added them to a file that is rewritten."""
    place.load([(1, "a", 0)])
    path = place.root / place.files()[0]
    foreign(place, 7, 0)
    other = next(place.root / one for one in place.files() if place.root / one != path)
    rows = pa.table({"k": pa.array([7, None, None]), "v": ["x", "y", "z"]})
    if place.format == "parquet":
        pq.write_table(rows, other)
        place.upsert([(7, "b", 0)])
        assert sorted(place.rows(), key=str) == [(1, "a", 0), (7, "b", 0), (None, "y", 0), (None, "z", 0)]


def test_many_types_come_through_a_rewrite(place: Place) -> None:
    """Row for row as they were, in every column."""
    rows = pa.table(
        {
            "k": pa.array([1, 2, 3]),
            "d": pa.array([0, 0, 0], pa.date32()),
            "t": pa.array([0, 1000, None], pa.timestamp("us", "UTC")),
            "n": pa.array([[{"a": 1}], None, []], pa.list_(pa.struct([("a", pa.int32())]))),
            "m": pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "b": pa.array([b"\x00", b"", None]),
            "f": pa.array([0.5, None, float("inf")]),
        }
    )
    load(rows, place.root, key=["k"], partition_by=["d"], table_format=place.format)
    place.delete([(2, "", 0)])
    files = [pq.ParquetFile(place.root / path).read() for path in place.files()]
    expected = rows.filter(pa.array([True, False, True])).drop_columns(["d"]).to_pylist()
    assert pa.concat_tables(files).to_pylist() == expected


def test_what_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Tables that must not change, columns that a table or a file lacks or has more, names that are ours."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    before = sorted(place.root.rglob("*"))
    with pytest.raises(SchemaDriftError, match=r"`v` \(string\) is missing in the batch"):
        place.upsert(arrow([(1, "b", 0)]).drop_columns(["v"]))
    with pytest.raises(ConfigError, match="a name that rows of ports use"):
        place.upsert(pa.table({"k": [1], "d": arrow([(1, "", 0)])["d"], "_load": [1]}))
    with pytest.raises(SchemaDriftError, match="`k` is string in the batch and bigint in the table"):
        place.delete(pa.table({"k": ["1"], "d": arrow([(1, "", 0)])["d"]}))
    assert sorted(place.root.rglob("*")) == before
    for setting, found in (("delta.appendOnly", "appendOnly is true"), ("delta.enableChangeDataFeed", "feed is on")):
        table = DeltaTable(str(place.root))
        table.alter.set_table_properties({setting: "true"})
        for run in (place.upsert, place.delete, lambda rows: planned(place, rows)):
            with pytest.raises(UnsupportedTableError, match=found):
                run([(1, "b", 0)])
        table.alter.set_table_properties({setting: "false"})
    assert place.rows() == [(1, "a", 0)]
    assert place.leftovers() == []
    place.upsert([(1, "b", 0)])


def test_a_foreign_file_with_another_column(tmp_path: Path) -> None:
    """Would lose it, so it is not rewritten."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    pq.write_table(pa.table({"k": [2], "v": ["a"], "w": [1]}), place.root / "d=1970-01-01/z.parquet")
    with pytest.raises(SchemaDriftError, match=r"z\.parquet: has `w`, which the table does not have"):
        place.upsert([(2, "b", 0)])
    assert place.leftovers() == []
    assert place.upsert([(1, "b", 0)]).updated == 1


def test_columns_declared_not_null_stay_so(tmp_path: Path) -> None:
    """A null in a changed row fails the upsert."""
    root = tmp_path / "table"
    DeltaTable.create(
        str(root),
        pa.schema(
            [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False), ("d", pa.date32())]
        ),
        partition_by=["d"],
    )
    place = Place(tmp_path, "delta")
    place.upsert([(1, "a", 0)])
    rows = arrow([(1, "a", 0)]).set_column(1, "v", pa.array([None], pa.string()))
    with pytest.raises(TableUsageError, match="column `v` has a null"):
        place.upsert(rows)
    assert place.rows() == [(1, "a", 0)]


def test_an_index_that_claims_too_much(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without the key that the index has with it: nothing is committed, and the message says what to do."""
    place.load([(1, "a", 0)])
    with monkeypatch.context() as patch:
        made = OpenFile.rows
        patch.setattr(OpenFile, "rows", lambda *given, **more: (rows.slice(1) for rows in made(*given, **more)))
        with pytest.raises(IndexDamagedError, match="lacks keys that the index has with it"):
            place.upsert([(1, "b", 0)])
    assert place.rows() == [(1, "a", 0)]
    assert place.leftovers() == []


def test_a_file_that_is_gone(place: Place) -> None:
    """Of a Delta table it is named; a plain table is what is there."""
    place.load([(1, "a", 0), (2, "a", 1)])
    (place.root / place.files()[0]).unlink()
    if place.format == "delta":
        with pytest.raises(FileVanishedError):
            place.upsert([(1, "b", 0)])
    else:
        assert place.upsert([(1, "b", 0)]).inserted == 1


def test_a_plain_file_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is judged again; a file that changes or goes each time fails it clearly."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0), (2, "a", 0)])
    path = place.root / place.files()[0]
    made = OpenFile.rows
    times = 1

    def late(self: OpenFile, *given: Any, **more: Any) -> Any:
        nonlocal times
        yield from made(self, *given, **more)
        if "batch_rows" in more:
            return  # of keys alone
        times -= 1
        if times >= 0:
            pq.write_table(pa.table({"k": [1, 2, 3], "v": ["x", "y", str(times) * 9]}), path)

    monkeypatch.setattr(OpenFile, "rows", late)
    receipt = place.upsert([(1, "b", 0)])
    assert (receipt.tries, receipt.updated) == (2, 1)
    assert sorted(place.rows()) == [(1, "b", 0), (2, "y", 0), (3, "0" * 9, 0)]
    (name,) = place.files()
    path = place.root / name
    times = 5
    with pytest.raises(TableChangedError, match="other writers were faster 5 times"):
        place.upsert([(1, "c", 0)])
    assert place.leftovers() == []


def test_a_plain_file_that_goes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is judged again: what is gone is not in the table any more."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0), (2, "a", 1)])
    made = Write.work

    def late(self: Write, version: EntryKeys) -> Workload:
        work = made(self, version)
        (place.root / place.files()[0]).unlink()
        monkeypatch.undo()
        return work

    monkeypatch.setattr(Write, "work", late)
    receipt = place.upsert([(1, "b", 0)])
    assert (receipt.tries, receipt.inserted) == (2, 1)
    assert sorted(place.rows()) == [(1, "b", 0), (2, "a", 1)]


def test_a_file_that_another_writer_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the plan a plain table has no way to say no: their file is not removed, and no row of it is lost."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0), (2, "a", 0)])
    path = place.root / place.files()[0]
    made = FolderTable.commit

    def late(self: FolderTable, commit: Any) -> None:
        pq.write_table(pa.table({"k": [5], "v": ["theirs"]}), path)
        made(self, commit)

    monkeypatch.setattr(FolderTable, "commit", late)
    place.upsert([(1, "b", 0)])
    assert sorted(place.rows()) == [(1, "b", 0), (2, "a", 0), (5, "theirs", 0)]
    assert verify(place.config()).is_sound


def test_another_writer_is_faster_than_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is judged again with what it has written; of five conflicts the upsert fails clearly."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0), (2, "a", 0)])
    commit = DeltaFiles._write
    times = 1

    def late(self: DeltaFiles, made: Any) -> None:
        nonlocal times
        times -= 1
        if times == 0:
            DeltaTable(str(place.root)).delete("k = 1")
        elif times > 0:
            foreign(place, 50 + times, 0)
        commit(self, made)

    monkeypatch.setattr(DeltaFiles, "_write", late)
    receipt = place.upsert([(1, "b", 0), (2, "b", 0)])
    assert (receipt.tries, receipt.inserted, receipt.updated) == (2, 1, 1)
    assert sorted(place.rows()) == [(1, "b", 0), (2, "b", 0)]
    times = 7
    with pytest.raises(TableChangedError, match="other writers were faster 5 times"):
        place.delete([(2, "", 0)])
    assert (2, "b", 0) in place.rows()
    assert place.leftovers() == []


def test_a_change_waits_for_a_load(place: Place) -> None:
    """And fails clearly when it waits too long; a plan does not."""
    place.load([(1, "a", 0)])
    with locked(place.root, 0.0):
        with pytest.raises(TableHeldError):
            upsert(arrow([(1, "b", 0)]), place.config(), lock_timeout_s=0.05)
        assert planned(place, [(1, "b", 0)]).updated == 1


def test_without_an_index(place: Place) -> None:
    """It is built; entries of removed files do not count, however often pieces are merged."""
    place.load([(1, "a", 0), (2, "a", 0)])
    for turn in range(12):
        if turn == 5:
            shutil.rmtree(place.root / PRIVATE / "index")
            assert planned(place, [(1, "", 0)]).updated == 1
        receipt = place.upsert([(1, f"{turn}", 0), (100 + turn, "n", 0)])
        assert (receipt.inserted, receipt.updated, receipt.read_files) == (1, 1, turn + 1 if turn == 5 else 0)
    assert len(place.rows()) == 14
    assert (1, "11", 0) in place.rows()
    assert FEWEST_MERGED < 12
    assert verify(place.config()).is_sound


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_the_compression_of_a_rewritten_file(codec: str, tmp_path: Path) -> None:
    """It is that of the old one; row groups of a large file have many rows each, its last one the rest."""
    place = Place(tmp_path, "parquet")
    rows = 300_000
    table = pa.table({"k": range(rows), "v": ["a"] * rows, "d": pa.array([0] * rows, pa.int32()).cast(pa.date32())})
    folder = place.root / "d=1970-01-01"
    folder.mkdir(parents=True)
    pq.write_table(table.drop_columns(["d"]), folder / "old.parquet", compression=codec)
    assert place.upsert([(key, "b", 0) for key in range(0, rows, 10_000)]).updated == 30
    (new,) = place.files()
    footer = pq.read_metadata(place.root / new)
    chunk = footer.row_group(0).column(0)
    assert chunk.compression == {"zstd": "ZSTD", "none": "UNCOMPRESSED"}[codec]
    groups = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    assert len(groups) > 1
    assert min(groups[:-1]) >= 1 << 17
    assert (footer.num_rows, sum(v == "b" for _, v, _ in place.rows())) == (rows, 30)


@pytest.mark.parametrize("more", ["", "small_file_bytes: 1MiB\n"])
def test_keys_of_rewritten_files_are_not_read_again(more: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index enters the keys of new rows alone, and has an entry for each row, whatever was rewritten."""
    place.load([(key, "a", key % 2) for key in range(100)])
    monkeypatch.setattr(index_module, "key_steps", None)
    for turn in range(12):
        rows: list[Row] = [(key, f"{turn}", key % 2) for key in range(turn, 110 + turn)]
        receipt = place.upsert(rows, more)
        assert (receipt.updated, receipt.inserted) == ((100, 10) if turn == 0 else (109, 1))
    monkeypatch.undo()
    pieces = list((place.root / PRIVATE / "index/pieces").iterdir())
    state = FORM.read(place.root / PRIVATE / "index/state")
    assert state is not None
    assert sum(piece.entries for piece in state.pieces) == len(place.rows()) == 121
    assert {path.name for path in pieces} == {Path(piece.file).name for piece in state.pieces}
    assert verify(place.config()).is_sound
    assert filter_exists(arrow([(120, "", 0), (121, "", 1)]), place.config()).to_pylist() == [False, True]


def test_a_rewritten_file_that_loses_keys_is_read_again(place: Place) -> None:
    """Of a key that others had added again, that was deleted, or that moved: no entry of it stays, none is missing."""
    place.load([(1, "a", 0), (2, "a", 0), (3, "a", 1)])
    foreign(place, 1, 0)
    place.upsert([(1, "b", 0), (4, "b", 0)], "small_file_bytes: 1MiB\n")
    assert sorted(place.rows()) == [(1, "b", 0), (2, "a", 0), (3, "a", 1), (4, "b", 0)]
    assert verify(place.config()).is_sound
    place.delete([(2, "", 0)])
    assert verify(place.config()).is_sound
    assert place.load([(2, "c", 0)]).inserted == 1
    moving = "scope: global\nupdate_partition_path: true\nsmall_file_bytes: 1MiB\n"
    for rows in ([(1, "d", 1), (5, "d", 1)], [(3, "d", 2), (6, "d", 2)], [(4, "d", 1), (5, "e", 0), (7, "d", 3)]):
        place.upsert(rows, moving)
        report = verify(place.config(moving))
        assert (report.is_sound, report.unindexed) == (True, 0)
    assert place.held() == [(1, 1), (2, 0), (3, 2), (4, 1), (5, 0), (6, 2), (7, 3)]


def test_columns_that_repeat_get_a_dictionary(tmp_path: Path) -> None:
    """In new files and in rewritten ones; of a column whose values are all different it would be larger than they."""
    place = Place(tmp_path, "parquet")
    rows = 20_000
    days = pa.array([0] * rows, pa.int32()).cast(pa.date32())
    place.load(pa.table({"k": range(rows), "v": [f"{key % 3_000}" for key in range(rows)], "d": days}))
    for _ in range(2):
        (name,) = place.files()
        group = pq.read_metadata(place.root / name).row_group(0)
        assert [group.column(column).has_dictionary_page for column in range(2)] == [False, True]
        assert place.upsert([(7, "b", 0)]).updated == 1
    assert len(place.rows()) == rows


def test_the_choice_of_dictionaries() -> None:
    """By values that come again, however far apart; nulls are no values; nested columns leave the choice as it is."""
    rows = 60_000
    columns = {
        "different": pa.array(range(rows)),
        "text": pa.array([f"{key}" for key in range(rows)]),
        "round": pa.array([key % 20_000 for key in range(rows)]),
        "nulls": pa.nulls(rows, pa.int64()),
        "mostly": pa.array([None if key % 4 else key for key in range(rows)], pa.int64()),
        "one": pa.array(["same"] * rows),
    }
    records = pa.RecordBatch.from_pydict(columns)
    assert dictionary_columns(records) == ["round", "nulls", "one"]
    assert dictionary_columns(records.slice(0, 300)) == ["nulls", "one"]
    assert dictionary_columns(records.select(["text"])) is False
    assert dictionary_columns(records.slice(0, 30)) is dictionary_columns(records.slice(0, 0)) is True
    assert dictionary_columns(pa.RecordBatch.from_pydict({"k": range(300), "list": [[1]] * 300})) is True
