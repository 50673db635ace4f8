"""A job whose store is in an object store, its ports on this machine: as on a disk, through kills too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces.open import open_backend
from bucket_store.places.open import open_place
from tests.s3_server import new_prefix
from tests.spark.harness import PORTS, read_rows

pytestmark = [pytest.mark.services, pytest.mark.spark]

_CONFIG = """
name: objects
source: {{format: files, path: in, file_format: json, schema: "k string, t long", max_files_per_batch: 1}}
key: k
expiry: {{by: never}}
store: {{url: "{url}", shards: 2}}
sinks:
  unique: {{format: parquet, path: out/unique}}
  duplicate: {{format: parquet, path: out/duplicate}}
  expired: {{format: none}}
  error: {{format: json, path: out/error}}
spark: {{spark.master: "local[2]"}}
"""


def _run(config: Path, kill: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deduper.cli", "run", str(config), "--once", "--take-over"]
    environment = {**os.environ, failpoints.ENVIRONMENT: kill}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)


def test_a_job_goes_on_in_an_object_store(s3_bucket: str, tmp_path: Path) -> None:
    """Killed before a record, after one, and while it publishes: every record leaves once, with the right verdict."""
    url = new_prefix(s3_bucket)
    config = tmp_path / "job.yaml"
    config.write_text(_CONFIG.format(url=url), encoding="utf-8")
    (tmp_path / "in").mkdir()
    keys: list[str] = []
    for number in range(4):
        lines = [{"k": f"key-{(number * 5 + line) % 11}", "t": line} for line in range(8)]
        keys += [str(line["k"]) for line in lines]
        text = "".join(json.dumps(line) + "\n" for line in lines) + ("no record\n" if number == 2 else "")
        (tmp_path / "in" / f"{number}.json").write_text(text, encoding="utf-8")
        os.utime(tmp_path / "in" / f"{number}.json", (1_700_000_000 + number,) * 2)

    # A process's first record is its claim.
    for kill in ("log.written=kill@2", "log.linked=kill@2", "publish.renamed=kill"):
        assert _run(config, kill).returncode < 0, kill
    done = _run(config)
    assert done.returncode == 0, done.stderr
    assert s3_bucket in done.stderr

    rows = {port: read_rows(tmp_path / "out" / port) for port in PORTS}
    assert sorted(row["k"] for row in rows["unique"]) == sorted(set(keys))
    assert len(rows["unique"]) + len(rows["duplicate"]) == len(keys)
    assert len(rows["error"]) == 1
    places = [(row["_dedup"]["source"], row["_dedup"]["position"]) for port in PORTS for row in rows[port]]
    assert len(set(places)) == len(places) == len(keys) + 1

    state = CommitLog.open(open_place(url)).state
    assert (state.next_window, state.totals["unique"]) == (4, len(set(keys)))
    lying = {piece.file for piece in open_backend(url).pieces()}
    assert lying == {piece.file for shard in state.pieces.values() for piece in shard}
