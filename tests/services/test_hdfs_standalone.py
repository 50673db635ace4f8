"""The job on a standalone Spark with two workers, as a user starts it: store and ports in HDFS, a worker dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.java import BRIEF
from tests.services.hdfs import Hdfs
from tests.services.hdfs_story import Story, undisturbed
from tests.services.spark_standalone import standalone

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600)]

_JVM = {"spark.executor.extraJavaOptions": " ".join(BRIEF), "spark.driver.host": "127.0.0.1"}
_AT = "judge.judged"
"""Keys are judged, and nothing is written: the worker's executor had a part of the records and verdicts, or none."""


@pytest.mark.parametrize("small", [False, True], ids=["three jobs", "one job"])
def test_a_worker_dies_and_comes_back(
    small: bool, hdfs_pair: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same four outputs as on one machine and a disk, with the executors of both workers at work."""
    windows = 10
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with standalone(tmp_path / "spark") as spark:
        job = Story.on(
            hdfs_pair,
            tmp_path / "job",
            windows,
            {_AT: "freeze"},
            master=spark.url,
            spark=_JVM,
            shards=4,
            shared_folders=True,
            small=small,
        )
        try:
            job.start()
            job.under(_AT, spark.workers[0], back_after_s=0.0)
            job.run_to_the_end()
            logs = [log.parent for log in (tmp_path / "spark").glob("work-*/app-*/*/stderr")]
            assert {folder.parent.parent.name for folder in logs} == {"work-0", "work-1"}, "one worker had no executor"
            job.check(undisturbed(tmp_path / "disk", windows))
        finally:
            print(job.table())
            job.clean_up()
