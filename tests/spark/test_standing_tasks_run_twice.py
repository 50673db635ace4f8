"""Standing tasks of which Spark runs copies (`spark.speculation`), two of them on an executor: no row is lost or twice.

Spark copies the rest of a stage once most of its tasks have ended, to other hosts. Standing tasks end alone when they
have no work while others have some, so the copies are of those that judge the small windows after a larger one.

A copy connects as the task that it copies. If the driver waits for results, that ends all tasks, and a job does what
they had to do. If it comes between two windows, it gives up after 10 s: it has ended without an error, which Spark
takes for the end of the task, and so Spark kills the one in use.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deduper.spark.standing_tasks import StandingTasks
from tests.services.spark_standalone import SPECULATES, standalone
from tests.spark.cluster import Cluster, cluster_of, run_job
from tests.spark.harness import Job
from tests.spark.test_cluster import SHARDS, check_counts, job_in
from tests.spark.test_executors_of_several_cores import numbers_of_cores

pytestmark = [pytest.mark.spark, pytest.mark.night, pytest.mark.timeout(1800)]

SMALL_WINDOWS = 3
SOON = {"spark.speculation.multiplier": "1", "spark.speculation.efficiency.enabled": "false"}
_DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two executors of three cores whose hosts have different names: Spark copies a task to another host alone."""
    directory = tmp_path_factory.mktemp("apart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with (
            standalone(directory / "spark", apart=True, cores=3) as spark,
            cluster_of(spark.url, directory / "session", {**SPECULATES, **SOON}) as cluster,
        ):
            yield cluster


def of_two_sizes(directory: Path) -> tuple[Job, Counter[str]]:
    """A window of more than 4 MB in six files, then small ones; and how often each key is there."""
    source = {"file_format": "parquet", "max_files_per_batch": 6}
    job = job_in(directory, source=source, store={"url": "file:state", "shards": SHARDS})
    often: Counter[str] = Counter()
    for number in range(6 * (1 + SMALL_WINDOWS)):
        rows = 50_000 if number < 6 else 50
        keys = [f"a key {key:030}" for key in np.random.default_rng(number).integers(0, 200_000, rows)]
        often.update(keys)
        job.add_table(pa.table({"k": keys, "t": pa.array(range(rows), pa.int64())}))
    return job, often


IMPATIENT = """
import threading
from deduper.spark import standing_tasks
threading.Timer(2.0, setattr, (standing_tasks, "_IDLE_S", standing_tasks._IDLE_S)).start()
standing_tasks._IDLE_S = 0.1
"""
"""Work, for `exec`, after which a task soon ends for want of more. Its process has other tasks later."""


def tasks_at_work(session: SparkSession) -> tuple[int, int]:
    """Tasks of the standing tasks' stage that run, copies among them, and those that have ended."""
    tracker = session.sparkContext.statusTracker()
    (stage,) = [info for number in tracker.getActiveStageIds() if (info := tracker.getStageInfo(number)) is not None]
    return stage.numActiveTasks, stage.numCompletedTasks


def run_copied(session: SparkSession, job: Job, *, is_over: bool) -> dict[str, Any]:
    """Run a job whose small windows begin when Spark copies the two tasks that are left, or when all have ended."""
    at_tasks = StandingTasks.map
    sizes: list[int] = []

    def map_(standing: StandingTasks, function: Any, payloads: Any, places: Any) -> Any:
        if len(sizes) == 3:
            two, four = len(set(standing.places)), standing.places
            at_tasks(standing, exec, ["" if number < two else IMPATIENT for number in range(len(four))], four)
            deadline = time.monotonic() + _DEADLINE_S
            while tasks_at_work(session) != (4, 2):
                assert time.monotonic() < deadline, tasks_at_work(session)
                time.sleep(0.1)
            if is_over:  # a copy has given up
                assert standing._connections is not None
                assert standing._connections.is_over.wait(_DEADLINE_S)
        sizes.append(len(payloads))
        return at_tasks(standing, function, payloads, places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandingTasks, "map", map_)
        return run_job(session, job) | {"sizes": sizes}


@pytest.mark.parametrize(
    ("is_over", "stood"),
    [(False, [False, True, True]), (True, [True, True, True])],
    ids=["while the driver waits", "between two windows"],
)
def test_copies_of_standing_tasks(is_over: bool, stood: list[bool], apart: Cluster, tmp_path: Path) -> None:
    """Their window is judged by a job, or by tasks that begin again; the next ones by standing tasks."""
    assert apart.call(numbers_of_cores) == [3, 3]
    job, often = of_two_sizes(tmp_path / "job")
    ran = apart.call(run_copied, job, is_over=is_over)
    print(f"at work: {ran['sizes']}, stood: {ran['stood']}")
    check_counts(job, often)
    assert ran["windows"] == 1 + SMALL_WINDOWS
    assert ran["jobs"] == [2, *[1] * SMALL_WINDOWS]
    assert ran["sizes"] == [4, 4, 4, 2, 2, 2]
    assert ran["stood"] == [True, True, True, *stood]
