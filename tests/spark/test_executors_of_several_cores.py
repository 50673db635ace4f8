"""Windows on executors of three cores, of which standing tasks take two: the oracle's answers, whichever one dies."""

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

from deduper.spark.placing import Executors
from deduper.spark.standing_tasks import StandingTasks
from tests.spark.cluster import Cluster, cluster_of, executors, run_job
from tests.spark.harness import Job
from tests.spark.test_cluster import SHARDS, check_counts, check_stream, job_in

pytestmark = [pytest.mark.spark, pytest.mark.night, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two executors."""
    with cluster_of("local-cluster[2,3,1024]", tmp_path_factory.mktemp("two") / "session") as cluster:
        yield cluster


def numbers_of_cores(session: SparkSession) -> list[int]:
    """The cores of each executor, as soon as Spark has noted them."""
    known = Executors(session.sparkContext)
    deadline = time.monotonic() + 60
    while not all(cores := [known.cores(one) for one in known.alive()]) or len(cores) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # Spark notes an executor a moment after it has come
    return cores


def test_the_cores_of_executors(two: Cluster) -> None:
    """As Spark has them; an unknown executor has none."""
    assert two.call(numbers_of_cores) == [3, 3]


@pytest.mark.parametrize("jobs", [2, 3])
def test_several_tasks_of_an_executor_say_what_the_oracle_says(jobs: int, two: Cluster, tmp_path: Path) -> None:
    """Port, reason and first copy of every row, by standing tasks and by three jobs."""
    check_stream(two, tmp_path / "job", "event_time", "parquet", 1, jobs)


def test_windows_that_spark_reads(two: Cluster, tmp_path: Path) -> None:
    """With a secure digest; several tasks of an executor share what it has read."""
    check_stream(two, tmp_path / "job", "ordered", "json", 8, 2)


def of_many_files(directory: Path, windows: int) -> tuple[Job, Counter[str]]:
    """A job whose windows have six files each, and how often each key is there."""
    source = {"file_format": "parquet", "max_files_per_batch": 6}
    job = job_in(directory, source=source, store={"url": "file:state", "shards": SHARDS})
    often: Counter[str] = Counter()
    for number in range(6 * windows):
        keys = [f"k{key}" for key in np.random.default_rng(number).integers(0, 4000, 200)]
        often.update(keys)
        job.add_table(pa.table({"k": keys, "t": pa.array(range(200), pa.int64())}))
    return job, often


def run_counting(session: SparkSession, job: Job, kill_before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a job by standing tasks; gives also for how many tasks each call of them was."""
    asked: list[int] = []
    at_tasks = StandingTasks.map

    def noted(standing: StandingTasks, function: Any, payloads: Any, places: Any) -> Any:
        asked.append(len(payloads))
        return at_tasks(standing, function, payloads, places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandingTasks, "map", noted)
        return run_job(session, job, kill_before, jobs=2) | {"asked": asked}


@pytest.mark.parametrize("step", ["", "read", "judge", "write"])
def test_an_executor_that_is_killed_loses_no_row(step: str, two: Cluster, tmp_path: Path) -> None:
    """Before each step of a window, or none: its two tasks are lost at once."""
    two.call(numbers_of_cores)
    job, often = of_many_files(tmp_path / "job", 3)
    ran = two.call(run_counting, job, ("", step) if step else ())
    check_counts(job, often)
    assert ran["windows"] == 3
    assert ran["killed"] == bool(step)
    assert ran["jobs"][:2] == [2, 2]
    if step:
        assert ran["jobs"][2] in (2, 3)  # the new executor's cores may not be noted yet
        assert step == "write" or not all(ran["stood"])  # a worker may outlive its executor for a moment, and write
    else:
        assert ran["jobs"][2] == 2
        assert ran["asked"] == [4] * 9
        assert all(ran["stood"])
    assert two.call(executors) >= 1
