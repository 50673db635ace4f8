"""Merges of pieces in HDFS that are lost, or run twice at a time as Spark lets slow tasks, on two workers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bucket_store import failpoints
from bucket_store.log.state import LogState
from bucket_store.maintenance.unnamed_pieces import EVERY_S, UnnamedPieces
from bucket_store.maintenance.worker_process import MaintenanceWorker
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import PieceStore
from tests.services.hdfs import Hdfs
from tests.services.spark_standalone import SPECULATES, Standalone, standalone
from tests.spark.cluster import Cluster, cluster_of
from tests.spark.test_merges_on_executors import SHARDS, facts, merge_by_tasks, plan_for

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600), pytest.mark.night]

_DIES, _STANDS = "piece.entered", "compact.merged"
"""A merged piece is durable: its executor is killed; its task stands still until Spark kills it."""
_DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Workers that Spark takes for two hosts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with standalone(tmp_path_factory.mktemp("spark"), apart=True) as spark:
            yield spark


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose files let a failpoint act, once each."""
    return tmp_path_factory.mktemp("armed")


@pytest.fixture
def merging(apart: Standalone, armed: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A session whose merges may run twice."""
    actions = f"{_DIES}=kill-executor:on={armed / _DIES},{_STANDS}=freeze:on={armed / _STANDS}"
    settings = {**SPECULATES, f"spark.executorEnv.{failpoints.ENVIRONMENT}": actions}
    with cluster_of(apart.url, tmp_path / "session", settings) as cluster:
        yield cluster


def pieces_after_a_search(searches: UnnamedPieces, state: LogState, store: PieceStore) -> set[str]:
    """The names of what a search leaves."""
    searches.begin_if_due(state)
    assert not searches.is_under_way
    return {piece.name for piece in store.pieces()}


def test_merges_that_are_lost_or_run_twice(hdfs_pair: Hdfs, merging: Cluster, armed: Path, tmp_path: Path) -> None:
    """The receipts and the bytes of one machine; what the other attempts have left, a search of the owner removes."""
    url = f"{hdfs_pair.url}/merges-{os.getpid()}"
    store = open_backend(url)
    plan = plan_for(store)
    worker = MaintenanceWorker(url)
    try:
        answers = list(worker.merge_each(plan))
    finally:
        worker.close()
    here = facts(store, answers)
    for point in (_DIES, _STANDS):
        before = len(list(store.pieces()))
        (armed / point).touch()
        there = merging.call(merge_by_tasks, url, tmp_path / "tables", plan)
        assert not (armed / point).exists(), f"{point} was not met"
        assert facts(store, there) == here
        # On a busy machine Spark takes other merges for slow as well.
        assert len(list(store.pieces())) > before + SHARDS, f"{point}: no merge ran twice"
    merged = [one for one in there if isinstance(one, PieceRef)]
    state = LogState(epoch=1, next_window=5, pieces={one.shard: (one,) for one in merged})
    hours = itertools.count(0.0, EVERY_S)
    searches = UnnamedPieces(store, lambda action: action(), lambda: next(hours))
    deadline = time.monotonic() + _DEADLINE_S
    # A twin that still runs may append after a search: the next one finds its piece.
    while (left := pieces_after_a_search(searches, state, store)) != {one.name for one in merged}:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    assert facts(store, merged) == here
