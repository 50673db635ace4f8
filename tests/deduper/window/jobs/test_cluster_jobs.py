"""The jobs of a cluster, as far as they need no session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deduper.tasks.executors.steps import HostFolder
from deduper.testing import Settings
from deduper.window.jobs import cluster as cluster_jobs
from deduper.window.jobs.cluster import ClusterJobs
from tests.deduper.small_service import Trial


def test_a_copy_of_a_store_has_records_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same hosts, where each removes the earlier attempts of its own store."""
    monkeypatch.setattr(cluster_jobs, "Executors", lambda _: SimpleNamespace(alive=list))
    conf = SimpleNamespace(getAll=list)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    names = set()
    for directory in ("store", "copy"):
        config = Trial(Settings("ordered", period=20, span=10)).config(tmp_path / directory)
        jobs = ClusterJobs(session, config, "ab" * 16)
        jobs.open(epoch=1, attempt=0)
        assert isinstance(jobs._last, HostFolder)
        assert jobs._last.store.startswith("ab" * 16)
        names.add(jobs._last.store)
        jobs.tasks.close()
    assert len(names) == 2
