"""A whole job on HDFS, on one machine and on three executors: the same four outputs, whatever dies and whenever.

docs/guarantees.md has the seconds to the next commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.jvm import BRIEF
from tests.services.hdfs import Hdfs
from tests.services.hdfs_story import Story, undisturbed

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600), pytest.mark.night]

WINDOWS = 40
_JVM = {"spark.executor.extraJavaOptions": " ".join(BRIEF)}
CLUSTER = {"master": "local-cluster[3,1,1024]", "spark": _JVM, "shards": 4}

ON_EXECUTORS = (
    "window.1.intent",  # before records are read
    "read.spilled",
    "judge.drained",  # before judging
    "judge.piece.before",
    "judge.piece.after",
    "judge.judged",  # before writing
    "write.arrived",
    "write.done",
    "window.2.judged",  # after writing
)
WORKER, DRIVER, RECORD, PIECE, STAGED = "tables.applied", "window.4.committed", "log.open", "piece.open", "stage.open"


@pytest.fixture(scope="module")
def on_a_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[dict[str, Any]]]:
    """The outcome of the undisturbed job, which runs beside the others."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(undisturbed, tmp_path_factory.mktemp("disk") / "job", WINDOWS)


@pytest.fixture
def story(hdfs_pair: Hdfs, tmp_path: Path) -> Iterator[Callable[..., Story]]:
    """Makes stories on two DataNodes."""
    made: list[Story] = []

    def make(windows: int, armed: dict[str, str], **scene: Any) -> Story:
        made.append(Story.on(hdfs_pair, tmp_path / f"job-{len(made)}", windows, armed, **scene))
        return made[-1]

    yield make
    for one in made:
        print(one.table())
        one.clean_up()


def test_a_datanode_dies_under_a_job(
    on_a_disk: Future[dict[str, Any]], hdfs_pair: Hdfs, story: Callable[..., Story]
) -> None:
    """While a piece, a staged file and a record are written: the job goes on, and every row leaves once."""
    points = (PIECE, STAGED, RECORD)
    job = story(WINDOWS, dict.fromkeys(points, "freeze"), shards=4)
    job.start()
    for number, point in enumerate(points):
        job.under(point, hdfs_pair.datanodes[number % 2])
    job.run_to_the_end()
    assert all(one.ended_by == "goes on" for one in job.outages), job.table()
    job.check(on_a_disk.result())


@pytest.mark.parametrize("way", ["three jobs", "one job"])
def test_executors_die_over_hdfs(
    way: str,
    on_a_disk: Future[dict[str, Any]],
    hdfs_pair: Hdfs,
    story: Callable[..., Story],
) -> None:
    """Three executors, store and ports on two DataNodes: as on one machine and a disk, by both ways of a window."""
    armed = dict.fromkeys(ON_EXECUTORS, "kill-executor") | {WORKER: "kill", DRIVER: "kill"}
    armed |= dict.fromkeys((RECORD, PIECE, STAGED), "freeze")
    job = story(WINDOWS, armed, small=way == "one job", **CLUSTER)
    job.start()
    for point in ON_EXECUTORS:
        job.at(point, "executor")
    job.at(WORKER, "Python worker")
    for number, point in enumerate((PIECE, STAGED, RECORD)):
        job.under(point, hdfs_pair.datanodes[number % 2])
    job.at(DRIVER, "driver")
    job.under(RECORD, hdfs_pair.namenode, back_after_s=20)
    assert job.outages[-1].ended_by == "goes on", job.table()
    job.run_to_the_end()
    job.check(on_a_disk.result())


@pytest.mark.parametrize("scene", [{"shards": 4}, CLUSTER], ids=lambda scene: scene.get("master", "local"))
def test_without_datanodes_it_waits(
    on_a_disk: Future[dict[str, Any]], hdfs_pair: Hdfs, story: Callable[..., Story], scene: dict[str, Any]
) -> None:
    """Until one is back: what tasks could not write is judged again. The driver sees it before Spark gives them up."""
    job = story(WINDOWS, {PIECE: "freeze"}, **scene)
    job.start()
    hdfs_pair.datanodes[0].kill()
    job.under(PIECE, hdfs_pair.datanodes[1], back_when="waiting for hdfs://")
    (outage,) = job.outages
    assert outage.ended_by == "goes on", outage
    job.run_to_the_end()
    job.check(on_a_disk.result())
