"""A job whose store is in an object store, its ports on this machine: as on a disk, through kills too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from bucket_store.errors import UnsafeStorageError
from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces.open import open_backend
from bucket_store.places.open import open_place
from deduper import Deduper, Never
from deduper.cli.main import app
from deduper.errors import UsageError
from tests.s3_server import CARELESS, new_prefix
from tests.services.once_jobs import run_once, written_job
from tests.spark.harness import PORTS, read_rows
from tests.tiers import is_night

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


@pytest.mark.night
def test_a_job_goes_on_in_an_object_store(s3_bucket: str, tmp_path: Path) -> None:
    """Killed before a record, after one, and while it publishes: every record leaves once, with the right verdict."""
    url = new_prefix(s3_bucket)
    config, keys = written_job(tmp_path, _CONFIG.format(url=url))

    # A process's first record is its claim.
    for kill in ("log.written=kill@2", "publish.renamed=kill", "log.linked=kill@2")[0 if is_night() else -1 :]:
        assert run_once(config, kill).returncode < 0, kill
    done = run_once(config)
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


@pytest.mark.night
@pytest.mark.parametrize("bucket", CARELESS)
def test_a_storage_that_ignores_a_condition_is_found_before_a_start(
    s3_bucket: str, tmp_path: Path, bucket: str
) -> None:
    """By `check`, and by a start, which ends with 2; nothing is left in the bucket."""
    url = new_prefix(f"s3://{bucket}")
    config, _ = written_job(tmp_path, _CONFIG.format(url=url))

    asked = CliRunner().invoke(app, ["check", str(config), "--json"])
    assert asked.exit_code == 3
    errors = [found for found in json.loads(asked.stdout)["diagnostics"] if found["severity"] == "error"]
    assert [(found["check"], found["place"]) for found in errors] == [("folders", "store")]
    assert url in errors[0]["what"]
    assert "use Amazon S3, Google Cloud Storage" in errors[0]["remedy"]

    started = run_once(config)
    assert started.returncode == 2, started.stderr
    assert "conditional writes" in started.stderr
    assert open_place(f"s3://{bucket}").entries() == []


def test_check_leaves_nothing_in_an_object_store(s3_bucket: str, tmp_path: Path) -> None:
    """Its probe is removed."""
    url = new_prefix(s3_bucket)
    config, _ = written_job(tmp_path, _CONFIG.format(url=url))
    asked = CliRunner().invoke(app, ["check", str(config)])
    assert asked.exit_code == 0, asked.stdout
    assert open_place(url).entries() == []


@pytest.mark.night
@pytest.mark.parametrize("bucket", CARELESS)
def test_a_deduper_refuses_such_a_storage_too(
    s3_bucket: str, tmp_path: Path, session: SparkSession, bucket: str
) -> None:
    """Before it claims the store: two owners could overwrite each other's records."""
    del s3_bucket
    url = new_prefix(f"s3://{bucket}")
    dedup = Deduper(url, key="k", expiry=Never())
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)
    with pytest.raises(UnsafeStorageError):
        write(session.createDataFrame([("a",)], "k string"), 0)
    assert open_place(url).entries() == []
    split = Deduper(new_prefix(f"s3://{bucket}"), key="k", expiry=Never())
    with pytest.raises(UsageError, match="use `into` with paths or topics, or a store on a disk or in HDFS"):
        split.split(session.createDataFrame([("a",)], "k string"))
