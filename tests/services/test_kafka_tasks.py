"""Slots that tasks of a cluster publish: workers and executors die, tasks run twice, late, and after their driver.

`test_kafka_publisher` holds these tasks to the contract of all publishers; here is what only tasks meet.
"""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bucket_store.places.open import open_place
from deduper.errors import IntegrityError
from deduper.kafka.errors import ProducerFencedError
from deduper.sinks.publisher import PortWork, ThreadPublisher
from deduper.sinks.slot import CommittedWindow
from deduper.sinks.task_publisher import publish_here
from tests.processes import is_frozen
from tests.services.executors import ByTasks, executors
from tests.services.hdfs import Hdfs
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Follower, end_offsets, read
from tests.services.staged_windows import Job, problems, stage
from tests.spark.cluster import Cluster

pytestmark = [pytest.mark.services, pytest.mark.timeout(900), pytest.mark.night]

KILLED = {
    "kafka.initialised": "kill",
    "kafka.begun": "kill-executor",
    "kafka.part": "kill",
    "kafka.offsets": "kill-executor",
    "kafka.committed": "kill",
}
FROZEN = "kafka.sent"


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for files that let a failpoint act."""
    return tmp_path_factory.mktemp("executors")


@pytest.fixture(scope="module")
def cluster(armed: Path) -> Iterator[Cluster]:
    """Two executors; the failpoints of a publication kill a worker or its executor, one freezes the worker."""
    with executors(armed, KILLED | {FROZEN: "freeze"}) as made:
        yield made


@pytest.fixture
def new_job(broker: Broker, new_topic: Callable[..., str], tmp_path: Path, cluster: Cluster) -> Callable[..., Job]:
    """Makes jobs with a topic of three partitions and staged windows."""

    def make(windows: int = 2, slots: int = 4, rows: int = 300) -> Job:
        topic = new_topic("unique", partitions=3)
        staged = stage(tmp_path / topic, windows, slots, rows)
        return Job(staged, broker.bootstrap, topic, publishers=lambda: ByTasks(cluster))

    return make


def check(broker: Broker, job: Job) -> None:
    """A reader of committed records has each row once, unchanged and in order."""
    with Follower(broker.plain(), job.topic) as reader, contextlib.suppress(TimeoutError):
        reader.wait_for(len(job.staged.rows), 20)
    assert problems(job.staged, read(broker.plain(), job.topic)) == []


@pytest.mark.parametrize("point", KILLED)
def test_a_worker_or_an_executor_dies(broker: Broker, new_job: Callable[..., Job], armed: Path, point: str) -> None:
    """Before, in and after its transactions: Spark runs the task again, its inits end what is open; each row once."""
    job = new_job()
    (armed / point).touch()
    job.publish(job.publisher())
    assert not (armed / point).exists(), "nothing was killed"
    check(broker, job)


@contextlib.contextmanager
def frozen_task(job: Job, armed: Path, outcome: list[object]) -> Iterator[psutil.Process]:
    """Publishes the first window on a thread; a worker stands still in a transaction that has all rows of a slot."""
    (armed / FROZEN).touch()

    def publish() -> object:
        try:
            job.publish(job.publisher(), [0])
        except ProducerFencedError as exc:
            return exc
        return None

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        until = time.monotonic() + 90
        while (worker := _frozen_worker()) is None:
            assert not publishing.done(), publishing.result()
            assert time.monotonic() < until, "no worker is frozen"
            time.sleep(0.05)
        try:
            yield worker
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGCONT)
        outcome.append(publishing.result(120))


def _frozen_worker() -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        return next((one for one in psutil.Process().children(recursive=True) if is_frozen(one.pid)), None)
    return None


def publish_again_if_fenced(job: Job) -> None:
    """As an owner does whose epoch is the highest: tasks of the old one that do not stand still may begin meanwhile."""
    owner = replace(job, publishers=ThreadPublisher).publisher()
    for _ in range(5):
        with contextlib.suppress(ProducerFencedError):
            job.publish(owner)
            return
    pytest.fail("fenced again and again")


def test_a_late_task_shows_nothing(broker: Broker, new_job: Callable[..., Job], armed: Path) -> None:
    """The next owner has published this window and the next, and a task of the old one goes on: it is fenced."""
    job = new_job()
    outcome: list[object] = []
    with frozen_task(job, armed, outcome):
        publish_again_if_fenced(job)
        check(broker, job)
        before = end_offsets(broker, job.topic)
    assert isinstance(outcome[0], ProducerFencedError)
    assert end_offsets(broker, job.topic) == before
    # Its owner looks at the claims. If they are its own still, it publishes again, and finds the window published.
    job.publish(job.publisher())
    assert end_offsets(broker, job.topic) == before
    check(broker, job)


def test_a_task_runs_while_the_next_owner_publishes(broker: Broker, new_job: Callable[..., Job]) -> None:
    """A task of a driver that is gone begins late, and fences the owner's open producers: the owner begins again."""
    job = new_job(windows=3)
    owner = replace(job, publishers=ThreadPublisher).publisher()
    job.publish(owner, [0, 1])
    job.publish(job.publisher(), [0])  # the orphan: published long ago, so it sends nothing
    with pytest.raises(ProducerFencedError):
        job.publish(owner, [2])
    job.publish(owner, [2])
    check(broker, job)


