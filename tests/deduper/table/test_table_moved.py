"""Folders that are moved or copied while a write is not complete: each of its rows is there after the next write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bucket_store.filesystem import LocalFileSystem
from deduper.errors import ExitCode
from deduper.table.errors import StagedFileGoneError
from deduper.table.formats.files import staged_loads, staging_folder
from deduper.table.formats.protocol import PRIVATE
from deduper.table.operations.verify import verify
from tests.deduper.small_service import armed
from tests.deduper.table.scene import Place, Row, dying

pytestmark = pytest.mark.slow
OLD: list[Row] = [(key, "old", key % 2) for key in range(6)]
NEW: list[Row] = [(key, "new", key % 2) for key in range(4, 9)]
OTHERS: list[Row] = [(4, "again", 0), (None, "error", 0)]
AFTER = sorted([(key, "new" if key >= 4 else "old", key % 2) for key in range(9)] + [(50, "later", 0)])


def dead_upsert(place: Place, step: str) -> str:
    """The name of an upsert of `NEW`, with a duplicate and an error, that dies at a step."""
    place.load(OLD)
    with dying(step) as died:
        place.upsert([*NEW, *OTHERS])
    assert died
    (load,) = staged_loads(place.root)
    return load


def require_completed(place: Place) -> None:
    """The next write completes the upsert, and nothing of it is left."""
    assert place.load([(50, "later", 0)]).completed == 1
    assert sorted(place.rows()) == AFTER
    assert [key for key, _, _ in place.port("duplicates")] == [4]
    assert [key for key, _, _ in place.port("errors")] == [None]
    assert place.leftovers() == []
    assert verify(place.config()).is_sound


def step_of(place: Place) -> str:
    """The first step at which a write is committed."""
    return "table.5.committed" if place.format == "delta" else "table.4.planned"


def test_a_table_is_moved_with_its_ports(place: Place, tmp_path: Path) -> None:
    """The plan names no absolute path, so it holds wherever the folder is."""
    home = Place(tmp_path / "one", place.format)
    load = dead_upsert(home, step_of(place))
    plan = (staging_folder(home.root, load) / "plan").read_bytes()
    assert os.fsencode(tmp_path) not in plan
    home.root.parent.rename(tmp_path / "two")
    require_completed(Place(tmp_path / "two", place.format))


@pytest.mark.night(but=["parquet-False-table.4.planned", "parquet-True-table.6.port", "delta-True-table.5.committed"])
@pytest.mark.parametrize("step", ["table.4.planned", "table.placed", "table.5.committed", "table.6.port"])
@pytest.mark.parametrize("times", [True, False])
def test_a_table_is_copied(tmp_path: Path, place: Place, step: str, times: bool) -> None:
    """Copy and original complete the same write, each with its own files, and neither touches the other's."""
    if place.format == "parquet" and step == "table.5.committed":
        step = "table.removed"
    one, two = Place(tmp_path / "one", place.format), Place(tmp_path / "two", place.format)
    dead_upsert(one, step)
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copy2 if times else shutil.copy)
    is_committed = place.format == "parquet" or step in ("table.5.committed", "table.6.port")
    for home in (two, one):
        if is_committed:
            require_completed(home)
        else:
            home.load([])
            assert sorted(home.rows()) == sorted(OLD)
            assert home.leftovers() == []


def test_a_table_is_moved_without_its_ports(tmp_path: Path, place: Place) -> None:
    """The ports of the settings have the staged rows."""
    home = Place(tmp_path, place.format)
    dead_upsert(home, step_of(place))
    (tmp_path / "far/away").mkdir(parents=True)
    home.root.rename(tmp_path / "far/away/table")
    home.root = tmp_path / "far/away/table"
    moved = Place(tmp_path / "far/away", place.format)
    moved.ports = home.ports
    assert moved.load([(50, "later", 0)]).completed == 1
    assert sorted(moved.rows()) == AFTER
    assert [len(home.port(name)) for name in home.ports] == [1, 1]
    assert home.leftovers() == moved.leftovers() == []


