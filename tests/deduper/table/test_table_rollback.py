"""Rollbacks: table and index return to an older version, whatever dies; what was rolled back loads again."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from bucket_store import failpoints
from bucket_store.wire import decode, encode
from deduper.table.change.rollback import RollbackReceipt, plan_rollback, rollback
from deduper.table.errors import TableChangedError, TableHeldError, UnsupportedTableError, VersionGoneError
from deduper.table.formats.protocol import PRIVATE, Commit, RemovedFile
from deduper.table.formats.versions import VersionRecord, difference
from deduper.table.load import load
from deduper.table.query.filter import filter_exists
from deduper.table.query.tag import tag
from deduper.table.settings import load_config
from deduper.table.upkeep.status import table_status
from deduper.table.upkeep.verify import verify
from deduper.table.write.lock import locked
from tests.deduper.table.scene import ROLLBACK_STEPS, Place, Row, arrow, dying, foreign

pytestmark = pytest.mark.slow
KEEP = "keep_versions: 50\n"
Unit = tuple[int, int]


def back(place: Place, version: int, more: str = KEEP) -> RollbackReceipt:
    """A rollback. Without an index, a plain table has the types of partitions from the source."""
    source = place.root.parent / "in"
    source.mkdir(exist_ok=True)
    pq.write_table(arrow([(1, "", 0)]), source / "a.parquet")
    return rollback(place.config(more), version)


def kept(place: Place) -> list[str]:
    """The removed files that are kept, by their paths in the table."""
    folder = place.root / PRIVATE / "removed"
    return sorted(path.relative_to(folder).as_posix().removesuffix(".removed") for path in folder.rglob("*.removed"))


def test_versions_come_back_and_their_rows_load_again(place: Place) -> None:
    """A load, an upsert and a delete are undone; the same batches are new again; a rollback can be rolled back."""
    one: list[Row] = [(1, "a", 0), (2, "a", 0), (3, "a", 1)]
    assert place.upsert(one, KEEP).version == 0
    assert place.upsert([(2, "b", 0), (4, "b", 1)], KEEP).version == 1
    assert place.delete([(1, "", 0), (3, "", 1)], KEEP).version == 2
    after = sorted(place.rows())
    assert after == [(2, "b", 0), (4, "b", 1)]
    receipt = back(place, 0)
    assert (receipt.version, receipt.to, receipt.removed_rows, receipt.restored_rows) == (3, 0, 2, 3)
    assert sorted(place.rows()) == one
    assert tag(arrow([(1, "", 0), (4, "", 1)]), place.config())["action"].to_pylist() == ["update", "insert"]
    assert verify(place.config()).is_sound
    assert back(place, 2).version == 4
    assert sorted(place.rows()) == after
    assert back(place, 3).version == 5
    again = place.upsert([(2, "b", 0), (4, "b", 1)], KEEP)
    assert (again.inserted, again.updated, again.version) == (1, 1, 6)
    back(place, 1)
    assert sorted(place.rows()) == [(1, "a", 0), (2, "b", 0), (3, "a", 1), (4, "b", 1)]
    assert verify(place.config()).is_sound
    assert place.leftovers() == []


def test_a_bad_load_is_taken_back(place: Place) -> None:
    """Without any setting: its rows go, and the same batch brings them again; so at once, and after later loads."""
    place.load([(1, "a", 0)])
    bad: list[Row] = [(1, "bad", 0), (2, "bad", 0), (3, "bad", 1)]
    place.load(bad)
    place.load([(9, "later", 0)])
    assert back(place, 0, "").removed_files == 3
    assert place.held() == [(1, 0)]
    assert filter_exists(arrow(bad), place.config()).to_pylist() == [False, True, True]
    receipt = place.load(bad)
    assert (receipt.new, receipt.found, receipt.read_files) == (2, 1, 0)
    assert place.held() == [(1, 0), (2, 0), (3, 1)]
    assert verify(place.config()).is_sound


def test_a_plan_writes_nothing(place: Place) -> None:
    """It says what the rollback does; the present version needs none, and no commit is made."""
    place.upsert([(1, "a", 0), (2, "a", 0)], KEEP)
    place.upsert([(2, "b", 0), (3, "b", 1)], KEEP)
    before = {path: path.stat().st_mtime_ns for path in place.root.rglob("*")}
    plan = plan_rollback(place.config(KEEP), 0)
    assert {path: path.stat().st_mtime_ns for path in place.root.rglob("*")} == before
    receipt = back(place, 0)
    counts = ("removed_files", "removed_rows", "removed_bytes", "restored_files", "restored_rows", "restored_bytes")
    assert [getattr(plan, name) for name in counts] == [getattr(receipt, name) for name in counts]
    assert (plan.version, plan.is_needed, receipt.version, receipt.is_needed) == (1, True, 2, True)
    again = back(place, 0)
    assert (again.version, again.is_needed) == (2, False)
    assert not plan_rollback(place.config(KEEP), 2).is_needed


@pytest.mark.night(
    but=[
        *("delta-table.4.planned", "delta-table.5.committed", "delta-index.state"),
        *("parquet-table.4.planned", "parquet-table.5.recorded", "parquet-table.returned", "parquet-table.removed"),
    ]
)
@pytest.mark.parametrize("step", ROLLBACK_STEPS)
def test_a_death_at_each_step_of_a_rollback(step: str, place: Place) -> None:
    """The table is of one version or the other, questions see each key of both, and the next write completes it."""
    old: list[Row] = [(1, "a", 0), (2, "a", 0), (3, "a", 1)]
    place.upsert(old, KEEP)
    place.upsert([(2, "b", 0), (3, "b", 1), (4, "b", 1)], KEEP)
    new = sorted(place.rows())
    shutil.rmtree(place.root / PRIVATE / "index")  # so that the index is written
    with dying(step) as died:
        back(place, 0)
    of_other_format = {
        "delta": {"table.5.recorded", "table.returned", "table.removed"},
        "parquet": {"table.5.placed", "table.5.committed"},
    }
    assert bool(died) == (step not in of_other_format[place.format])
    seen = {(k, d) for k, _, d in place.rows()}
    assert {(1, 0), (2, 0), (3, 1)} <= seen
    if place.format == "delta":
        assert sorted(place.rows()) in (old, new)
    present = tag(arrow([(1, "", 0), (2, "", 0), (3, "", 1)]), place.config())["action"].to_pylist()
    assert present == ["update"] * 3
    receipt = place.upsert([], KEEP)
    assert sorted(place.rows()) in (old, new)
    is_done = sorted(place.rows()) == old
    assert receipt.completed == (bool(died) and is_done)
    assert place.leftovers() == []
    done = back(place, 0)
    assert (done.is_needed, sorted(place.rows())) == (not is_done, old)
    assert done.version == 2
    assert place.upsert([(2, "b", 0), (3, "b", 1), (4, "b", 1)], KEEP).inserted == 1
    assert sorted(place.rows()) == new
    assert verify(place.config()).is_sound


@pytest.mark.night(but=["parquet-1"])
@pytest.mark.parametrize("seed", range(8))
def test_random_histories_against_dictionaries(seed: int, place: Place) -> None:
    """Loads, upserts, deletes, rollbacks, deaths, lost indexes: each version is the rows of its dictionary."""
    rng = random.Random(seed)
    versions: dict[int, dict[Unit, str]] = {}
    held: dict[Unit, str] = {}
    done: Counter[str] = Counter()
    for step in range(30):
        rows: list[Row] = [(rng.randrange(20), f"v{step}.{n}", rng.randrange(3)) for n in range(rng.randrange(1, 9))]
        kind = rng.choice(("load", "upsert", "delete", "rollback", "rollback")) if versions else "load"
        target = rng.choice(sorted(versions)) if versions else 0
        new = dict(versions[target]) if kind == "rollback" else changed(kind, held, rows)
        if rng.random() < 0.1:
            shutil.rmtree(place.root / PRIVATE / "index", ignore_errors=True)
        for is_last in (False, True):
            with dying(rng.choice(ROLLBACK_STEPS) if not is_last and versions else "none", rng.randint(1, 2)) as died:
                write(place, kind, rows, target)
            done[kind] += 1
            done["deaths"] += len(died)
            if died:
                place.upsert([], KEEP)
            found = place.rows()
            assert len(found) == len({(k, d) for k, _, d in found}), f"seed {seed}, step {step}"
            as_found = {(k, d): value for k, value, d in found}
            assert as_found in ((held, new) if died else (new,)), f"seed {seed}, step {step}"
            assert place.leftovers() == [], f"seed {seed}, step {step}"
            held = as_found
            if place.root.exists():
                version = table_status(place.config(KEEP)).version
                if version >= 0:
                    assert versions.setdefault(version, held) == held, f"seed {seed}, step {step}"
            if found:
                assert verify(place.config()).is_sound, f"seed {seed}, step {step}"
    assert min(done["rollback"], done["deaths"], done["delete"]) > 1


def changed(kind: str, held: dict[Unit, str], rows: list[Row]) -> dict[Unit, str]:
    """The rows after a write; of rows with one key the first counts."""
    first: dict[Unit, str] = {}
    for key, value, day in rows:
        assert key is not None
        assert day is not None
        first.setdefault((key, day), value)
    if kind == "delete":
        return {unit: value for unit, value in held.items() if unit not in first}
    return first | held if kind == "load" else held | first


def write(place: Place, kind: str, rows: list[Row], version: int) -> None:
    """A write that keeps versions."""
    if kind == "rollback":
        back(place, version)
    elif kind == "load":
        options: dict[str, Any] = {"key": ["k"], "partition_by": ["d"], "table_format": place.format}
        load(arrow(rows), place.root, keep_versions=50, **options)
    else:
        getattr(place, kind)(rows, KEEP)


def test_versions_that_are_not_there(place: Place) -> None:
    """Newer than the present one, or without a table."""
    with pytest.raises(VersionGoneError, match="there is no table yet, and no version"):
        back(place, 0)
    place.load([(1, "a", 0)])
    with pytest.raises(VersionGoneError, match="no version 7; the present one is 0"):
        back(place, 7)
    assert place.leftovers() == []


def test_an_emptied_table_comes_back(place: Place) -> None:
    """A version without rows is one as others; the batch of the first load is found again after it."""
    rows: list[Row] = [(1, "a", 0), (2, "a", 1)]
    place.upsert(rows, KEEP)
    assert place.delete(rows, KEEP).version == 1
    assert place.rows() == []
    assert back(place, 0).restored_rows == 2
    assert place.load(rows).found == 2
    assert back(place, 1).removed_rows == 2
    assert place.rows() == []


def test_removed_files_are_kept_as_long_as_the_setting_says(tmp_path: Path) -> None:
    """By default an upsert removes them; then only later versions can come back."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0), (2, "a", 0)])
    for turn in range(3):
        place.upsert([(1, f"b{turn}", 0)], "keep_versions: 2\n")
    assert len(kept(place)) == 2
    with pytest.raises(VersionGoneError, match=r"not kept any more .*choose a later version"):
        back(place, 0, "keep_versions: 2\n")
    assert back(place, 1, "keep_versions: 2\n").version == 4
    assert sorted(place.rows()) == [(1, "b0", 0), (2, "a", 0)]
    place.upsert([(1, "c", 0)])
    assert kept(place) == []
    assert not (place.root / PRIVATE / "removed").exists()
    with pytest.raises(VersionGoneError, match="not kept any more"):
        back(place, 4)
    place.load([(5, "d", 0)])
    assert back(place, 5).removed_rows == 1
    assert sorted(place.rows()) == [(1, "c", 0), (2, "a", 0)]


