"""The jobs of a cluster, as far as they need no session."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deduper.config.model import Config
from deduper.spark.placing import Executor
from deduper.tasks.executors.host_folder import HostFolder
from deduper.testing import Settings
from deduper.window.jobs import cluster as cluster_jobs
from deduper.window.jobs import executor_tasks
from deduper.window.jobs.cluster import ClusterJobs
from deduper.window.jobs.executor_tasks import ExecutorTasks, tasks_may_stay
from tests.deduper.kafka_configs import BASE, loaded
from tests.deduper.small_service import Trial


def test_a_copy_of_a_store_has_records_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same hosts, where each removes the earlier attempts of its own store."""
    monkeypatch.setattr(cluster_jobs, "read_plan", lambda *_: None)
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
        # The tasks end before Spark makes files of JSON.
        ({"spark.master": "local-cluster[2,1,1024]"}, "json", True),
        # The jobs that send rows beside the next window would wait for the only core.
        ({"spark.master": "local-cluster[2,1,1024]"}, "at_least_once", False),
        ({"spark.master": "yarn"}, "at_least_once", False),
        ({"spark.master": "local-cluster[2,2,1024]"}, "at_least_once", True),
        ({"spark.master": "yarn", "spark.executor.cores": "2"}, "at_least_once", True),
        ({"spark.master": "yarn", "spark.executor.cores": "2", "spark.task.cpus": "2"}, "at_least_once", False),
        ({"spark.master": "yarn", "spark.authenticate": "true"}, "parquet", False),
        ({"spark.master": "yarn", "spark.authenticate": "false"}, "parquet", True),
        ({"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}, "parquet", False),
    ],
)
def test_tasks_that_stay_are_in_the_way_of_no_job(
    settings: dict[str, str], error: str, may: bool, tmp_path: Path
) -> None:
    """And are no less safe than Spark's own."""
    assert tasks_may_stay(settings, config_with(error, tmp_path)) is may


@pytest.mark.parametrize(
    ("settings", "cores", "error", "count"),
    [
        ({"spark.master": "local-cluster[2,1,1024]"}, (1, 1), "parquet", 2),
        ({"spark.master": "spark://host:7077"}, (2, 4), "parquet", 4),
        ({"spark.master": "spark://host:7077"}, (2, 4), "json", 4),
        # Their jobs need all cores.
        ({"spark.master": "spark://host:7077"}, (2, 4), "at_least_once", 0),
        # A worker of one core, or an executor that Spark has not noted yet.
        ({"spark.master": "spark://host:7077"}, (1, 4), "parquet", 0),
        ({"spark.master": "spark://host:7077"}, (0, 4), "parquet", 0),
        ({"spark.master": "spark://host:7077"}, (), "parquet", 0),
        ({"spark.master": "spark://host:7077", "spark.task.cpus": "2"}, (2, 4), "parquet", 0),
    ],
)
def test_standing_tasks_for_whole_windows(
    settings: dict[str, str],
    cores: tuple[int, ...],
    error: str,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each core but one of an executor, unless that is its only one."""
    with closing(executor_tasks_of(settings, cores, config_with(error, tmp_path), monkeypatch)) as tasks:
        assert len(tasks.window_places()) == count


def executor_tasks_of(
    settings: dict[str, str], cores: tuple[int, ...], config: Config, monkeypatch: pytest.MonkeyPatch
) -> ExecutorTasks:
    """Tasks on executors with so many cores, which begin none."""
    executors = [Executor(str(number), "host") for number in range(len(cores))]
    known = SimpleNamespace(alive=lambda: executors, cores=lambda executor: cores[int(executor.number)])
    monkeypatch.setattr(executor_tasks, "Executors", lambda _: known)
    conf = {"spark.driver.host": "127.0.0.1"}
    given: Any = SimpleNamespace(get=conf.get, getAll=lambda: list(settings.items()))
    context: Any = SimpleNamespace(getConf=lambda: given)
    return ExecutorTasks(context, config)


@pytest.mark.parametrize(
    ("cores", "error", "port", "large", "end"),
    [
        (1, "json", "error", False, True),
        (1, "json", "error", True, True),
        (2, "json", "error", False, False),
        (2, "json", "error", True, True),
        (2, "json", "unique", True, False),
        (1, "parquet", "error", True, False),
    ],
)
def test_tasks_end_before_spark_makes_files(
    cores: int, error: str, port: str, large: bool, end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it makes any of this window, and its jobs need the cores."""
    ended: list[bool] = []
    settings = {"spark.master": f"local-cluster[2,{cores},1024]"}
    with closing(executor_tasks_of(settings, (cores,) * 2, config_with(error, tmp_path), monkeypatch)) as tasks:
        monkeypatch.setattr(tasks, "free_cores", lambda: ended.append(True))
        tasks.free_cores_to_make({port}, large=large)
        assert ended == [True] * end


def config_with(error: str, directory: Path) -> Config:
    """A configuration whose errors go to files of this format; or with a topic of this delivery."""
    if error == "at_least_once":
        return loaded(BASE, directory)
    sinks = {port: {"format": "parquet", "path": f"out/{port}"} for port in ("unique", "duplicate", "expired")}
    sections = {
        "name": "test",
        "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string"},
        "key": "k",
        "expiry": {"by": "never"},
        "store": {"url": "file:state"},
        "sinks": {**sinks, "error": {"format": error, "path": "out/error"}},
    }
    return Config.model_validate(sections, context={"base_dir": directory})