@pytest.mark.parametrize("step", ["table.3.staged", "table.4.planned", "table.5.committed"])
def test_a_table_is_copied_while_it_is_written(tmp_path: Path, place: Place, step: str) -> None:
    """The copy names the same ports, and leaves the rows there that the running write has staged."""
    if place.format == "parquet" and step == "table.5.committed":
        step = "table.removed"
    home, copy = Place(tmp_path, place.format), Place(tmp_path / "copy", place.format)
    home.load(OLD)

    def copied() -> None:
        (tmp_path / "copy").mkdir()
        shutil.copytree(home.root, tmp_path / "table-copy")
        (tmp_path / "table-copy").rename(copy.root)
        copy.ports = home.ports
        copy.load([(50, "later", 0)])

    with armed(step, 1, copied):
        home.upsert([*NEW, *OTHERS])
    for name, keys in (("duplicates", [4]), ("errors", [None])):
        assert [key for key, _, _ in home.port(name)] == keys
    home.load([(50, "later", 0)])
    assert sorted(home.rows()) == AFTER
    assert home.leftovers() == []


def test_a_table_behind_a_link(tmp_path: Path, place: Place) -> None:
    """A link to the table, or to all folders, changes nothing for a write that died beside it."""
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/deep", target_is_directory=True)
    dead_upsert(Place(tmp_path / "link/one", place.format), step_of(place))
    (tmp_path / "disk").rename(tmp_path / "other")
    (tmp_path / "link").unlink()
    require_completed(Place(tmp_path / "other/deep/one", place.format))


@pytest.mark.parametrize("lost", ["table", "duplicates"])
def test_a_staged_file_is_lost(tmp_path: Path, place: Place, lost: str) -> None:
    """The next write stops before it writes, each time, until the file is back; no version is made meanwhile."""
    if place.format == "delta" and lost == "table":
        pytest.skip("files have their places before the commit")
    load = dead_upsert(place, step_of(place))
    folder = staging_folder(place.root, load) / "rows" if lost == "table" else place.ports[lost] / "_staging" / load
    kept = shutil.move(folder, tmp_path / "kept")
    before = {path: path.stat().st_mtime_ns for path in place.root.rglob("*") if PRIVATE not in path.name}
    for _ in range(2):
        with pytest.raises(StagedFileGoneError, match=f"{load}.*nothing was written") as error:
            place.load([(50, "later", 0)])
        assert error.value.exit_code is ExitCode.INTEGRITY
        assert {path: path.stat().st_mtime_ns for path in before} == before
    shutil.move(kept, folder)
    require_completed(place)


def test_a_dead_write_is_given_up(place: Place) -> None:
    """The folder that the message names takes the write with it; the table goes on as it is."""
    load = dead_upsert(place, step_of(place))
    shutil.rmtree(place.ports["duplicates"])
    with pytest.raises(StagedFileGoneError, match=f"delete `{PRIVATE}/staging/{load}`"):
        place.load([])
    shutil.rmtree(place.root / PRIVATE / "staging" / load)
    assert place.load([(50, "later", 0)]).inserted == 1
    assert sorted(place.rows()) == (AFTER if place.format == "delta" else sorted([*OLD, (50, "later", 0)]))


@pytest.mark.parametrize("step", ["table.6.published", "table.7.index", "table.7.port"])
def test_readers_empty_the_ports_of_a_dead_write(place: Place, step: str) -> None:
    """Once all files have their places, one that is gone was taken, and the next write does not miss it."""
    dead_upsert(place, step)
    for port in place.ports.values():
        for file in port.glob("*.parquet"):
            file.unlink()
    if place.format == "parquet":
        (place.root / place.files()[0]).unlink()  # of a foreign writer
    assert place.load([]).completed == 1
    assert place.leftovers() == []
    assert [list(port.glob("*.parquet")) for port in place.ports.values()] == [[], []]


def test_the_end_of_publication_is_durable_before_readers_count(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the plan is synced after its last name, if a port has files."""
    synced: list[list[str]] = []
    sync = LocalFileSystem.fsync_dir

    def noted(system: LocalFileSystem, path: Path) -> None:
        synced.append(sorted(entry.name for entry in path.iterdir()) if path.parent.name == "staging" else [])
        sync(system, path)

    monkeypatch.setattr(LocalFileSystem, "fsync_dir", noted)
    place.load(OLD)
    assert not [names for names in synced if "done" in names]
    place.upsert(OTHERS)
    assert [names for names in synced if "done" in names and "plan" not in names]
