"""Loads of tables of both formats: what is added, what is not and why, foreign commits, deaths at every step."""

from __future__ import annotations

import json
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, convert_to_deltalake, write_deltalake

from deduper.errors import IntegrityError
from deduper.table.batch import ArrowBatch, FileBatch, Keep
from deduper.table.errors import (
    FileVanishedError,
    IndexDamagedError,
    SchemaDriftError,
    SettingError,
    SourceChangedError,
    TableChangedError,
    TableError,
    TableHeldError,
    TableUsageError,
    UnsupportedTableError,
)
from deduper.table.formats.delta import DeltaFiles
from deduper.table.formats.protocol import PRIVATE
from deduper.table.index import exact as indexing
from deduper.table.index.exact import FORM
from deduper.table.operations import staging
from deduper.table.operations import write as lock
from deduper.table.operations.changes import load
from deduper.table.operations.verify import verify
from deduper.table.operations.write import locked
from tests.deduper.small_service import armed
from tests.deduper.table.scene import STEPS, Place, Row, arrow, dying, foreign

pytestmark = pytest.mark.slow


def test_two_loads_of_one_batch(place: Place) -> None:
    """The second adds nothing; its receipt names the files; ports have every other row, and why."""
    rows: list[Row] = [(1, "a", 0), (2, "b", 0), (1, "c", 1), (1, "d", 0), (None, "e", 1), (7, "f", None)]
    first, second = place.load(rows), place.load(rows)
    wrong = {"null_key": 1, "null_partition": 1}
    assert (first.rows, first.inserted, first.repeats, first.found, dict(first.errors)) == (6, 3, 1, 0, wrong)
    assert (second.rows, second.inserted, second.repeats, second.found, dict(second.errors)) == (6, 0, 0, 4, wrong)
    assert sorted(place.rows()) == [(1, "a", 0), (1, "c", 1), (2, "b", 0)]
    of_day_0, of_day_1 = place.files()
    assert [(one.path, one.rows) for one in second.found_in] == [(of_day_0, 3), (of_day_1, 1)]
    assert place.port("duplicates") == sorted(
        [
            (1, "same_load", None),
            *[(1, "in_table", of_day_0)] * 2,
            (1, "in_table", of_day_1),
            (2, "in_table", of_day_0),
        ],
        key=str,
    )
    assert place.port("errors") == sorted([(None, "null_key", None), (7, "null_partition", None)] * 2, key=str)
    assert second.version == first.version == 0
    assert (first.began_anew, second.began_anew, second.read_files) == ("there was none", None, 0)
    assert place.leftovers() == []


def test_the_index_of_a_load_is_that_of_its_files(place: Place) -> None:
    """A load enters its keys without reading its files; built anew from the files, the index says the same."""
    rows: list[Row] = [(number % 700, "a", number % 5) for number in range(3000)]
    place.load(rows)
    known = place.load(rows)
    shutil.rmtree(place.root / PRIVATE / "index")
    read = place.load(rows)
    assert (known.found_in, known.read_files, read.read_files) == (read.found_in, 0, 5)


def test_keys_of_a_file_that_is_removed_right_after_the_commit_are_in_no_other_file(place: Place) -> None:
    """Another writer overwrites a partition before the load has entered its keys: its rows can be loaded again."""

    def remove() -> None:
        if place.format == "delta":
            DeltaTable(str(place.root)).delete("d = 0")
        else:
            (place.root / place.files()[0]).unlink()

    rows: list[Row] = [(1, "a", 0), (2, "b", 1)]
    with armed("table.6.published", 1, remove):
        place.load(rows, scope="global")
    assert place.rows() == [(2, "b", 1)]
    second = place.load(rows, scope="global")
    assert (second.inserted, second.found) == (1, 1)
    assert sorted(place.rows()) == rows


@pytest.mark.parametrize(
    ("keep", "kept"), [("first", "b"), ("last", "a"), (Keep("greatest", "v"), "c"), (Keep("greatest", "k"), "b")]
)
def test_the_kept_one_of_repeats(keep: str | Keep, kept: str, place: Place) -> None:
    """By the declared rule; of equal greatest ones the first."""
    place.load([(1, "b", 0), (2, "x", 0), (1, "c", 0), (1, "c", 0), (1, "a", 0), (3, "y", 0)], keep=keep)
    assert sorted(place.rows()) == [(1, kept, 0), (2, "x", 0), (3, "y", 0)]


