"""`deduper verify` over crash states, on a real disk: no damage after a cut, nothing at all after the next run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces.open import open_backend
from bucket_store.places.local import local_place
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.run import Verification, verify_store
from tests import tiers
from tests.faults.crash_disk import Disk, cut
from tests.faults.invariants import demand
from tests.faults.service import Plan, Scene, limits, seeded_names
from tests.faults.states import Moment, Tally, mixed, recover, run_recorded, tried

pytestmark = pytest.mark.slow

EVERY = 9 if tiers.is_night() else 45


def test_verify_calls_no_crash_a_damage(tmp_path: Path) -> None:
    """A cut leaves orphans only, and the next owner's run leaves a store of which every check holds."""
    scene = Scene(Plan(shards=2, windows=4, period=6, deletion_batch=1, snapshot_every=4), tmp_path)
    with limits(scene.plan), seeded_names("verify"):
        moments = run_recorded(scene)
    tally = Tally()
    for number in range(0, len(moments), EVERY):
        moment, seed = moments[number], number % 5
        name = f"verify, operation {number} ({moment.after}), seed {seed}"
        tally.add(tried(name, scene, lambda moment=moment, n=number, s=seed: _verified(scene, moment, mixed(n, s))))
    print(f"verify: {tally.states} states, {len(tally.violations)} violations")
    assert tally.violations == []
    assert tally.states >= (30 if tiers.is_night() else 6)


def _verified(scene: Scene, moment: Moment, seed: int) -> None:
    disk = cut(moment.nodes, seed)
    before = _verify(scene, disk)
    if before is not None:
        demand("findings right after the cut", [], [str(finding) for finding in before.findings])
    recover(scene, moment, disk)
    after = _verify(scene, disk)
    assert after is not None
    demand("findings after the recovery", [], [str(finding) for finding in after.findings])
    demand("windows' outputs", True, after.outputs > 0)


def _verify(scene: Scene, disk: Disk) -> Verification | None:
    """Every check that `deduper verify` makes; None where there is no store yet."""
    config = scene.config
    with _on_a_real_disk(scene, disk):
        try:
            log = CommitLog.open(local_place(config.store.path))
        except StoreMissingError:
            return None
        return verify_store(OpenStore(config.store.url, config, log, open_backend(config.store.url)))


@contextmanager
def _on_a_real_disk(scene: Scene, disk: Disk) -> Iterator[None]:
    """The files of a disk in memory at their places in the machine's own file system."""
    for path, data in disk.files().items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    try:
        yield
    finally:
        for directory in ("state", "out"):
            shutil.rmtree(scene.root / directory, ignore_errors=True)
