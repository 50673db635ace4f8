"""A stream's store and inputs that are not on this machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deduper.errors import CannotWriteError, DeduperError, OwnerAliveError
from deduper.ranges.stream import settings
from deduper.ranges.stream.folders import FolderInput
from deduper.ranges.stream.runner import owned_store, state_of
from deduper.ranges.stream.settings import PortFolder
from tests.bucket_store.places.memory_names import memory_place
from tests.deduper.ranges.stream.stream_scene import Scene, event, ranged


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("state", "{root}/state"),
        ("file:state", "{root}/state"),
        ("hdfs://host:1/points/", "hdfs://host:1/points"),
        ("s3://bucket/points", "s3://bucket/points"),
        ("gs://bucket/points", "gs://bucket/points"),
        ("az://container/points", "az://container/points"),
    ],
)
def test_a_store_is_where_that_of_a_job_may_be(written: str, url: str, tmp_path: Path) -> None:
    """And where it is may change: a store can be moved."""
    scene = Scene(tmp_path)
    fixed, scene.settings = scene.job.fixed, {"store": written}
    assert scene.job.store.url == url.format(root=tmp_path)
    assert scene.job.fixed == fixed


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["objects"], indirect=True)
@pytest.mark.usefixtures("storage")
def test_a_second_run_leaves_the_first_alone(tmp_path: Path) -> None:
    """It fails, clearly, while the first one lives, and has changed nothing."""
    scene = Scene(tmp_path)
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: 1) as owned:
        before = owned.log.state.next_number
        with pytest.raises(OwnerAliveError, match="another process owns this store and is alive; stop it first"):
            scene.run()
        assert owned.log.refresh().next_number == before


def test_a_storage_that_is_away_ends_the_start(tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its place, before anything is claimed; one elsewhere is waited for until the deadline."""
    monkeypatch.setattr(settings, "_DEADLINE_US", 500_000)
    if storage == "file":
        (tmp_path / "state").write_text("no folder")
    else:
        (tmp_path / "bucket").write_text("no bucket")
    with pytest.raises((DeduperError, OSError), match="state"):
        Scene(tmp_path).run()


@pytest.mark.parametrize("storage", ["objects"], indirect=True)
@pytest.mark.usefixtures("storage")
def test_a_piece_elsewhere_is_no_file_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy has no name, so a killed process leaves none; without room for it, the folder is named."""
    scene = Scene(tmp_path)
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 50)])
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    scene.run()
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: 1) as owned:
        (level,) = state_of(scene.job, owned.log).ranges
        assert level.rows["points"].to_pylist() == [10]
        assert list((tmp_path / "temporary").iterdir()) == []
        monkeypatch.setattr("mmap.mmap", _full)
        with pytest.raises(CannotWriteError, match="temporary, for a copy of a piece: No space left"):
            state_of(scene.job, owned.log)


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_store_is_moved_to_another_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are copied, and the stream goes on there: what was answered is not answered again."""
    scene = Scene(tmp_path, {"late_ranges": "correct"})
    scene.ranges.publish([ranged(1, "a", 0, 90, 10)])
    scene.events.publish([event(1, "a", 50)])
    scene.run()
    before = scene.store
    monkeypatch.setattr(Scene, "storage", "objects")
    for file, _ in before.files():
        (scene.store / file.path.relative_to(before.path)).create(file.read())
    before.remove_tree()
    scene.ranges.publish([ranged(2, "a", 40, 60, 1)])
    scene.events.publish([event(2, "a", 51)])
    assert scene.run().windows == 1
    assert scene.answers() == {1: (11, 2), 2: (11, 2)}
    assert not before.exists()
    assert scene.leftovers() == []


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_inputs_elsewhere_are_read_as_those_of_this_machine(kind: str, tmp_path: Path) -> None:
    """The rows of both, from a storage without paths."""
    scene = Scene(tmp_path, kinds=(kind, "json"))
    scene.events.publish([event(1, "a", 50)], [event(2, None, None)])
    port, elsewhere = scene.job.events, memory_place() / "in"
    assert isinstance(port, PortFolder)
    elsewhere.make_directories()
    for file, _ in port.place.files():
        (elsewhere / file.name).replace(file.read())
    tables = []
    for place in (port.place, elsewhere):
        folder = FolderInput("events", port, None, 1)
        folder._folder = place
        assert folder.plan()
        tables.append(folder.take().table)
    assert tables[0].num_rows == 2
    assert tables[0].equals(tables[1])