def test_a_task_runs_twice_at_once(broker: Broker, new_job: Callable[..., Job], armed: Path) -> None:
    """Spark takes a living executor for lost, or speculates: what the first sends after that stays invisible."""
    job = new_job(windows=1, slots=1)
    outcome: list[object] = []
    with frozen_task(job, armed, outcome):
        again = job.publisher()
        part = PortWork(again.sink, CommittedWindow.of(0, job.staged.checksum(0), job.staged.files[0]))
        assert publish_here({0: part}) == {0: {0: len(job.staged.rows)}}
        check(broker, job)
    assert isinstance(outcome[0], ProducerFencedError)
    check(broker, job)


def staged_in(hdfs: Hdfs, job: Job) -> Job:
    """The job with its staged rows in HDFS, none on this machine."""
    moved = job.staged.moved_to(open_place(f"{hdfs.url}/{uuid.uuid4().hex[:8]}"))
    assert not list(job.staged.directory.glob("*.parquet"))
    return replace(job, staged=moved)


def test_rows_staged_in_hdfs(broker: Broker, hdfs: Hdfs, new_job: Callable[..., Job], armed: Path) -> None:
    """Executors read them there, whichever worker or executor dies; each row once."""
    job = staged_in(hdfs, new_job(windows=len(KILLED) + 1))
    publisher = job.publisher()
    job.publish(publisher, [0])
    for window, point in enumerate(KILLED, start=1):
        (armed / point).touch()
        job.publish(publisher, [window])
        assert not (armed / point).exists(), f"{point}: nothing was killed"
    check(broker, job)


def test_a_late_task_whose_rows_have_left_hdfs(broker: Broker, hdfs: Hdfs, new_job: Callable[..., Job]) -> None:
    """Of a published window it sends nothing and needs no file; of one that is not, it fails, and nothing is sent."""
    job = staged_in(hdfs, new_job(windows=2, slots=1))
    publisher = job.publisher()
    job.publish(publisher, [0])
    first = sum(window == 0 for window, _, _ in job.staged.rows)
    with Follower(broker.plain(), job.topic) as reader:
        reader.wait_for(first)  # a commit returns before its markers are in the log
    before = end_offsets(broker, job.topic)
    for window in job.staged.files:
        for file in window[0]:
            file.remove()
    job.publish(publisher, [0])
    with pytest.raises(IntegrityError, match="gone"):
        job.publish(publisher, [1])
    assert end_offsets(broker, job.topic) == before
    assert len(read(broker.plain(), job.topic)) == first