def test_null_is_the_least_of_greatest(place: Place) -> None:
    """And any value is kept before it."""
    rows = pa.table({"k": [1, 1, 2, 2], "d": [0, 0, 0, 0], "n": [None, -5.0, None, None], "at": [0, 1, 2, 3]})
    load(rows, place.root, key=["k"], partition_by=["d"], table_format=place.format, keep=Keep("greatest", "n"))
    second = load(rows, place.root, key=["k"], partition_by=["d"], table_format=place.format)
    assert second.found == 4
    files = [pq.ParquetFile(place.root / path).read() for path in place.files()]
    assert sorted(pa.concat_tables(files)["at"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("scope", ["partition", "global"])
def test_the_scope_of_a_key(scope: str, place: Place) -> None:
    """A key is unique within its partition, or within the table."""
    place.load([(1, "a", 0)], scope=scope)
    second = place.load([(1, "b", 1), (2, "c", 0), (2, "d", 1)], scope=scope)
    assert (second.inserted, second.found, second.repeats) == ((3, 0, 0) if scope == "partition" else (1, 1, 1))
    assert place.load([(1, "b", 1), (2, "d", 1)], scope=scope).inserted == 0


def test_composite_keys_of_many_types(place: Place) -> None:
    """Each column counts, in every way engines spell its type; rows of partitions with odd names are found again."""
    base: dict[str, Any] = {
        "p": pa.array(["a b/c ü%=", "x", "x", "x", "x"]),
        "q": pa.array([1, -2, -2, -2, -2], pa.int16()),
        "t": pa.array([0, 1000, 1000, 1000, 2000], pa.timestamp("ns", "Europe/Paris")),
        "s": pa.array(["", "é", "é", "e", "é"], pa.large_string()),
        "n": pa.array([Decimal("1.50"), Decimal("1.50"), Decimal("1.51"), Decimal("1.50"), Decimal("1.50")]),
        "f": pa.array([0.0, 1.5, 1.5, 1.5, 1.5]),
        "l": pa.array([[1], [], None, [2], [3]], pa.list_(pa.int32())),
    }
    options: dict[str, Any] = {"key": ["t", "s", "n", "f"], "partition_by": ["p", "q"], "table_format": place.format}
    first = load(pa.table(base), place.root, **options)
    assert (first.rows, first.inserted) == (5, 5)
    base["s"] = base["s"].cast(pa.string()).dictionary_encode()
    base["f"] = pa.array([-0.0, 1.5, 1.5, 1.5, 1.5])
    shuffled = pa.table({name: base[name] for name in ("l", "n", "f", "s", "q", "p", "t")})
    assert load(shuffled, place.root, **options).found == 5
    shutil.rmtree(place.root / PRIVATE / "index")
    assert load(shuffled, place.root, **options).found == 5
    if place.format == "delta":
        found = DeltaTable(str(place.root)).to_pyarrow_table()
        assert sorted(found["p"].to_pylist()) == ["a b/c ü%=", "x", "x", "x", "x"]
        log = (place.root / "_delta_log/00000000000000000000.json").read_text(encoding="utf-8")
        paths = [json.loads(line)["add"]["path"] for line in log.splitlines() if '"add"' in line]
        assert all((place.root / unquote(path)).is_file() for path in paths)


def test_a_table_without_partitions_and_an_empty_batch(place: Place) -> None:
    """An empty batch makes no table; a key may be all there is."""
    options: dict[str, Any] = {"key": ["k"], "table_format": place.format}
    empty = load(pa.table({"k": pa.array([], pa.int64())}), place.root, **options)
    assert (empty.rows, empty.inserted, empty.version) == (0, 0, -1)
    assert sorted(path.name for path in place.root.iterdir()) == [PRIVATE]
    assert load(pa.table({"k": [1, 2, 2]}), place.root, **options).inserted == 2
    assert load(pa.table({"k": [3, 2, 1]}), place.root, **options).inserted == 1
    again = load(pa.table({"k": pa.array([], pa.int64())}), place.root, **options)
    assert (again.rows, again.files) == (0, 0)


@pytest.mark.night(
    but=[
        *("delta-index.merged", "delta-table.3.staged", "delta-table.5.placed", "delta-table.5.committed"),
        *("delta-table.6.port", "parquet-index.state", "parquet-table.4.planned", "parquet-table.placed"),
        *("parquet-table.6.published", "parquet-table.7.port"),
    ]
)
@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_each_step(step: str, place: Place) -> None:
    """Afterwards the same batch: nothing lost, nothing twice, and the ports have each row of the loads that count."""
    place.load([(1, "a", 0), (2, "a", 1)])
    for number in range(6):  # so that the piece of the next load is merged
        place.load([(100 + number, "a", 0)])
    rows: list[Row] = [(2, "b", 1), (3, "b", 0), (3, "b", 0), (4, "b", 1), (None, "b", 0)]
    with dying(step) as died:
        place.load(rows)
    of_other_format = place.format == "parquet" and step in ("table.5.placed", "table.5.committed")
    assert bool(died) != of_other_format
    receipt = place.load(rows)
    assert place.held() == sorted([(1, 0), (2, 1), (3, 0), (4, 1), *((100 + number, 0) for number in range(6))])
    # The ports of the dead load are there if and only if its commit is.
    was_committed = receipt.inserted == 0
    of_dead, of_second = ([2, 3], [2, 3, 3, 4]) if was_committed else ([], [2, 3])
    assert [key for key, _, _ in place.port("duplicates")] == sorted([*of_dead, *of_second])
    assert len(place.port("errors")) == 1 + was_committed
    assert receipt.completed == (bool(died) and was_committed)
    assert place.leftovers() == []


def test_a_death_while_a_dead_load_is_completed(place: Place) -> None:
    """Each step of completing is safe to repeat."""
    rows: list[Row] = [(key, "a", key % 3) for key in range(9)] + [(None, "b", 0), (1, "c", 1)]
    with dying("table.placed", 2):
        place.load(rows)
    for nth in (1, 2, 1):
        with dying("table.placed", nth), dying("table.6.port", 1):
            place.load(rows)
    place.load(rows)
    assert place.held() == sorted((key, key % 3) for key in range(9))
    assert place.leftovers() == []


def test_foreign_files_are_read_and_removed_ones_forgotten(place: Place) -> None:
    """A table that others made, added to, and removed from."""
    foreign(place, 1, 0)
    assert place.load([(1, "a", 0), (2, "a", 0)]).found == 1
    foreign(place, 3, 1)
    third = place.load([(3, "b", 1), (2, "b", 0), (4, "b", 1)])
    assert (third.found, third.inserted, third.read_files) == (2, 1, 1)
    if place.format == "delta":
        DeltaTable(str(place.root)).delete("d = '1970-01-02'")
        assert place.load([(3, "c", 1), (4, "c", 1), (1, "c", 0)]).inserted == 2
        DeltaTable(str(place.root)).restore(0)
        assert place.load([(1, "d", 0), (2, "d", 0)]).inserted == 1
    else:
        (place.root / "d=1970-01-02/foreign-3.parquet").unlink()
        assert place.load([(3, "c", 1), (4, "c", 1)]).inserted == 1
        other = arrow([(9, "x", 0)]).drop_columns(["d"])
        pq.write_table(other, place.root / "d=1970-01-01/foreign-1.parquet")
        assert place.load([(1, "c", 0), (9, "c", 0)]).inserted == 1


def test_a_foreign_compaction_moves_keys(tmp_path: Path) -> None:
    """Keys are then in other files, and no row is added again; an index survives a vacuum."""
    place = Place(tmp_path, "delta")
    for key in range(4):
        place.load([(key, "a", 0)])
    table = DeltaTable(str(place.root))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    receipt = place.load([(key, "b", 0) for key in range(5)])
    assert (receipt.found, receipt.inserted, receipt.began_anew, receipt.read_files) == (4, 1, None, 1)
    assert len(receipt.found_in) == 1


def test_another_writer_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is judged again with what it has written; of five conflicts the load fails clearly."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    commit = DeltaFiles._write
    times = 1

    def late(self: DeltaFiles, made: Any) -> None:
        nonlocal times
        times -= 1
        if times >= 0:
            foreign(place, 2 + 10 * times, 0)
        commit(self, made)

    monkeypatch.setattr(DeltaFiles, "_write", late)
    receipt = place.load([(2, "b", 0), (3, "b", 0)])
    assert (receipt.tries, receipt.inserted, receipt.found) == (2, 1, 1)
    assert sorted(place.rows()) == [(1, "a", 0), (2, "foreign", 0), (3, "b", 0)]
    times = 5
    with pytest.raises(TableChangedError, match="other writers were faster 5 times"):
        place.load([(9, "b", 0)])
    assert (9, 0) not in place.held()
    assert place.leftovers() == []


def test_a_first_load_that_loses_to_another_maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both make the table: one does, the load reads it and adds the rest."""
    place = Place(tmp_path, "delta")
    commit = DeltaFiles._write

    def late(self: DeltaFiles, made: Any) -> None:
        monkeypatch.setattr(DeltaFiles, "_write", commit)
        foreign(place, 1, 0)
        commit(self, made)

    monkeypatch.setattr(DeltaFiles, "_write", late)
    receipt = place.load([(1, "a", 0), (2, "a", 0)])
    assert (receipt.tries, receipt.found, receipt.inserted) == (2, 1, 1)
    assert place.leftovers() == []


def test_a_commit_whose_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says that it was ours, also after later commits of others."""
    from deltalake.exceptions import DeltaError

    place = Place(tmp_path, "delta")
    commit = DeltaFiles._write

    def unclear(self: DeltaFiles, made: Any) -> None:
        commit(self, made)
        foreign(place, 5, 0)
        raise DeltaError("the connection was lost")

    monkeypatch.setattr(DeltaFiles, "_write", unclear)
    receipt = place.load([(1, "a", 0)])
    assert (receipt.inserted, receipt.tries) == (1, 1)
    assert place.held() == [(1, 0), (5, 0)]


def test_a_commit_is_an_append_of_new_files_alone(tmp_path: Path) -> None:
    """So streams that read the table go on; files have their statistics; a load without new rows commits nothing."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0), (5, "b", 0)])
    place.load([(1, "a", 0), (6, "c", 0)])
    place.load([(1, "a", 0)])
    table = DeltaTable(str(place.root))
    assert table.version() == 1
    log = (place.root / "_delta_log/00000000000000000001.json").read_text(encoding="utf-8")
    actions = [json.loads(line) for line in log.splitlines()]
    assert sorted(name for action in actions for name in action) == ["add", "commitInfo", "txn"]
    (added,) = (action["add"] for action in actions if "add" in action)
    assert (added["dataChange"], added["partitionValues"]) == (True, {"d": "1970-01-01"})
    assert json.loads(added["stats"]) == {
        "numRecords": 1,
        "minValues": {"k": 6, "v": "c"},
        "maxValues": {"k": 6, "v": "c"},
        "nullCount": {"k": 0, "v": 0},
    }


_COLUMNS: dict[str, pa.Array] = {
    "long": pa.array(["a" * 40, "b" * 50]),
    "longest": pa.array(["x" * 5000, "b"]),
    "greatest": pa.array(["x" * 32 + "\U0010ffff" * 3, "x" * 32 + "\U0010ffff" * 2 + "y"]),
    "flag": pa.array([True, False]),
    "amount": pa.array([Decimal("-12345678901234567890.10"), Decimal("0.30")], pa.decimal128(38, 2)),
    "float": pa.array([1.5, -2.5]),
    "first": pa.array([-62135596800000000, 5]).cast(pa.timestamp("us")),
    "last": pa.array([253402300799999999, 5]).cast(pa.timestamp("us", "UTC")),
    "day": pa.array([-719162, 2932896], pa.int32()).cast(pa.date32()),
    "with.dot": pa.array(["x", None]),
}


@pytest.mark.parametrize("name", _COLUMNS)
def test_a_reader_with_a_filter_passes_over_no_file_that_has_such_rows(name: str, tmp_path: Path) -> None:
    """By the statistics: of every kind of value, and at the ends of each; deltalake takes a missing bound for null."""
    column = _COLUMNS[name]
    load(pa.table({"k": [1, 2], name: column}), tmp_path, key=["k"])
    dataset = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    for value in column:
        if value.is_valid:
            assert dataset.to_table(filter=pc.field(name) == value)[name].to_pylist() == [value.as_py()]


@pytest.mark.parametrize("us", [253402300800000000, -62135596800000001])
def test_times_that_have_no_year_of_four_digits_are_loaded(us: int, tmp_path: Path) -> None:
    """Without bounds in the statistics: Python has no such times."""
    times = pa.array([us, 5]).cast(pa.timestamp("us"))
    load(pa.table({"k": [1, 2], "t": times}), tmp_path, key=["k"])
    assert DeltaTable(str(tmp_path)).to_pyarrow_table()["t"].combine_chunks().equals(times)


def test_one_load_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The second one says that it waits, once, then fails clearly."""
    monkeypatch.setattr(lock, "_SAY_AFTER_S", 0.0)
    with locked(place.root, 0.0), pytest.raises(TableHeldError, match="another write or rebuild has held the table"):
        load(arrow([(1, "a", 0)]), place.root, key=["k"], table_format=place.format, lock_timeout_s=0.12)
    assert caplog.text.count("holds the table; waiting up to 0.12 s") == 1


def test_a_batch_of_other_columns_is_refused(place: Place) -> None:
    """Each is named, and nothing is written."""
    place.load([(1, "a", 0)])
    before = sorted(place.root.rglob("*"))
    other = pa.table({"k": [2], "d": arrow([(1, "", 0)])["d"], "v": pa.array([1], pa.int32()), "w": ["x"]})
    with pytest.raises(SchemaDriftError, match=r"`w` \(string\) is not in the table; `v` is int in the .* and string"):
        place.load(other)
    with pytest.raises(SchemaDriftError, match=r"`v` \(string\) is missing in the batch"):
        place.load(other.select(["k", "d"]))
    assert sorted(place.root.rglob("*")) == before


def test_mistakes_in_settings_are_named() -> None:
    """Before anything is made."""
    rows = pa.table({"k": [1], "f": [0.5], "l": [[1]], "x": pa.array([1], pa.uint8())})
    sound = rows.drop_columns(["x"])
    for given, setting, what in (
        ({"key": []}, "key", "is empty"),
        ({"key": ["kk"]}, "key", "no column `kk`; did you mean `k`?"),
        ({"key": ["k", "k"]}, "key", "stands twice"),
        ({"key": ["l"]}, "key", "`l` is list.*cannot be part of a key"),
        ({"key": ["k"], "partition_by": ["f"]}, "partition_by", "`f` is double, which cannot name a folder"),
        ({"key": ["k"], "partition_by": ["d"]}, "partition_by", "no column `d`"),
        ({"key": ["k"], "scope": "table"}, "scope", "write `partition` or `global`"),
        ({"key": ["k"], "keep": "newest"}, "keep", "write first, last, or greatest"),
        ({"key": ["k"], "keep": Keep("greatest", "l")}, "keep", "is nested"),
        ({"key": ["k"], "table_format": "iceberg"}, "table.format", "write delta or parquet"),
    ):
        with pytest.raises(SettingError, match=what) as raised:
            load(sound, "/nowhere/table", **given)  # type: ignore[arg-type]
        assert raised.value.setting == setting
    with pytest.raises(TableUsageError, match="column `x` is uint8, which tables do not have; cast it"):
        load(rows, "/nowhere/table", key=["k"])
    with pytest.raises(TableUsageError, match="a list is no Arrow data"):
        load([1], "/nowhere/table", key=["k"])
    with pytest.raises(TableUsageError, match="`k` is there twice, also if case is ignored"):
        load(pa.table({"k": [1], "K": [1]}), "/nowhere/table", key=["k"])
    with pytest.raises(UnsupportedTableError, match="on this machine"):
        load(sound, "s3://bucket/table", key=["k"])
    with pytest.raises(SettingError, match="`_load`"):
        load(pa.table({"k": [1], "_load": [1]}), "/nowhere/table", key=["k"])


def test_values_that_do_not_fit(place: Place) -> None:
    """Digits below a µs are not dropped; a batch that fails leaves nothing."""
    rows = pa.table({"k": [1, 2], "t": pa.array([1000, 1001], pa.timestamp("ns"))})
    with pytest.raises(TableUsageError, match="`t` cannot be cast to timestamp"):
        load(rows, place.root, key=["k"], table_format=place.format)
    assert place.leftovers() == []
    assert load(rows.slice(0, 1), place.root, key=["k"], table_format=place.format).inserted == 1
    if place.format == "delta":
        table = DeltaTable(str(place.root))
        assert table.protocol().writer_features == ["timestampNtz"]
        assert table.to_pyarrow_table()["t"].cast(pa.int64()).to_pylist() == [1]


def test_partition_values_of_the_wrong_type(tmp_path: Path) -> None:
    """A folder whose value is none, other partition columns, an empty text."""
    place = Place(tmp_path, "parquet")
    (place.root / "d=soon").mkdir(parents=True)
    pq.write_table(arrow([(1, "a", 0)]).drop_columns(["d"]), place.root / "d=soon/one.parquet")
    with pytest.raises(TableUsageError, match=r"d=soon/one\.parquet: `soon` is no date, which the batch's column `d`"):
        place.load([(1, "a", 0)])
    with pytest.raises(
        TableUsageError, match=r"is partitioned by d, and the load's partition_by is v; write `partition_by: \[d\]`"
    ):
        load(arrow([(1, "a", 0)]), place.root, key=["k"], partition_by=["v"], table_format="parquet")
    texts = pa.table({"k": [1, 2, 3], "p": ["", "x", "__HIVE_DEFAULT_PARTITION__"]})
    receipt = load(texts, tmp_path / "other", key=["k"], partition_by=["p"])
    assert (receipt.inserted, receipt.errors) == (1, {"bad_partition": 2})
    with pytest.raises(TableUsageError, match="is partitioned by p, and the load's partition_by is nothing"):
        load(texts, tmp_path / "other", key=["k"])


def test_a_refused_batch_leaves_the_index(place: Place) -> None:
    """One with a key of another type, and one by other partitions: the next load finds its keys without a reading."""
    place.load([(1, "a", 0), (2, "a", 1)])
    rows = arrow([(1, "a", 0)])
    with pytest.raises(TableUsageError, match="`k`"):
        place.load(rows.set_column(0, "k", rows["k"].cast(pa.int32())))
    with pytest.raises(TableUsageError, match="is partitioned by d"):
        load(rows, place.root, key=["k"], table_format=place.format, index=place.config().config.table_index)
    receipt = place.load([(1, "a", 0), (3, "a", 1)])
    assert (receipt.inserted, receipt.found, receipt.began_anew, receipt.read_files) == (1, 1, None, 0)


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        (pa.array(["nul\0x", "\0"]), pa.array(["nul", None])),
        (pa.array(["x._COPYING_", "._COPYING_"]), pa.array(["x._COPYING", "_COPYING_"])),
        (
            pa.array([2932897, -719163], pa.int32()).cast(pa.date32()),
            pa.array([2932896, -719162], pa.int32()).cast(pa.date32()),
        ),
    ],
    ids=["text", "hidden", "date"],
)
def test_a_value_that_names_no_folder_is_an_error(bad: pa.Array, good: pa.Array, place: Place) -> None:
    """A name ends at a NUL, so the row got another value and came twice; a date beyond made the table unreadable.

    Readers pass over folders that Hadoop is copying to.
    """
    rows = pa.table({"k": [1, 2, 3, 4], "p": pa.concat_arrays([bad, good])})
    options: dict[str, Any] = {"key": ["k"], "partition_by": ["p"], "table_format": place.format}
    sound = 2 - good.null_count
    first, second = (load(rows, place.root, **options) for _ in range(2))
    assert (first.inserted, first.errors["bad_partition"]) == (sound, 2)
    assert (second.inserted, second.found, second.errors["bad_partition"]) == (0, sound, 2)
    if place.format == "delta":
        assert (
            DeltaTable(str(place.root)).to_pyarrow_table()["p"].sort().combine_chunks().equals(good.drop_null().sort())
        )


