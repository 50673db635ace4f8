"""One Spark session for all tests of the real job; a job of one's own for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from deduper.sources.open import session_settings
from deduper.spark.installed import RELEASE
from deduper.spark.session import start_session
from deduper.window.jobs.local import SparkRun
from tests.spark.harness import Job
from tests.triggers import stand_in_unless_asked


@pytest.fixture(autouse=True)
def _triggers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_unless_asked(request, monkeypatch)


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as the job starts one, with a second attempt at a task: Spark in local mode has none otherwise."""
    if pyspark.__version__ == RELEASE:
        job = Job(tmp_path_factory.mktemp("session"), None, {"spark": {"spark.master": "local[2,2]"}})
        started = start_session(job.config.name, session_settings(job.config))
    else:  # as a user of another release has one, for the tests of `Deduper`
        started = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false").getOrCreate()
    yield started
    if SparkContext._active_spark_context is started.sparkContext:  # tests of services end a JVM they have not started
        started.stop()


@pytest.fixture
def new_job(tmp_path: Path, session: SparkSession) -> Callable[..., Job]:
    """Makes jobs, each in a directory of its own below the test's."""

    def make(name: str = "job", **settings: Any) -> Job:
        directory = tmp_path / name
        directory.mkdir()
        return Job(directory, session, settings)

    return make


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many times the files of a window were read by the driver, and by tasks."""
    counted: Counter[str] = Counter()
    read = SparkRun.read

    def counting(run: SparkRun, *arguments: Any) -> Any:
        found = read(run, *arguments)
        counted["driver" if run._is_small else "tasks"] += 1
        return found

    monkeypatch.setattr(SparkRun, "read", counting)
    return counted