def test_old_records_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many versions the newest can come back; the error names the oldest of them."""
    monkeypatch.setattr("deduper.table.formats.versions._MOST_RECORDS", 3)
    place = Place(tmp_path, "parquet")
    for key in range(6):
        place.load([(key, "a", 0)])
    with pytest.raises(VersionGoneError, match="after version 1 is not recorded any more; choose 2 or later"):
        back(place, 1, "")
    assert back(place, 2, "").removed_files == 3
    assert place.held() == [(0, 0), (1, 0), (2, 0)]


def test_files_of_others_in_a_plain_table(tmp_path: Path) -> None:
    """They stay; one of ours that another writer has removed or changed stops the rollback."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    place.load([(2, "a", 0), (3, "a", 1)])
    foreign(place, 7, 1)
    assert back(place, 0, "").removed_files == 2
    assert place.held() == [(1, 0), (7, 1)]
    place.load([(2, "a", 0), (3, "a", 1)])
    next(place.root.glob("d=1970-01-02/part-*")).unlink()
    with pytest.raises(VersionGoneError, match="another writer has changed or removed it"):
        back(place, 2, "")
    assert place.held() == [(1, 0), (2, 0), (7, 1)]


def test_a_plain_table_of_others_begins_with_version_0(tmp_path: Path) -> None:
    """Its files stay in each version."""
    place = Place(tmp_path, "parquet")
    foreign(place, 1, 0)
    assert place.upsert([(1, "b", 0), (2, "b", 0)], KEEP).version == 1
    back(place, 0)
    assert place.rows() == [(1, "foreign", 0)]