def test_a_file_of_the_table_that_is_gone(place: Place) -> None:
    """To build the index anew it is needed, and named; so is one that is no Parquet any more."""
    place.load([(1, "a", 0)])
    (path,) = place.files()
    shutil.rmtree(place.root / PRIVATE / "index")
    (place.root / path).write_bytes(b"PAR1 no more")
    with pytest.raises(TableError, match=path):
        place.load([(1, "a", 0)])
    if place.format == "delta":
        (place.root / path).unlink()
        with pytest.raises(FileVanishedError, match=path):
            place.load([(1, "a", 0)])


def test_keys_of_foreign_files_have_the_type_of_the_batch(tmp_path: Path) -> None:
    """A text is not taken for its number."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    text = pa.table({"k": ["1"], "v": ["a"]})
    pq.write_table(text, place.root / "d=1970-01-01/z.parquet")
    with pytest.raises(SchemaDriftError, match=r"z\.parquet: `k` is string, and the batch's is bigint"):
        place.load([(2, "a", 0)])


def test_a_damaged_index(place: Place) -> None:
    """Its state: built anew. A piece: the load fails and says what to do, and the table is as it was."""
    place.load([(1, "a", 0)])
    index = place.root / PRIVATE / "index"
    (piece,) = (index / "pieces").iterdir()
    sound = piece.read_bytes()
    for at in (0, 9, 50, 100, len(sound) - 3):
        piece.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        with pytest.raises(IndexDamagedError, match=f"delete {index}"):
            place.load([(1, "a", 0), (2, "a", 0)])
    piece.unlink()
    with pytest.raises(IndexDamagedError, match="the next load builds the index anew"):
        place.load([(1, "a", 0), (2, "a", 0)])
    assert place.held() == [(1, 0)]
    assert place.leftovers() == []
    (index / "state").write_bytes(b"BSTABKEY")
    receipt = place.load([(1, "a", 0), (2, "a", 0)])
    assert (receipt.inserted, receipt.found) == (1, 1)
    assert receipt.began_anew is not None
    assert "could not be read" in receipt.began_anew


def test_another_key_builds_another_index(place: Place) -> None:
    """From the table."""
    place.load([(1, "a", 0), (2, "b", 0)])
    rows = arrow([(7, "a", 0), (8, "c", 0)])
    receipt = load(rows, place.root, key=["v"], partition_by=["d"], table_format=place.format)
    assert (receipt.inserted, receipt.found, receipt.began_anew) == (1, 1, "it was of another key")


def test_a_writer_that_loses_a_row_is_found_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the files are counted by their footers, and compared with the verdicts."""
    made = staging._table_rows
    monkeypatch.setattr(staging, "_table_rows", lambda *given: ((of, rows[1:]) for of, rows in made(*given)))
    with pytest.raises(IntegrityError, match="nothing was committed"):
        place.load([(1, "a", 0), (2, "b", 0)])
    monkeypatch.undo()
    assert place.rows() == []
    assert place.leftovers() == []


