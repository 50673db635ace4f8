"""`deduper seed`, killed with SIGKILL at each of its failpoints and repeated: the keys of an undisturbed seed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bucket_store.log.commit_log import CommitLog
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from deduper.config.load import load_config
from deduper.window.completeness import SEED_OPEN, complete_since
from deduper.window.recovery import open_or_create
from tests.forked import command

pytestmark = pytest.mark.crash

POINTS = (
    *("start.claimed", "seed.begun", "start.published", "start.discarded"),
    *("window.0.batch", "window.1.intent", "window.2.judged", "window.3.synced", "window.3.durable"),
    *("window.4.committed", "window.2.judged@2", "window.5.published", "window.6.marked", "window.7.checkpoint"),
    *("seed.drained", "seed.proven", "move.claimed", "move.recorded"),
)
FILES = 8
CONFIG = """\
name: seed
source: {format: files, path: in, file_format: json, schema: "k string, t long", max_files_per_batch: 1}
key: k
expiry: {by: ordered, field: t, period: 100, span: 10, lookup: all_live}
store: {url: "file:state", shards: 2}
sinks:
  unique: {format: parquet, path: out/unique}
  duplicate: {format: none}
  expired: {format: none}
  error: {format: none}
"""


def seed(directory: Path, old: Path, armed: str = "") -> subprocess.CompletedProcess[str]:
    """One run of the command, in a session of its own."""
    words = ["seed", "job.yaml", "--files", str(old), "--complete-since", "0", "--execute", "--json"]
    return command(*words, armed=armed, cwd=directory, module="tests.crash.seed_driver")


@pytest.mark.night
def test_killed_anywhere_and_repeated_it_leaves_the_same_keys(tmp_path: Path) -> None:
    """Twin stores of one salt; every run but the last of one of them dies. Count and checksum of the keys are equal."""
    old, killed, twin = tmp_path / "old", tmp_path / "killed", tmp_path / "twin"
    old.mkdir()
    draw = random.Random(7)
    for number in range(FILES):
        rows = [{"k": str(draw.randrange(80)), "t": number * 30 + draw.randrange(-160, 30)} for _ in range(60)]
        path = old / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    (killed / "in").mkdir(parents=True)
    (killed / "job.yaml").write_text(CONFIG)
    open_or_create(load_config(killed / "job.yaml"), 1)
    shutil.copytree(killed, twin)

    whole = seed(twin, old)
    assert whole.returncode == 0, whole.stderr
    config = load_config(killed / "job.yaml")
    for point in POINTS:
        name, _, nth = point.partition("@")
        died = seed(killed, old, f"{name}=kill@{nth or 1}")
        assert died.returncode == -signal.SIGKILL, f"{point}: {died.returncode}\n{died.stderr}"
        is_open = CommitLog.open(config.store.place).state.extra.get(SEED_OPEN)
        assert is_open or point in ("start.claimed", "move.recorded"), point
    last = seed(killed, old)
    assert last.returncode == 0, last.stderr
    wanted, found = json.loads(whole.stdout), json.loads(last.stdout)
    assert found["after"] == wanted["after"]
    assert found["after"]["count"] > 0
    assert wanted["counts"]["expired"] > 0
    assert wanted["died"] > 0
    stores = [CommitLog.open(load_config(one / "job.yaml").store.place).state for one in (killed, twin)]
    assert stores[0].totals == stores[1].totals
    assert [one.next_window for one in stores] == [FILES, FILES]
    assert [one.extra["seed"] for one in stores] == [stores[1].extra["seed"]] * 2
    assert [complete_since(one) for one in stores] == [complete_since(stores[1])] * 2
    assert not any(SEED_OPEN in one.extra for one in stores)
    store = open_store(config.store.url)
    assert not verify_store(OpenStore(store.url, config, store.log, store.pieces)).findings
