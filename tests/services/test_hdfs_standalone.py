"""The job on a standalone Spark, as a user starts it: store and ports in HDFS; tasks run twice, a worker dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucket_store import failpoints
from tests.jvm import BRIEF
from tests.services.hdfs import Hdfs
from tests.services.hdfs_story import Story, undisturbed
from tests.services.spark_standalone import SPECULATES, standalone

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600), pytest.mark.night]

_SPARK = {**SPECULATES, "spark.executor.extraJavaOptions": " ".join(BRIEF)}
_AT = "judge.judged"
"""Keys are judged, and nothing is written: the worker's executor had a part of the records and verdicts, or none."""
_TWICE = ("judge.piece.after", "write.done")
"""A task stands still with its piece stored, or its rows staged: Spark runs it on the other worker beside it."""


@pytest.mark.night
@pytest.mark.parametrize("small", [False, True], ids=["three jobs", "one job"])
def test_tasks_run_twice_and_a_worker_dies_and_comes_back(
    small: bool, hdfs_pair: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same four outputs as on one machine and a disk, with the executors of both workers at work."""
    windows = 10
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    armed = ",".join(f"{point}=freeze:on={tmp_path / f'job/tmp/at-{point}'}" for point in _TWICE)
    with standalone(tmp_path / "spark", apart=True) as spark:
        job = Story.on(
            hdfs_pair,
            tmp_path / "job",
            windows,
            {_AT: "freeze"},
            master=spark.url,
            spark={**_SPARK, f"spark.executorEnv.{failpoints.ENVIRONMENT}": armed},
            shards=4,
            shared_folders=True,
            small=small,
        )
        try:
            job.start()
            for point in _TWICE[: 1 if small else 2]:  # the driver writes the rows of small windows
                job.at(point, "a task that stands")
            job.under(_AT, spark.workers[0], back_after_s=0.0)
            job.run_to_the_end()
            logs = [log.parent for log in (tmp_path / "spark").glob("work-*/app-*/*/stderr")]
            assert {folder.parent.parent.name for folder in logs} == {"work-0", "work-1"}, "one worker had no executor"
            job.check(undisturbed(tmp_path / "disk", windows))
        finally:
            print(job.table())
            job.clean_up()