def test_files_that_change_while_they_are_loaded(place: Place, tmp_path: Path) -> None:
    """Rows are read twice; other rows at the second time are found out."""
    file = tmp_path / "in.parquet"
    pq.write_table(arrow([(1, "a", 0)]), file)
    batch = FileBatch([file])
    pq.write_table(arrow([(1, "a", 0), (2, "a", 0)]), file)
    with pytest.raises(SourceChangedError, match=r"in\.parquet: changed while it was loaded"):
        load(batch, place.root, key=["k"], table_format=place.format)
    batch = FileBatch([file])
    file.unlink()
    with pytest.raises(SourceChangedError, match="changed"):
        load(batch, place.root, key=["k"], table_format=place.format)
    with pytest.raises(TableUsageError, match="cannot be read as Parquet"):
        FileBatch([Path(__file__)])
    grown = ArrowBatch(arrow([(1, "a", 0)]))
    passes = iter([grown, ArrowBatch(arrow([(1, "a", 0), (2, "a", 0)]))])
    grown.batches = lambda columns: ArrowBatch.batches(next(passes), columns)  # type: ignore[method-assign]
    with pytest.raises(SourceChangedError, match="more rows"):
        load(grown, place.root, key=["k"], table_format=place.format)
    assert place.leftovers() == []


