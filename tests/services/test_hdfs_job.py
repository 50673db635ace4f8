"""The whole job with its store in HDFS: the same four outputs as on a disk, whichever process is killed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bucket_store.places.open import open_place
from tests.crash.scene import WINDOWS, Scene, wait_until
from tests.services.hdfs import Hdfs

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200), pytest.mark.night]


@pytest.fixture(scope="module")
def on_a_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job comes to that nobody disturbs."""
    scene = Scene(tmp_path_factory.mktemp("disk") / "job", store="file:state").make()
    try:
        assert scene.run() == 0, scene.output()
        return scene.outcome()
    finally:
        scene.clean_up()


@pytest.fixture
def scene(hdfs_pair: Hdfs, tmp_path: Path) -> Iterator[Scene]:
    """The same job with its store on two DataNodes."""
    one = Scene(tmp_path / "job", store=f"{hdfs_pair.url}/{uuid.uuid4().hex[:8]}").make()
    yield one
    one.clean_up()


def check(scene: Scene, undisturbed: dict[str, Any]) -> None:
    """All rows in all four ports, and a sound store."""
    outcome = scene.outcome()
    assert {port: rows.total() for port, rows in outcome["rows"].items()} == {
        port: rows.total() for port, rows in undisturbed["rows"].items()
    }, scene.output()
    assert outcome == undisturbed
    scene.check_store(settled=True)


def test_a_driver_and_workers_are_killed(scene: Scene, on_a_disk: dict[str, Any]) -> None:
    """By SIGKILL: amid a window, before and after its record, at a piece; each start goes on.

    Nothing of the store lies on this machine but tables.
    """
    for armed in (
        "piece.half=kill@2",
        "piece.entered=kill-driver@3",
        "log.written=kill@3",
        "log.linked=kill@2",
    ):
        code = scene.run(armed=armed)
        assert code != 0 or "piece.half" in armed, f"{armed} was never met\n{scene.output()}"
    assert scene.run_to_the_end() == 0, scene.output()
    check(scene, on_a_disk)
    assert not list(scene.directory.glob("state/**/*.piece")), "nothing of the store is on this machine"
    found = {path.path.parts[2] for path in open_place(scene.config.store.url).walk()}
    assert {"manifest", "published", "log", "pieces"} <= found


def test_the_namenode_is_away_for_twenty_seconds(hdfs_pair: Hdfs, scene: Scene, on_a_disk: dict[str, Any]) -> None:
    """The job ends with an error that names HDFS within a minute, or goes on when it is back."""
    driver = scene.start("--once")
    wait_until("two windows", lambda: scene.windows() >= 2)
    hdfs_pair.namenode.kill()
    time.sleep(20)
    hdfs_pair.start()
    code = driver.wait(60)
    assert code == 0 or "HDFS" in scene.output(), scene.output()
    assert scene.run_to_the_end() == 0, scene.output()
    check(scene, on_a_disk)
    assert scene.windows() == WINDOWS
