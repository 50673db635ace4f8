"""A range stream whose store is on a server of S3's protocol, which takes the conditions of a put seriously or not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bucket_store.places.open import open_place
from tests.crash.range_stream import process, published, scene_of, windows
from tests.forked import command
from tests.s3_server import CARELESS, new_prefix

pytestmark = pytest.mark.services


@pytest.mark.night
def test_a_stream_goes_on_in_an_object_store(s3_bucket: str, tmp_path: Path) -> None:
    """Killed after a record and while it publishes: the rows of a run on a disk, once."""
    made = windows(3, 4)
    on_a_disk = scene_of(tmp_path / "disk", made)
    assert process(on_a_disk, "") == 0
    scene = scene_of(tmp_path / "objects", made, {"store": new_prefix(s3_bucket)})
    for armed in ("log.linked=kill@2", "publish.renamed=kill@2"):
        assert process(scene, armed) == -signal.SIGKILL, armed
    assert process(scene, "") == 0
    assert published(scene) == published(on_a_disk)
    assert scene.leftovers() == []


@pytest.mark.night
@pytest.mark.parametrize("bucket", CARELESS)
@pytest.mark.usefixtures("s3_bucket")
def test_a_storage_that_ignores_a_condition_is_refused(tmp_path: Path, bucket: str) -> None:
    """Before the store is made; nothing is left in the bucket."""
    scene = scene_of(tmp_path, windows(3, 1), {"store": new_prefix(f"s3://{bucket}")})
    done = command("run", str(scene.root / "points.yaml"), "--once", cwd=scene.root)
    assert done.returncode == 2, done.stderr
    assert "use Amazon S3" in done.stderr.replace("\n", " ")
    assert open_place(f"s3://{bucket}").entries() == []