def test_files_are_loaded_by_name_and_have_the_same_columns(place: Place, tmp_path: Path) -> None:
    """Of repeats in two files the first file's is kept; a file of other columns is named."""
    for name, rows in (("a", [(1, "first", 0)]), ("b", [(1, "second", 0), (2, "x", 0)])):
        pq.write_table(arrow(rows), tmp_path / f"{name}.parquet")
    batch = FileBatch([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    options: dict[str, Any] = {"key": ["k"], "partition_by": ["d"], "table_format": place.format}
    load(batch, place.root, **options)
    assert sorted(place.rows()) == [(1, "first", 0), (2, "x", 0)]
    pq.write_table(arrow([(1, "a", 0)]).drop_columns(["v"]), tmp_path / "b.parquet")
    with pytest.raises(SchemaDriftError, match=r"b\.parquet: `v` is absent, and string in .*a\.parquet"):
        FileBatch([tmp_path / "a.parquet", tmp_path / "b.parquet"])


def test_tables_that_are_not_loaded(tmp_path: Path) -> None:
    """The other format, features that an append would not honour."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    place.format = "parquet"
    with pytest.raises(UnsupportedTableError, match="is a Delta table; write `format: delta`"):
        place.load([(2, "a", 0)])
    place.format = "delta"
    DeltaTable(str(place.root)).alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(UnsupportedTableError, match=r"delta\.constraints\.positive"):
        place.load([(2, "a", 0)])
    plain = Place(tmp_path / "plain", "parquet")
    plain.load([(1, "a", 0)])
    plain.format = "delta"
    with pytest.raises(UnsupportedTableError, match="has Parquet files and no Delta log"):
        plain.load([(2, "a", 0)])
    other = tmp_path / "other"
    write_deltalake(str(other), arrow([(1, "a", 0)]))
    DeltaTable(str(other)).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(UnsupportedTableError, match="rowTracking"):
        load(arrow([(1, "a", 0)]), other, key=["k"])


@pytest.mark.parametrize("name", ["a%20b", "%2f", "a\\b", "[a]", "a|b", "^", "a\n", "a%41/table"])
def test_a_folder_that_deltalake_does_not_find_again_is_refused(name: str, tmp_path: Path) -> None:
    """Before anything is written: else the rows lie in one folder, the log in another. Folder tables have no log."""
    rows = pa.table({"k": [1], "v": [1]})
    with pytest.raises(UnsupportedTableError, match="in its path, which deltalake does not read as it is; rename"):
        load(rows, tmp_path / name, key=["k"])
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        load(rows, tmp_path / name, key=["k"], table_format="parquet")
    assert len(list((tmp_path / name).glob("*.parquet"))) == 1


def test_other_signs_in_the_path_of_a_table(tmp_path: Path) -> None:
    """Are read as they are."""
    rows = pa.table({"k": [1], "v": [1]})
    root = tmp_path / "a%b #?&+=~{}`\"';:,<>!*$@() ü%4"
    assert [load(rows, root, key=["k"]).inserted for _ in range(2)] == [1, 0]
    assert len(DeltaTable(str(root)).to_pyarrow_table()) == 1


def test_a_dead_load_of_the_other_format(tmp_path: Path) -> None:
    """Is completed as what it was."""
    place = Place(tmp_path, "parquet")
    with dying("table.4.planned"):
        place.load([(1, "a", 0)])
    place.format = "delta"
    with pytest.raises(UnsupportedTableError, match=r"a parquet table has died.*write `format: parquet`"):
        place.load([(1, "a", 0)])
    place.format = "parquet"
    assert place.load([(1, "a", 0)]).completed == 1


def test_columns_declared_not_null(tmp_path: Path) -> None:
    """A null in one fails the load, since the table would not hold its promise."""
    root = tmp_path / "table"
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    DeltaTable.create(str(root), schema)
    with pytest.raises(TableUsageError, match="column `v` has a null, and the table declares it NOT NULL"):
        load(pa.table({"k": [1], "v": pa.array([None], pa.string())}), root, key=["k"])
    receipt = load(pa.table({"k": [1, None], "v": ["a", "b"]}), root, key=["k"])
    assert (receipt.inserted, receipt.errors) == (1, {"null_key": 1})


def test_values_within_columns_that_must_not_be_null(tmp_path: Path) -> None:
    """Are not checked by a load, so the table is refused."""
    inner = pa.list_(pa.field("element", pa.int64(), nullable=False))
    DeltaTable.create(str(tmp_path / "table"), pa.schema([("k", pa.int64()), ("l", inner)]))
    with pytest.raises(UnsupportedTableError, match="must not be null within column l"):
        load(pa.table({"k": [1], "l": [[1]]}), tmp_path / "table", key=["k"])


SPARK_NOTE = "__CHAR_VARCHAR_TYPE_STRING"
INVARIANT = {"delta.invariants": '{"expression": {"expression": "s.a > 3"}}'}
GENERATED = {"delta.generationExpression": "k + 1"}


def spark_field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    """A field of a schema, as Spark has it in JSON."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct_of(*fields: dict[str, Any]) -> dict[str, Any]:
    """A struct, likewise."""
    return {"type": "struct", "fields": list(fields)}


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (spark_field("v", "string", **{SPARK_NOTE: "varchar(3)"}), r"varchar\(3\) of column v"),
        (spark_field("v", "string", **{SPARK_NOTE: "char(4)"}), r"char\(4\) of column v"),
        (spark_field("s", struct_of(spark_field("a", "string")), **{SPARK_NOTE: "struct<a:char(4)>"}), "of column s"),
        (spark_field("s", struct_of(spark_field("a", "integer", **INVARIANT))), "delta.invariants of column s"),
        (
            spark_field(
                "l",
                {
                    "type": "array",
                    "elementType": struct_of(spark_field("a", "long", **GENERATED)),
                    "containsNull": True,
                },
            ),
            "delta.generationExpression of column l",
        ),
    ],
    ids=["varchar", "char", "nested char", "nested invariant", "nested generated"],
)
def test_rules_of_columns_that_a_load_does_not_look_at(column: dict[str, Any], named: str, tmp_path: Path) -> None:
    """Spark refuses rows that break declared lengths, or rules of fields at any depth: the table is refused."""
    log = tmp_path / "table/_delta_log"
    log.mkdir(parents=True)
    schema = struct_of(spark_field("k", "long"), column)
    of_table = {"id": "0a", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema)}
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {**of_table, "partitionColumns": [], "configuration": {}, "createdTime": 1}},
    ]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    with pytest.raises(UnsupportedTableError, match=f"{named}.*does not honour"):
        load(pa.table({"k": [1], "v": ["too long"]}), tmp_path / "table", key=["k"])


