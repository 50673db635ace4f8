"""Windows of a topic on executors: the verdicts of the three jobs, whichever executor dies; and beside what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.executors import executors
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, header, records, settings
from tests.services.kafka_traffic import read, send
from tests.spark.cluster import Cluster, cluster_of, run_job
from tests.spark.harness import PORTS

pytestmark = [pytest.mark.services, pytest.mark.timeout(1800), pytest.mark.night]

RECORDS = 600
AMID = "judge.piece.after"
"""In a worker: some shards of the window have their pieces, and no receipt of them is returned."""


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for files that let a failpoint act."""
    return tmp_path_factory.mktemp("executors")


@pytest.fixture(scope="module")
def two(armed: Path) -> Iterator[Cluster]:
    """Two executors; one dies where a piece is written, once for a file."""
    with executors(armed, {AMID: "kill-executor"}) as cluster:
        yield cluster


def topic_job(broker: Broker, directory: Path, topic: str) -> KafkaJob:
    """A job from a topic to files, a few windows of all its partitions."""
    directory.mkdir()
    files = {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS}
    sections = settings(broker, topic, {}, sinks=files, store={"url": "file:state", "shards": 4})
    sections["source"]["max_offsets_per_batch"] = 150
    return KafkaJob(directory, None, sections)


@pytest.fixture
def topic(broker: Broker, new_topic: Callable[..., str]) -> str:
    """A topic of three partitions with copies, late records and errors."""
    made = new_topic("in", partitions=3)
    send(broker.plain(), made, records(RECORDS))
    return made


def rows_of(job: KafkaJob) -> dict[str, list[dict[str, Any]]]:
    """The rows of each port in the order of the source; each record left once."""
    rows = {port: sorted(job.rows(port), key=_place) for port in PORTS}
    places = [_place(row) for of_port in rows.values() for row in of_port]
    assert len(set(places)) == len(places) == RECORDS
    assert all(rows.values()), "a port without rows proves nothing"
    return rows


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["_dedup"]["source"], row["_dedup"]["position"]


def test_verdicts_of_one_job_are_those_of_three(broker: Broker, topic: str, two: Cluster, tmp_path: Path) -> None:
    """Port, reason, window and first copy of every record."""
    small, large = topic_job(broker, tmp_path / "one", topic), topic_job(broker, tmp_path / "three", topic)
    one, three = two.call(run_job, small), two.call(run_job, large, jobs=3)
    assert one["windows"] == three["windows"] >= 4
    assert one["jobs"] == [1] * one["windows"]
    assert three["jobs"] == [3] * three["windows"]
    assert rows_of(small) == rows_of(large)


@pytest.mark.parametrize("step", ["judge", AMID, "write"])
def test_an_executor_dies(broker: Broker, topic: str, two: Cluster, armed: Path, tmp_path: Path, step: str) -> None:
    """Before, amid and after the judging of a window: the verdicts are those of a job that nobody disturbs."""
    quiet, disturbed = topic_job(broker, tmp_path / "quiet", topic), topic_job(broker, tmp_path / "killed", topic)
    two.call(run_job, quiet)
    if step == AMID:
        (armed / AMID).touch()
        ran = two.call(run_job, disturbed)
        assert not (armed / AMID).exists(), "nothing was killed"
    else:
        ran = two.call(run_job, disturbed, ("", step))
        assert ran["killed"] == 1
    assert ran["jobs"] == [1] * ran["windows"]
    assert rows_of(disturbed) == rows_of(quiet)


def test_executors_send_beside_a_window(
    broker: Broker, topic: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Each record leaves once: on executors of two cores a window is judged, and the one before is sent beside it."""
    ports = {port: new_topic(port) for port in PORTS}
    sections = settings(broker, topic, ports, store={"url": "file:state", "shards": 4})
    sections["source"]["max_offsets_per_batch"] = 150
    (tmp_path / "job").mkdir()
    job = KafkaJob(tmp_path / "job", None, sections)
    with cluster_of("local-cluster[2,2,1024]", tmp_path / "cluster") as cluster:
        ran = cluster.call(run_job, job, jobs=3)
    assert ran["windows"] >= 4
    assert ran["jobs"] == [3] * ran["windows"]
    sent = [header(record, "n") for of_port in ports.values() for record in read(broker.plain(), of_port)]
    assert sorted(int(number) for number in sent if number is not None) == list(range(RECORDS))
    assert len(sent) == RECORDS
