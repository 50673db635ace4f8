"""Small pieces that tasks of a cluster merge: the pieces of one machine, whichever executor dies; the same verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CompactionRecord
from bucket_store.maintenance.compactions import Answer
from bucket_store.maintenance.worker_process import MaintenanceWorker
from bucket_store.pieces import compaction
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import PieceStore, append_piece
from bucket_store.places.local import local_place
from bucket_store.tables.matches import TableLayout
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.run import verify_store
from deduper.spark.placing import Executors, ShardPlaces
from deduper.tasks.executors.steps import MergeTask
from deduper.tasks.table_room import TableRoom
from deduper.window.jobs.merges import TaskMerges
from tests.spark.cluster import Cluster, cluster_of, executors, run_job
from tests.spark.harness import Job
from tests.spark.test_cluster import check_counts, job_in, numbered

pytestmark = [pytest.mark.spark, pytest.mark.night, pytest.mark.timeout(1800)]

STORE_ID = "ab" * 16
SHARDS = 6
MERGED = "compact.merged"


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that lets an executor die once, when a merged piece is durable and nobody knows of it."""
    return tmp_path_factory.mktemp("armed") / MERGED


@pytest.fixture(scope="module")
def two(armed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two executors with a core to spare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(failpoints.ENVIRONMENT, f"{MERGED}=kill-executor:on={armed}")
        with cluster_of("local-cluster[2,2,1024]", tmp_path_factory.mktemp("two") / "session") as cluster:
            patch.delenv(failpoints.ENVIRONMENT)
            yield cluster


def appended(store: PieceStore, shard: int, window: int) -> PieceRef:
    """A piece of three keys, of which windows share one."""
    digests = np.array([[window + 1, shard], [50, 7], [60 + window, 1]], np.uint64)
    column = np.full(3, window, np.int64)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    entries = Entries(np.array([3]), np.array([0, 3]), digests[order], column, column)
    where: dict[str, Any] = {"shard": shard, "first_window": window, "last_window": window, "epoch": 1, "attempt": 0}
    return append_piece(store, entries, store_id=bytes.fromhex(STORE_ID), **where)


def plan_for(store: PieceStore) -> list[CompactionTask]:
    """Merges of all shards."""
    return [
        CompactionTask(tuple(appended(store, shard, window) for window in range(5)), STORE_ID, 1, None, None)
        for shard in range(SHARDS)
    ]


def merge_by_tasks(session: SparkSession, url: str, folder: Path, tasks: Sequence[CompactionTask]) -> list[Answer]:
    """The answers of tasks, each on its shard's executor."""
    layout = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=True)
    room = TableRoom(str(folder), 1 << 24, 1 << 24, layout)
    places = ShardPlaces(SHARDS).on(Executors(session.sparkContext).alive())
    merges = TaskMerges(open_backend(url), session.sparkContext, MergeTask(url, "tables", room), lambda: places)
    try:
        return list(merges.merge_each(tasks))
    finally:
        merges.close()


def facts(store: PieceStore, answers: Sequence[Answer]) -> list[tuple[PieceRef, bytes]]:
    """The pieces without where they lie, and their bytes."""
    found = []
    for answer in answers:
        assert isinstance(answer, PieceRef), answer
        found.append((replace(answer, file="", name="", offset=0), store.read(answer)))
    return found


@pytest.mark.parametrize("is_killed", [False, True])
def test_pieces_are_those_of_one_machine(two: Cluster, armed: Path, tmp_path: Path, is_killed: bool) -> None:
    """Equal receipts and equal bytes for one plan; one that dies with a new piece leaves orphans alone."""
    url = f"file:{tmp_path / 'state'}"
    (tmp_path / "state").mkdir()
    store = open_backend(url)
    plan = plan_for(store)
    store.close_writers()
    worker = MaintenanceWorker(url)
    try:
        here = facts(store, list(worker.merge_each(plan)))
    finally:
        worker.close()
    if is_killed:
        armed.touch()
    there = facts(store, two.call(merge_by_tasks, url, tmp_path / "tables", plan))
    assert not armed.exists(), "nothing was killed"
    assert there == here
    assert [ref.entries for ref, _ in there] == [11] * SHARDS
    # A repetition, as of a task that speculates, or of a driver that is gone: another piece of the same bytes.
    assert facts(store, two.call(merge_by_tasks, url, tmp_path / "tables", plan[:1])) == here[:1]


def test_a_damaged_piece_is_an_answer(two: Cluster, tmp_path: Path) -> None:
    """The others are merged, and Spark does not try it again."""
    url = f"file:{tmp_path / 'state'}"
    (tmp_path / "state").mkdir()
    store = open_backend(url)
    plan = plan_for(store)
    first, *others = plan[2].pieces
    plan[2] = replace(plan[2], pieces=(replace(first, length=first.length - 8), *others))
    store.close_writers()
    answers = two.call(merge_by_tasks, url, tmp_path / "tables", plan)
    assert [type(answer) for answer in answers] == [PieceRef] * 2 + [CorruptionError] + [PieceRef] * 3


def run_merging(session: SparkSession, job: Job, jobs: int) -> dict[str, Any]:
    """Run a job that merges as soon as a shard has a few pieces; gives how many it merged by tasks."""
    asked: list[int] = []
    merge_each = TaskMerges.merge_each

    def noted(merges: TaskMerges, tasks: Sequence[CompactionTask]) -> Iterator[Answer]:
        asked.append(len(tasks))
        return merge_each(merges, tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "FEWEST_LIVE", 6)
        patch.setattr(compaction, "FEWEST", 4)
        patch.setattr(TaskMerges, "merge_each", noted)
        return run_job(session, job, jobs=jobs) | {"asked": asked}


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_job_whose_tasks_merge(two: Cluster, armed: Path, tmp_path: Path, jobs: int) -> None:
    """An executor dies in a merge beside the windows: the verdicts are right, and the store is sound and smaller."""
    two.call(executors, at_least=2)
    store = {"url": "file:state", "shards": 4}
    source = {"file_format": "parquet", "max_files_per_batch": 2}
    job = job_in(tmp_path / "job", source=source, store=store)
    often: Counter[str] = Counter()
    armed.touch()
    # A stream may end before a merge does that an executor was lost in; some windows later it is in the log.
    for first in range(0, 150, 30):
        often += numbered(job, 30, 60, first)
        ran = two.call(run_merging, job, jobs)
        assert set(ran["jobs"]) == {jobs}
        assert ran["asked"], "no merge was asked of tasks"
        log = CommitLog.open(local_place(job.config.store.path))
        if any(isinstance(record.body, CompactionRecord) for record in log.records()):
            break
    else:
        pytest.fail("no merge was recorded in 150 windows")
    assert not armed.exists(), "nothing was killed"
    check_counts(job, often)
    assert max(len(pieces) for pieces in log.state.pieces.values()) < 30
    pieces = open_backend(job.config.store.url)
    assert verify_store(OpenStore(job.config.store.url, job.config, log, pieces)).findings == ()
