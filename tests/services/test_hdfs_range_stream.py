"""A range stream whose inputs, store and ports are in HDFS: as on a disk, through kills too."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path, PurePosixPath

import pytest

from bucket_store.places.local import local_place
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from tests.crash.range_stream import process, published, scene_of, windows
from tests.forked import command
from tests.services.hdfs import Hdfs

pytestmark = [pytest.mark.services, pytest.mark.night]

PORTS = ("output", "corrections", "late", "errors")


def copied(source: Place, target: Place) -> None:
    """All files of a folder, into another one."""
    for file, _ in source.files():
        one = target / PurePosixPath(file.path).relative_to(source.path)
        one.parent.make_directories()
        one.replace(file.read())


def test_a_stream_goes_on_in_hdfs(hdfs_pair: Hdfs, tmp_path: Path) -> None:
    """Killed while pieces are written, after a record, and while it publishes: the rows of a run on a disk, once."""
    made = windows(3, 5)
    on_a_disk = scene_of(tmp_path / "disk", made)
    assert process(on_a_disk, "") == 0
    rows = published(on_a_disk)
    assert all(rows.values())

    url = f"{hdfs_pair.url}/{uuid.uuid4().hex[:8]}"
    root = open_place(url)
    places = {
        name: f"{url}/{folder}/{name}"
        for folder, some in (("in", ("events", "ranges")), ("out", PORTS))
        for name in some
    }
    scene = scene_of(tmp_path / "hdfs", made, {**places, "store": f"{url}/state"})
    copied(local_place(scene.root / "in"), root / "in")
    for armed in ("piece.open=kill@3", "log.linked=kill@2", "publish.renamed=kill@2"):
        assert process(scene, armed) == -signal.SIGKILL, armed
    assert process(scene, "") == 0
    copied(root / "out", local_place(scene.root / "out"))
    assert published(scene) == rows
    assert scene.leftovers() == []

    asked = command("status", str(scene.root / "points.yaml"), "--json", cwd=scene.root)
    assert asked.returncode == 0, asked.stderr
    status = json.loads(asked.stdout)
    assert (status["windows"], status["published"], status["running"]) == (5, 4, False)
    assert not (scene.root / "state").exists()
    root.remove_tree()
