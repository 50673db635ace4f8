"""A job whose ports of files are in HDFS, and its store on this machine: as on a disk, through kills too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from tests.services.hdfs import Hdfs

pytestmark = [pytest.mark.services, pytest.mark.spark]

_CONFIG = """
name: ports
source: {{format: files, path: in, file_format: json, schema: "k string, t long", max_files_per_batch: 1}}
key: k
expiry: {{by: never}}
store: {{url: "file:state", shards: 2}}
sinks:
  unique: {{format: parquet, path: "{url}/unique"}}
  duplicate: {{format: parquet, path: "{url}/duplicate"}}
  expired: {{format: none}}
  error: {{format: json, path: "{url}/error"}}
spark: {{spark.master: "local[2]"}}
"""


def _run(config: Path, kill: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deduper.cli", "run", str(config), "--once", "--take-over"]
    environment = {**os.environ, failpoints.ENVIRONMENT: kill}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)


def _rows(port: Place) -> list[dict[str, object]]:
    """What readers of the port see: they skip names with an underscore."""
    data = [(one.name, (port / one.name).read()) for one in port.entries() if not one.name.startswith("_")]
    return [
        row
        for name, content in data
        for row in (
            parquet.read_table(pa.BufferReader(content)).to_pylist()
            if name.endswith(".parquet")
            else map(json.loads, content.splitlines())
        )
    ]


def test_a_job_publishes_into_hdfs(hdfs: Hdfs, tmp_path: Path) -> None:
    """Killed before a record, after one, and while it publishes: every record leaves once, and nothing else stays."""
    url = f"{hdfs.url}/{uuid.uuid4().hex[:8]}"
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

    for kill in ("window.3.synced=kill", "log.linked=kill@2", "publish.renamed=kill"):
        killed = _run(config, kill)
        assert killed.returncode < 0, (kill, killed.stderr)
    done = _run(config)
    assert done.returncode == 0, done.stderr

    rows = {port: _rows(open_place(f"{url}/{port}")) for port in ("unique", "duplicate", "error")}
    assert sorted(str(row["k"]) for row in rows["unique"]) == sorted(set(keys))
    assert len(rows["unique"]) + len(rows["duplicate"]) == len(keys)
    assert len(rows["error"]) == 1
    state = CommitLog.open(local_place(tmp_path / "state")).state
    assert (state.next_window, state.totals["unique"]) == (4, len(set(keys)))
    left = [place for place in open_place(url).walk() if "_staging" in place.path.parts]
    assert left == []
