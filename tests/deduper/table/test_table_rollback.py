"""Rollbacks: table and index return to an older version, whatever dies; what was rolled back loads again."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deduper.config.problems import ConfigError
from deduper.table.errors import TableChangedError, TableHeldError, UnsupportedTableError, VersionGoneError
from deduper.table.formats.delta import DeltaFiles
from deduper.table.formats.protocol import PRIVATE
from deduper.table.operations.changes import load
from deduper.table.operations.questions import filter_exists, tag
from deduper.table.operations.rollback import RollbackReceipt, plan_rollback, rollback
from deduper.table.operations.upkeep import table_status
from deduper.table.operations.verify import verify
from deduper.table.operations.write import locked
from deduper.table.settings import load_config
from tests.deduper.table.scene import ROLLBACK_STEPS, Place, Row, arrow, dying, foreign
from tests.tiers import is_night

pytestmark = pytest.mark.slow
Unit = tuple[int, int]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty place for a Delta table."""
    return Place(tmp_path, "delta")


def back(place: Place, version: int) -> RollbackReceipt:
    """A rollback. The files of the source need not be there."""
    return rollback(place.config(), version)


def test_versions_come_back_and_their_rows_load_again(place: Place) -> None:
    """A load, an upsert and a delete are undone; the same batches are new again; a rollback can be rolled back."""
    one: list[Row] = [(1, "a", 0), (2, "a", 0), (3, "a", 1)]
    assert place.upsert(one).version == 0
    assert place.upsert([(2, "b", 0), (4, "b", 1)]).version == 1
    assert place.delete([(1, "", 0), (3, "", 1)]).version == 2
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
    again = place.upsert([(2, "b", 0), (4, "b", 1)])
    assert (again.inserted, again.updated, again.version) == (1, 1, 6)
    back(place, 1)
    assert sorted(place.rows()) == [(1, "a", 0), (2, "b", 0), (3, "a", 1), (4, "b", 1)]
    assert verify(place.config()).is_sound
    assert place.leftovers() == []


def test_a_bad_load_is_taken_back(place: Place) -> None:
    """Its rows go, and the same batch brings them again; so at once, and after later loads."""
    place.load([(1, "a", 0)])
    bad: list[Row] = [(1, "bad", 0), (2, "bad", 0), (3, "bad", 1)]
    place.load(bad)
    place.load([(9, "later", 0)])
    assert back(place, 0).removed_files == 3
    assert place.held() == [(1, 0)]
    assert filter_exists(arrow(bad), place.config()).to_pylist() == [False, True, True]
    receipt = place.load(bad)
    assert (receipt.inserted, receipt.found, receipt.read_files) == (2, 1, 0)
    assert place.held() == [(1, 0), (2, 0), (3, 1)]
    assert verify(place.config()).is_sound


def test_a_plan_writes_nothing(place: Place) -> None:
    """It says what the rollback does; the present version needs none, and no commit is made."""
    place.upsert([(1, "a", 0), (2, "a", 0)])
    place.upsert([(2, "b", 0), (3, "b", 1)])
    before = {path: path.stat().st_mtime_ns for path in place.root.rglob("*")}
    plan = plan_rollback(place.config(), 0)
    assert {path: path.stat().st_mtime_ns for path in place.root.rglob("*")} == before
    receipt = back(place, 0)
    counts = ("removed_files", "removed_rows", "removed_bytes", "restored_files", "restored_rows", "restored_bytes")
    assert [getattr(plan, name) for name in counts] == [getattr(receipt, name) for name in counts]
    assert (plan.version, plan.is_needed, receipt.version, receipt.is_needed) == (1, True, 2, True)
    again = back(place, 0)
    assert (again.version, again.is_needed) == (2, False)
    assert not plan_rollback(place.config(), 2).is_needed


@pytest.mark.night(but=["table.1.locked", "table.5.committed", "index.state"])
@pytest.mark.parametrize("step", ROLLBACK_STEPS)
def test_a_death_at_each_step_of_a_rollback(step: str, place: Place) -> None:
    """The table is of one version or the other, and so is what the next write finds; nothing has to be completed."""
    old: list[Row] = [(1, "a", 0), (2, "a", 0), (3, "a", 1)]
    place.upsert(old)
    place.upsert([(2, "b", 0), (3, "b", 1), (4, "b", 1)])
    new = sorted(place.rows())
    shutil.rmtree(place.root / PRIVATE / "index")  # so that the index is written
    with dying(step) as died:
        back(place, 0)
    assert died
    is_done = step != "table.1.locked"
    assert sorted(place.rows()) == (old if is_done else new)
    present = tag(arrow([(1, "", 0), (2, "", 0), (3, "", 1)]), place.config())["action"].to_pylist()
    assert present == ["update"] * 3
    receipt = place.upsert([])
    assert sorted(place.rows()) == (old if is_done else new)
    assert receipt.completed == 0
    assert place.leftovers() == []
    done = back(place, 0)
    assert (done.is_needed, sorted(place.rows())) == (not is_done, old)
    assert done.version == 2
    assert place.upsert([(2, "b", 0), (3, "b", 1), (4, "b", 1)]).inserted == 1
    assert sorted(place.rows()) == new
    assert verify(place.config()).is_sound


