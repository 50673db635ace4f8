"""A Spark of several executors on this machine, in a process of its own: this one may have a session already."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from deduper.sources.open import session_settings
from deduper.spark.placing import Executors
from deduper.spark.session import start_session
from deduper.spark_promises import EXECUTOR_JAVA_OPTIONS
from deduper.window.jobs import cluster as cluster_jobs
from deduper.window.jobs.cluster import ClusterRun, ExecutorTasks
from tests.jvm import BRIEF
from tests.spark.harness import Job

_T = TypeVar("_T")
_TIMEOUT_S = 900
_DEADLINE_S = 180.0


class Cluster:
    """The session of a master such as `local-cluster[2,1,1024]`. Functions that it runs are of modules."""

    def __init__(self, master: str, directory: Path, spark: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, master, directory, spark))
        self._process.start()

    def call(self, function: Callable[..., _T], *args: Any, **named: Any) -> _T:
        """The function's result for the session and these arguments."""
        self._pipe.send((function, args, named))
        assert self._pipe.poll(_TIMEOUT_S), "no answer"
        result, failure = self._pipe.recv()
        if failure:
            pytest.fail(failure)
        given: _T = result
        return given

    def close(self) -> None:
        """End it."""
        self._pipe.send(None)
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, master: str, directory: Path, more: Mapping[str, str]) -> None:
    directory.mkdir()
    spark = {"spark.master": master, EXECUTOR_JAVA_OPTIONS: " ".join(BRIEF), **more}
    # Executors of a standalone master are on this machine too.
    shared = [str(directory)] if master.startswith("spark:") else []
    job = Job(directory, None, {"spark": spark, "store": {"url": "file:state"}, "shared_folders": shared})
    session = start_session(job.config.name, session_settings(job.config))
    while (asked := pipe.recv()) is not None:
        function, args, named = asked
        try:
            pipe.send((function(session, *args, **named), None))
        except BaseException:  # noqa: BLE001  told to the test
            pipe.send((None, traceback.format_exc()))
    work = Path(_find_spark_home(), "work", str(session.sparkContext.applicationId))
    session.stop()
    shutil.rmtree(work, ignore_errors=True)  # the executors' logs, which Spark leaves in its own folder


def executor_processes() -> list[psutil.Process]:
    """The executors of this process's session, oldest first."""
    below = psutil.Process().children(recursive=True)
    found = [one for one in below if one.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]
    return sorted(found, key=psutil.Process.create_time)


def executors(session: SparkSession, at_least: int = 0) -> int:
    """How many the session has, as soon as it has so many: an earlier test may have killed one."""
    known, deadline = Executors(session.sparkContext), time.monotonic() + _DEADLINE_S
    while (found := len(known.alive())) < at_least:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)  # Spark tells Python of no executor that comes
    return found


def run_job(
    session: SparkSession, job: Job, kill_before: tuple[str, ...] = (), *, jobs: int = 1, **arguments: Any
) -> dict[str, Any]:
    """Run a job. `kill_before` names, for each window from the first, the step before which an executor is killed.

    `jobs` 3: its small windows have the three jobs of a large one. Gives its windows, for each the processes that
    judged the shards and the number of its jobs, and how many executors were killed.
    """
    job.session = session
    ran_on: list[dict[int, str]] = []
    took: list[int] = []
    steps = list(kill_before)
    killed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        note = ExecutorTasks.judged_on
        patch.setattr(ExecutorTasks, "judged_on", lambda tasks, where: ran_on.append(where) or note(tasks, where))
        if jobs == 3:
            patch.setattr(cluster_jobs, "is_small", lambda _: False)
        for number, name in ((1, "_judge_given"), (3, "_judge_shuffled")):
            patch.setattr(ClusterRun, name, _noted(took, number, getattr(ClusterRun, name)))
        for step in ("read", "judge", "write"):
            patch.setattr(ClusterRun, step, _killing(step, getattr(ClusterRun, step), steps, killed))
        summary = job.run(**arguments)
    return {"windows": summary.windows, "ran_on": ran_on, "jobs": took, "killed": len(killed)}


def _noted(took: list[int], number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        took.append(number)
        return function(*args)

    return run


def _killing(step: str, function: Callable[..., Any], steps: list[str], killed: list[int]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if steps and steps[0] == step:
            victim = executor_processes()[0]
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(victim.pid)
        if steps and step == "write":
            steps.pop(0)
        return function(*args)

    return run


@contextmanager
def cluster_of(master: str, directory: Path, spark: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster for the tests of a module; `spark` has more of its settings."""
    cluster = Cluster(master, directory, spark or {})
    try:
        yield cluster
    finally:
        cluster.close()
