"""The jobs of a cluster, as far as they need no session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deduper.config.model import Config
from deduper.tasks.executors.host_folder import HostFolder
from deduper.window.jobs import cluster as cluster_jobs
from deduper.window.jobs import executor_tasks
from deduper.window.jobs.cluster import ClusterJobs
from deduper.window.jobs.executor_tasks import tasks_may_stay
from tests.deduper.small_service import Trial
from tests.oracle import Settings


def test_a_copy_of_a_store_has_records_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same hosts, where each removes the earlier attempts of its own store."""
    monkeypatch.setattr(cluster_jobs, "ReadPlan", lambda *_: None)
    monkeypatch.setattr(executor_tasks, "Executors", lambda _: SimpleNamespace(alive=list))
    conf = SimpleNamespace(getAll=lambda: [("spark.authenticate", "true")])
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    names = set()
    for directory in ("store", "copy"):
        config = Trial(Settings("ordered", period=20, span=10)).config(tmp_path / directory)
        jobs = ClusterJobs(session, config, "ab" * 16, b"salt")
        jobs.open(epoch=1, attempt=0)
        assert isinstance(jobs._last, HostFolder)
        assert jobs._last.store.startswith("ab" * 16)
        names.add(jobs._last.store)
        jobs.tasks.close()
    assert len(names) == 2


@pytest.mark.parametrize(
    ("settings", "error", "may"),
    [
        ({"spark.master": "local-cluster[2,1,1024]"}, "parquet", True),
        # The jobs that write JSON would wait for the only core.
        ({"spark.master": "local-cluster[2,1,1024]"}, "json", False),
        ({"spark.master": "yarn"}, "json", False),
        ({"spark.master": "local-cluster[2,2,1024]"}, "json", True),
        ({"spark.master": "yarn", "spark.executor.cores": "2"}, "json", True),
        ({"spark.master": "yarn", "spark.executor.cores": "2", "spark.task.cpus": "2"}, "json", False),
        ({"spark.master": "yarn", "spark.authenticate": "true"}, "parquet", False),
        ({"spark.master": "yarn", "spark.authenticate": "false"}, "parquet", True),
        ({"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}, "parquet", False),
    ],
)
def test_tasks_that_stay_are_in_the_way_of_no_job(
    settings: dict[str, str], error: str, may: bool, tmp_path: Path
) -> None:
    """And are no less safe than Spark's own."""
    sinks = {port: {"format": "parquet", "path": f"out/{port}"} for port in ("unique", "duplicate", "expired")}
    sections = {
        "name": "test",
        "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string"},
        "key": "k",
        "expiry": {"by": "never"},
        "store": {"url": "file:state"},
        "sinks": {**sinks, "error": {"format": error, "path": "out/error"}},
    }
    config = Config.model_validate(sections, context={"base_dir": tmp_path})
    assert tasks_may_stay(settings, config) is may
