"""`deduper replay`, killed with SIGKILL at its failpoints and repeated: the outputs of an undisturbed replay."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from deduper.config.load import load_config
from deduper.config.sections import PORTS
from deduper.replay.settings import Asked, replay_config
from tests.forked import command
from tests.spark.harness import read_rows

pytestmark = pytest.mark.crash

BEFORE = ("start.claimed", "replay.surveyed", "replay.planned", "replay.begun")
IN_WINDOWS = (
    *("window.0.batch", "window.1.intent", "read.spilled", "judge.piece.after", "write.done", "window.2.judged"),
    *("window.3.durable", "window.4.committed", "window.5.published", "window.6.marked", "window.7.checkpoint"),
)
CONFIG = """\
name: logs
source: {format: files, path: in, file_format: json, schema: "k string, t long"}
key: k
expiry: {by: ordered, field: t, period: 300, span: 30, lookup: all_live}
store: {url: "file:state", shards: 2}
sinks:
  unique: {format: parquet, path: out/unique}
  duplicate: {format: parquet, path: out/duplicate}
  expired: {format: parquet, path: out/expired}
  error: {format: json, path: out/error}
"""


def replay(directory: Path, out: str, armed: str = "") -> subprocess.CompletedProcess[str]:
    """One run of the command, in a session of its own: of many windows, since a window takes one part."""
    words = ["replay", "job.yaml", "--out", str(directory / out), "--execute", "--json"]
    return command(*words, armed=armed, cwd=directory, module="tests.crash.replay_driver")


def left(directory: Path) -> list[tuple[str, Any, ...]]:
    """What has left by the ports, by file and row."""
    rows = [(port, row["_dedup"], row.get("k"), row.get("t")) for port in PORTS for row in read_rows(directory / port)]
    found = [
        (of["source"], of["position"], port, k, t, (first or {}).get("source"), (first or {}).get("position"))
        for port, of, k, t in rows
        for first in [of.get("first_seen")]
    ]
    return sorted(found, key=lambda one: one[:2])


@pytest.mark.night
def test_killed_at_random_points_and_resumed_it_has_the_same_outputs(tmp_path: Path) -> None:
    """Ten kills and more: every record leaves once, by the same port, with the same first copy."""
    draw = random.Random(11)
    (tmp_path / "in").mkdir()
    for number in range(12):
        base = draw.randrange(4) * 400
        rows = [{"k": str(draw.randrange(300)), "t": base + draw.randrange(450)} for _ in range(120)]
        if number % 3 == 0:
            rows.sort(key=lambda row: row["t"])
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
        os.utime(path, (1_700_000_000 + draw.randrange(100),) * 2)
    (tmp_path / "job.yaml").write_text(CONFIG)

    whole = replay(tmp_path, "whole")
    assert whole.returncode == 0, whole.stderr
    windows = json.loads(whole.stdout)["windows"]
    assert windows > 12
    for point in (*BEFORE, *draw.sample(IN_WINDOWS, 10), "replay.drained"):
        died = replay(tmp_path, "killed", f"{point}=kill@1")
        assert died.returncode == -signal.SIGKILL, f"{point}: {died.returncode}\n{died.stderr}"
    last = replay(tmp_path, "killed")
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["judged"] == json.loads(whole.stdout)["judged"]
    assert left(tmp_path / "killed") == left(tmp_path / "whole")
    assert len(left(tmp_path / "whole")) == 12 * 121
    config = replay_config(load_config(tmp_path / "job.yaml"), Asked(tmp_path / "killed"))
    store = open_store(config.store.url)
    assert not verify_store(OpenStore(store.url, config, store.log, store.pieces)).findings