def test_a_plain_table_whose_number_is_taken(tmp_path: Path) -> None:
    """A writer on another machine has made the same version: the next number is taken, and both are undone."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    with dying("table.4.planned"):
        place.load([(2, "a", 0)])
    staging = place.root / PRIVATE / "staging"
    staging.rename(place.root / PRIVATE / "aside")
    place.load([(3, "a", 0)])
    staging.rmdir()
    (place.root / PRIVATE / "aside").rename(staging)
    assert place.load([]).version == 2
    assert place.held() == [(1, 0), (2, 0), (3, 0)]
    back(place, 0, "")
    assert place.held() == [(1, 0)]


def test_a_version_that_vacuum_has_emptied(tmp_path: Path) -> None:
    """Nothing is written; the file is named."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0), (2, "a", 0)])
    (old,) = place.files()
    place.upsert([(1, "b", 0)])
    DeltaTable(str(place.root)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    version = DeltaTable(str(place.root)).version()
    with pytest.raises(VersionGoneError, match=old):
        back(place, 0)
    assert DeltaTable(str(place.root)).version() == version


def test_a_log_that_was_cleaned_up(tmp_path: Path) -> None:
    """Its older versions cannot be read any more."""
    place = Place(tmp_path, "delta")
    for key in range(4):
        place.load([(key, "a", 0)])
    DeltaTable(str(place.root)).create_checkpoint()
    for number in range(3):
        (place.root / f"_delta_log/{number:020d}.json").unlink()
    with pytest.raises(VersionGoneError, match="version 1 cannot be read any more"):
        back(place, 1)


def test_a_file_of_the_present_version_is_gone(tmp_path: Path) -> None:
    """A reason to go back: its rows are not counted."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    old = set(place.files())
    place.load([(2, "a", 0)])
    (new,) = set(place.files()) - old
    (place.root / new).unlink()
    receipt = back(place, 0)
    assert (receipt.removed_files, receipt.removed_rows) == (1, None)
    assert place.held() == [(1, 0)]


def test_columns_that_another_writer_added(tmp_path: Path) -> None:
    """The older schema counts again, also if no file has the column yet."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    wider = arrow([]).append_column("more", pa.array([], pa.int64()))
    write_deltalake(str(place.root), wider, mode="append", partition_by=["d"], schema_mode="merge")
    assert "more" in pa.schema(DeltaTable(str(place.root)).schema()).names
    assert back(place, 0).is_needed
    assert pa.schema(DeltaTable(str(place.root)).schema()).names == ["k", "v", "d"]
    assert place.load([(1, "a", 0), (2, "a", 0)]).new == 1


def test_odd_names_of_partitions(place: Place) -> None:
    """Folders of texts that are escaped come and go as all others."""
    texts = ["a b/c ü%=", "x", "50%", "d'e"]
    options: dict[str, Any] = {"key": ["k"], "partition_by": ["p"], "table_format": place.format, "keep_versions": 9}
    first = pa.table({"k": [1, 2, 3, 4], "p": texts})
    load(first, place.root, **options)
    load(pa.table({"k": [5, 6, 7, 8], "p": texts}), place.root, **options)
    file = place.root.parent / "odd.yaml"
    file.write_text(
        f"source: {{path: in}}\ntable: {{path: table, format: {place.format}}}\nkey: k\npartition_by: p\n{KEEP}"
    )
    config = load_config(file)
    assert (rollback(config, 0).removed_files, verify(config).rows) == (4, 4)
    assert (rollback(config, 1).restored_files, verify(config).rows) == (4, 8)
    assert verify(config).is_sound


def test_tables_that_must_not_be_changed(tmp_path: Path) -> None:
    """Nothing is written."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    place.load([(2, "a", 0)])
    DeltaTable(str(place.root)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedTableError, match="appendOnly"):
        back(place, 0)
    assert place.held() == [(1, 0), (2, 0)]


def test_another_writer_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollback fails and says so: the other's commit stays, and nothing of ours."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    place.load([(2, "a", 0)])
    monkeypatch.setattr(failpoints, "hit", lambda name: foreign(place, 9, 0) if name == "table.4.planned" else None)
    with pytest.raises(TableChangedError, match="look at the plan again"):
        back(place, 0)
    monkeypatch.undo()
    assert place.held() == [(1, 0), (2, 0), (9, 0)]
    assert place.leftovers() == []
    assert place.load([(2, "b", 0), (9, "b", 0)]).found == 2


def test_two_writers_of_one_machine(place: Place) -> None:
    """A rollback waits for a load, and fails if it has to wait for too long; in any order each row is there once."""
    place.load([(1, "a", 0)])
    place.load([(2, "a", 0)])
    with locked(place.root, 1), pytest.raises(TableHeldError):
        rollback(place.config(), 0, lock_timeout_s=0.1)
    runs: list[Callable[[], Any]] = [lambda: back(place, 0), lambda: place.load([(2, "b", 0)])]
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.held() in ([(1, 0)], [(1, 0), (2, 0)])
    place.load([(2, "c", 0)])
    assert place.held() == [(1, 0), (2, 0)]


def test_a_file_that_was_changed_and_kept_its_size(tmp_path: Path) -> None:
    """A rollback removes no file that another writer has changed in place, whatever its size is."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    place.load([(2, "a", 0)])
    file = next(place.root / path for path in place.files() if pq.read_table(place.root / path)["k"].to_pylist() == [2])
    was = file.read_bytes()
    file.write_bytes(was.replace(b"\x01\0\0\0a", b"\x01\0\0\0b"))
    assert sorted(row[1] for row in place.rows()) == ["a", "b"]
    assert file.stat().st_size == len(was)
    for version in (0, 1):
        if version:
            assert not plan_rollback(place.config(KEEP), version).is_needed
        else:
            with pytest.raises(VersionGoneError, match="another writer has changed or removed it"):
                plan_rollback(place.config(KEEP), version)


def test_plans_and_records_have_their_bytes() -> None:
    """Plans of loads and changes are as before; a rollback's has two fields more; a record is an array of three."""
    removed = RemovedFile("d=1/b.parquet", 7, 5, ())
    commit = Commit(load="1", after=3, schema=b"", partition_by=(), files=(), removed=(removed,))
    assert msgpack.unpackb(encode(commit)) == ["1", 3, b"", [], [], [["d=1/b.parquet", 7, 5, [], None]]]
    back_to = Commit(load="1", after=3, schema=b"", partition_by=(), files=(), restored=(removed,), to=0)
    assert msgpack.unpackb(encode(back_to))[5:] == [[], [["d=1/b.parquet", 7, 5, [], None]], 0]
    assert decode(Commit, encode(back_to)) == back_to
    assert not back_to.is_empty
    record = VersionRecord("1", (("a", 1, 4),), (("b", 2, 3),))
    assert msgpack.unpackb(encode(record)) == ["1", [["a", 1, 4]], [["b", 2, 3]]]
    assert decode(VersionRecord, encode(record)) == record


@pytest.mark.parametrize("seed", range(20))
def test_the_difference_of_random_versions(seed: int) -> None:
    """Undoing records gives the files of each older version, with any rollbacks in between."""
    rng = random.Random(seed)
    versions = [{"f0"}]
    records: list[VersionRecord] = []
    for number in range(1, 25):
        now = versions[-1]
        if rng.random() < 0.3:
            then = rng.choice(versions)
        else:
            then = {path for path in now if rng.random() < 0.7} | {f"f{number}.{n}" for n in range(rng.randrange(3))}
        added = tuple((path, 1, 1) for path in sorted(then - now))
        records.append(VersionRecord(str(number), added, tuple((path, 1, 1) for path in sorted(now - then))))
        versions.append(set(then))
    for target in range(len(versions)):
        going, returning = difference(reversed(records[target:]))
        assert (versions[-1] - set(going)) | set(returning) == versions[target], f"seed {seed}, version {target}"
        assert set(going) <= versions[-1]
        assert not set(returning) & versions[-1]
