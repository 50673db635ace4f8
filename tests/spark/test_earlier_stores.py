"""Stores and checkpoints that the code of commit e1a5ec4 has written: the job opens them and goes on.

Each has three windows of ten records, an hour of event time apart, and Spark's checkpoint of them. Its source and its
outputs were in another folder then.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from tests.spark.harness import Job

pytestmark = pytest.mark.spark

STORES = Path(__file__).parent.parent / "data" / "stores_of_0.1.0-e1a5ec4"


@pytest.mark.night
@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_a_store_of_an_earlier_commit_goes_on(new_job: Callable[..., Job], backend: str) -> None:
    """Its keys are remembered with their first copies, new keys are unique, and the store stays sound."""
    job = new_job(
        name="kept",
        source={"schema": "k string, t timestamp"},
        expiry={"by": "event_time", "field": "t", "period": "24h", "span": "1h"},
        store={"url": f"{backend}:state"},
        sinks={port: {"format": "json", "path": f"out/{port}"} for port in ("unique", "duplicate", "expired", "error")},
    )
    shutil.copytree(STORES / backend, job.directory, dirs_exist_ok=True)
    before = CommitLog.open(local_place(job.config.store.path)).state
    assert before.next_window == 3
    # Keys live in the bucket of their hour: k0 to k9 were seen at 00:00, in window 0.
    again = [{"k": f"k{n}", "t": f"2024-01-01T00:{n:02d}:30Z"} for n in range(10)]
    job.add_records([*again, {"k": "new", "t": "2024-01-01T02:30:00Z"}])
    assert job.run().windows == 1
    rows = {port: job.rows(port) for port in ("unique", "duplicate", "expired", "error")}
    assert {port: sum(row["_dedup"]["window"] == 3 for row in found) for port, found in rows.items()} == {
        "unique": 1,
        "duplicate": 10,
        "expired": 0,
        "error": 0,
    }
    firsts = {row["k"]: row["_dedup"]["first_seen"] for row in rows["duplicate"]}
    assert {first["window"] for first in firsts.values()} == {0}
    assert [Path(first["source"]).name for first in firsts.values()] == ["0.json"] * 10
    assert [firsts[f"k{n}"]["position"] for n in range(10)] == list(range(10))
    assert verify_store(open_store(job.config.store.url)).findings == ()
