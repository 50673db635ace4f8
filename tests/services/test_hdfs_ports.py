"""A job whose ports of files are in HDFS, with its store there too or on this machine: as on a disk, through kills."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from hdfs_native import Client
from pyarrow import parquet

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.config.load import load_config
from tests.services.hdfs import Hdfs
from tests.services.once_jobs import run_once, written_job
from tests.tiers import is_night

pytestmark = [pytest.mark.services, pytest.mark.spark]

_CONFIG = """
name: ports
source: {{format: files, path: in, file_format: json, schema: "k string, t long", max_files_per_batch: 1}}
key: k
expiry: {{by: never}}
store: {{url: "{store}", shards: 2}}
sinks:
  unique: {{format: parquet, path: "{url}/unique"}}
  duplicate: {{format: parquet, path: "{url}/duplicate"}}
  expired: {{format: none}}
  error: {{format: json, path: "{url}/error"}}
spark: {{spark.master: "local[2]"}}
"""


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


@pytest.mark.night(but=["in HDFS"])
@pytest.mark.parametrize("store", ["file:state", "{url}/state"], ids=["on a disk", "in HDFS"])
def test_a_job_publishes_into_hdfs(hdfs: Hdfs, tmp_path: Path, store: str) -> None:
    """Killed before a record, after one, and while it publishes: every record leaves once, and nothing else stays."""
    url = f"{hdfs.url}/{uuid.uuid4().hex[:8]}"
    config, keys = written_job(tmp_path, _CONFIG.format(url=url, store=store.format(url=url)))

    for kill in ("window.3.synced=kill", "log.linked=kill@2", "publish.renamed=kill") if is_night() else ():
        killed = run_once(config, kill)
        assert killed.returncode < 0, (kill, killed.stderr)
    done = run_once(config)
    assert done.returncode == 0, done.stderr

    rows = {port: _rows(open_place(f"{url}/{port}")) for port in ("unique", "duplicate", "error")}
    assert sorted(str(row["k"]) for row in rows["unique"]) == sorted(set(keys))
    assert len(rows["unique"]) + len(rows["duplicate"]) == len(keys)
    assert len(rows["error"]) == 1
    state = CommitLog.open(load_config(config).store.place).state
    assert (state.next_window, state.totals["unique"]) == (4, len(set(keys)))
    left = [place for place in open_place(url).walk() if "_staging" in place.path.parts]
    assert left == []
    client = Client(hdfs.url)
    paths = [one.path for port in rows for one in open_place(f"{url}/{port}").walk()]
    assert {client.get_file_info(str(path)).permission for path in paths} == {0o644}, "other users read ports"