@pytest.mark.night(but=["1"])
@pytest.mark.parametrize("seed", range(8))
def test_random_histories_against_dictionaries(seed: int, place: Place) -> None:
    """Loads, upserts, deletes, rollbacks, deaths, lost indexes: each version is the rows of its dictionary."""
    rng = random.Random(seed)
    versions: dict[int, dict[Unit, str]] = {}
    held: dict[Unit, str] = {}
    done: Counter[str] = Counter()
    for step in range(30 if is_night() else 12):
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
                place.upsert([])
            found = place.rows()
            assert len(found) == len({(k, d) for k, _, d in found}), f"seed {seed}, step {step}"
            as_found = {(k, d): value for k, value, d in found}
            assert as_found in ((held, new) if died else (new,)), f"seed {seed}, step {step}"
            assert place.leftovers() == [], f"seed {seed}, step {step}"
            held = as_found
            if place.root.exists():
                version = table_status(place.config()).version
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
    """A write of a kind."""
    if kind == "rollback":
        back(place, version)
    elif kind == "load":
        options: dict[str, Any] = {"key": ["k"], "partition_by": ["d"], "table_format": place.format}
        load(arrow(rows), place.root, **options)
    else:
        getattr(place, kind)(rows)


def test_a_folder_table_has_one_version(tmp_path: Path) -> None:
    """A rollback of it is a mistake in the configuration, with its place."""
    place = Place(tmp_path, "parquet")
    place.load([(1, "a", 0)])
    for ask in (plan_rollback, rollback):
        with pytest.raises(
            ConfigError, match=r"place.yaml:2:\d+: table.format: a folder of Parquet files has no versions"
        ):
            ask(place.config(), 0)
    assert place.held() == [(1, 0)]


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
    place.upsert(rows)
    assert place.delete(rows).version == 1
    assert place.rows() == []
    assert back(place, 0).restored_rows == 2
    assert place.load(rows).found == 2
    assert back(place, 1).removed_rows == 2
    assert place.rows() == []


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
    assert place.load([(1, "a", 0), (2, "a", 0)]).inserted == 1


def test_odd_names_of_partitions(place: Place) -> None:
    """Folders of texts that are escaped come and go as all others."""
    texts = ["a b/c ü%=", "x", "50%", "d'e"]
    options: dict[str, Any] = {"key": ["k"], "partition_by": ["p"], "table_format": place.format}
    first = pa.table({"k": [1, 2, 3, 4], "p": texts})
    load(first, place.root, **options)
    load(pa.table({"k": [5, 6, 7, 8], "p": texts}), place.root, **options)
    file = place.root.parent / "odd.yaml"
    file.write_text(f"source: {{path: in}}\ntable: {{path: table, format: {place.format}}}\nkey: k\npartition_by: p\n")
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


def test_a_version_in_which_the_table_must_not_be_changed(tmp_path: Path) -> None:
    """A rollback to it could not be rolled back, so nothing is written."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    for name in ("delta.appendOnly", "delta.enableChangeDataFeed"):
        for value in ("true", "false"):
            DeltaTable(str(place.root)).alter.set_table_properties({name: value})
    place.load([(2, "a", 0)])
    for version, name in ((1, "appendOnly"), (3, "enableChangeDataFeed")):
        for ask in (plan_rollback, rollback):
            with pytest.raises(UnsupportedTableError, match=f"in version {version} .*{name}.* choose another version"):
                ask(place.config(), version)
    assert table_status(place.config()).version == 5
    assert back(place, 4).version == 6


def test_a_version_without_a_column_of_the_key(tmp_path: Path) -> None:
    """The plan says so with its place, and nothing is written: the index could not follow."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    wider = arrow([(2, "a", 0)]).append_column("more", pa.array([7], pa.int64()))
    write_deltalake(str(place.root), wider, mode="append", partition_by=["d"], schema_mode="merge")
    file = tmp_path / "wider.yaml"
    file.write_text("source: {path: in}\ntable: {path: table, format: delta}\nkey: [k, more]\npartition_by: d\n")
    for ask in (plan_rollback, rollback):
        with pytest.raises(ConfigError, match=r"wider.yaml:3:\d+: key: in version 0 there is no column `more`"):
            ask(load_config(file), 0)
    assert table_status(load_config(file)).version == 1


def test_another_writer_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollback fails and says so: the other's commit stays, and nothing of ours."""
    place = Place(tmp_path, "delta")
    place.load([(1, "a", 0)])
    place.load([(2, "a", 0)])
    at = DeltaFiles._at

    def late(table: DeltaFiles, version: int) -> DeltaTable:
        found = at(table, version)
        if version == 1 and armed:
            armed.pop()
            foreign(place, 9, 0)
        return found

    real, armed = DeltaFiles.restore, []

    def restored(*given: Any) -> None:
        armed.append(True)
        real(*given)

    monkeypatch.setattr(DeltaFiles, "_at", late)
    monkeypatch.setattr(DeltaFiles, "restore", restored)
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