def test_lengths_that_files_of_a_plain_table_declare(tmp_path: Path) -> None:
    """Spark notes them in each file that it writes for a table with them; its texts of CHAR(4) end with blanks."""
    root = tmp_path / "table"
    root.mkdir()
    with pq.ParquetWriter(root / "a", pa.schema([("k", pa.string())])) as writer:
        writer.write_table(pa.table({"k": ["ab  "]}))
        note = struct_of(spark_field("k", "string", **{SPARK_NOTE: "char(4)"}))
        writer.add_key_value_metadata({"org.apache.spark.sql.parquet.row.metadata": json.dumps(note)})
    with pytest.raises(UnsupportedTableError, match=r"a: was written for a table with char\(4\)"):
        load(pa.table({"k": ["ab"]}), root, key=["k"], table_format="parquet")


def test_another_writer_removes_a_part_of_a_load_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the index has its keys: only files that are there are entered."""
    place = Place(tmp_path, "delta")
    commit = DeltaFiles.commit

    def overtaken(self: DeltaFiles, made: Any) -> None:
        commit(self, made)
        DeltaTable(str(place.root)).delete("d = '1970-01-02'")

    monkeypatch.setattr(DeltaFiles, "commit", overtaken)
    place.load([(1, "a", 0), (2, "a", 1)])
    monkeypatch.undo()
    assert place.load([(1, "b", 0), (2, "b", 1)]).inserted == 1
    assert place.held() == [(1, 0), (2, 1)]


def test_a_log_that_was_cleaned_up(tmp_path: Path) -> None:
    """A load that died right after its commit is known by its files when the log of its version is gone."""
    for step, is_committed in (("table.5.committed", True), ("table.5.placed", False)):
        place = Place(tmp_path / step, "delta")
        place.load([(1, "a", 0)])
        with dying(step):
            place.load([(2, "a", 0), (None, "x", 0)])
        foreign(place, 3, 0)
        foreign(place, 4, 0)
        DeltaTable(str(place.root)).create_checkpoint()
        for number in range(2):
            (place.root / f"_delta_log/{number:020d}.json").unlink()
        receipt = place.load([(2, "a", 0)])
        assert (receipt.completed, receipt.found) == (int(is_committed), int(is_committed))
        assert len(place.port("errors")) == is_committed
        assert place.held() == [(1, 0), (2, 0), (3, 0), (4, 0)]
        assert place.leftovers() == []


def test_a_dead_load_whose_log_and_files_are_gone(tmp_path: Path) -> None:
    """It is known by its transaction: its ports get their rows, and files of earlier versions stay."""
    place = Place(tmp_path, "delta")
    with dying("table.5.committed"):
        place.load([(2, "a", 0), (None, "x", 0)])
    path = place.root / place.files()[0]
    foreign(place, 3, 0)
    foreign(place, 4, 0)
    DeltaTable(str(place.root)).optimize.compact()
    DeltaTable(str(place.root)).create_checkpoint()
    for number in range(3):
        (place.root / f"_delta_log/{number:020d}.json").unlink()
    assert (place.load([(2, "a", 0)]).completed, len(place.port("errors"))) == (1, 1)
    assert path.exists()
    assert place.held() == [(2, 0), (3, 0), (4, 0)]


def test_a_foreign_commit_of_a_key_again_is_left_to_its_writer(place: Place) -> None:
    """A load adds none, removes none, and believes both files."""
    place.load([(1, "a", 0)])
    foreign(place, 1, 0)
    assert place.load([(1, "b", 0)]).found == 1
    assert place.held() == [(1, 0), (1, 0)]


@pytest.mark.parametrize("index", ["exact", "bloom"])
@pytest.mark.parametrize("values", [[7, 8, 9], [1, 3, 4]], ids=["others", "the same statistics"])
def test_a_table_is_made_again_with_the_same_names(tmp_path: Path, index: str, values: list[int]) -> None:
    """Files of the names, sizes and times of an older table are files of this one: none of the old keys is believed."""

    def make(keys: list[int]) -> None:
        shutil.rmtree(tmp_path / "table" / "_delta_log", ignore_errors=True)
        for file in (tmp_path / "table").glob("*.parquet"):
            file.unlink()
        path = tmp_path / "table" / "part-0.parquet"
        path.parent.mkdir(exist_ok=True)
        table = pa.table({"k": pa.array(keys, pa.int64())})
        pq.write_table(table, path, use_dictionary=False, compression="none")
        os.utime(path, (1e9, 1e9))
        convert_to_deltalake(str(path.parent))

    make([1, 2, 4])
    load(pa.table({"k": [1]}), tmp_path / "table", key=["k"], index=index)
    make(values)
    receipt = load(pa.table({"k": [2, values[1]]}), tmp_path / "table", key=["k"], index=index)
    assert (receipt.inserted, receipt.found) == (1, 1)
    assert sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["k"].to_pylist()) == sorted([*values, 2])


def test_folders_of_ports_are_apart(place: Place, tmp_path: Path) -> None:
    """A call refuses one folder for two purposes, by any of its names, before it writes."""
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for ports, setting in (
        ({"duplicates": tmp_path / "out", "errors": tmp_path / "x" / ".." / "out"}, "errors"),
        ({"duplicates": tmp_path / "out", "errors": tmp_path / "link" / "out" / "in"}, "errors"),
        ({"errors": tmp_path / "link" / "table"}, "errors"),
        ({"duplicates": place.root / "twice"}, "duplicates"),
        ({"duplicates": tmp_path}, "duplicates"),
    ):
        with pytest.raises(SettingError, match=r"; write a") as error:
            load(arrow([(1, "a", 0)]), place.root, key=["k"], table_format=place.format, **ports)  # type: ignore[arg-type]
        assert error.value.setting == setting
    assert not place.root.exists()
    link = tmp_path / "link" / "table"
    load(arrow([(1, "a", 0)]), link, key=["k"], table_format=place.format)
    assert place.root.is_dir()


@pytest.mark.parametrize("by", [[], ["p"]])
@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_new_files_end_at_the_target(table_format: str, by: list[str], tmp_path: Path) -> None:
    """Those of the table and of its ports; the index has the keys of each."""
    rows = 200_000
    batch = pa.table({"k": range(rows), "p": [key % 2 for key in range(rows)]})
    some = {"key": ["k"], "partition_by": by, "table_format": table_format, "duplicates": tmp_path / "duplicates"}
    first, again = (load(batch, tmp_path / "table", target_file_bytes=200_000, **some) for _ in range(2))
    assert first.files > 2
    assert (again.inserted, again.found, again.read_files) == (0, rows, 0)
    duplicates = [*(tmp_path / "duplicates").glob("*.parquet")]
    assert len(duplicates) > 2
    assert sum(pq.read_metadata(file).num_rows for file in duplicates) == rows


def test_the_keys_of_a_load_enter_the_index_in_steps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has so many keys, of one partition or of several; none is missing, and no file is read for them."""
    monkeypatch.setattr(indexing, "_PIECE_ROWS", 8)
    monkeypatch.setattr(indexing, "key_steps", None)
    place.load([(key, "a", key % 3 // 2) for key in range(45)])
    state = FORM.read(place.root / PRIVATE / "index/state")
    assert state is not None
    assert [piece.entries for piece in state.pieces] == [8] * 5 + [5]
    assert place.load([(key, "b", key % 3 // 2) for key in range(50)]).inserted == 5
    assert verify(place.config()).is_sound
