"""Exactly once from topic to topics while brokers, driver and workers are killed, and old drivers wake up.

Real processes: the command line, brokers, readers of committed records that read all the while. What was killed,
and how long it took to be back, stands at the end of the session.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.places.local import local_place
from tests import notes
from tests.crash import ledger
from tests.crash.kafka_scene import KafkaScene, made_traffic, once_path, problems, repeats
from tests.crash.scene import freeze_all, living, signal_all, wait_until
from tests.forked import Forked
from tests.jvm import BRIEF
from tests.processes import is_frozen
from tests.services.kafka_cluster import Cluster
from tests.services.kafka_traffic import Follower, read, send
from tests.spark.harness import PORTS

pytestmark = [pytest.mark.crash, pytest.mark.services, pytest.mark.night, pytest.mark.timeout(1200)]

RECORDS, MANY = 100_000, 12_000
DEADLINE_S = 600.0
# Of the publication; each leaves the window in another state.
PUBLISHING = (
    "window.4.committed",
    "kafka.initialised",
    "kafka.begun",
    "kafka.part",
    "kafka.sent",
    "kafka.offsets",
    "kafka.committed",
    "window.5.published",
    "window.6.half",
)
# Each slot of each port meets it.
A_WINDOW = 12
WORKER_POINTS = ("judge.drained", "tables.applied", "judge.piece.before", "piece.entered", "judge.piece.after")
# In the driver or in a worker: before records are read, beside the judging, before and while rows are written.
EXECUTOR_POINTS = ("window.1.intent", "read.spilled", "judge.judged", "write.arrived", "write.done")
# In a worker that sends.
SENDING = tuple(point for point in PUBLISHING if point.startswith("kafka."))
WAYS: dict[str, dict[str, Any]] = {
    "exactly-once": {},
    "executors": {
        "master": "local-cluster[2,2,1024]",
        "store": "file:state",
        "spark": {"spark.executor.extraJavaOptions": " ".join(BRIEF)},
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Brokers to be killed, one at a time.

    A single one that dies between a commit and its markers may forget, back again, to write them (docs/kafka.md, *What
    breaks it*): what it has promised is then not kept by Kafka.
    """
    with Cluster(tmp_path_factory.mktemp("kafka")) as three:
        yield three


@contextlib.contextmanager
def followed(scene: KafkaScene) -> Iterator[dict[str, Follower]]:
    """Readers of every port, from before the first record to the end of the block."""
    with contextlib.ExitStack() as stack:
        yield {port: stack.enter_context(follower) for port, follower in scene.followers().items()}


class BrokerKills(threading.Thread):
    """Kills a broker and starts it again, whenever readers have seen so many records more."""

    def __init__(self, cluster: Cluster, seen: Callable[[], int], at: list[int], rng: random.Random) -> None:
        super().__init__(name="broker kills", daemon=True)
        self._cluster = cluster
        self._seen = seen
        self._at = at
        self._rng = rng
        self.over = threading.Event()
        self.recoveries: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Until all kills are done, or it is over."""
        try:
            for at in self._at:
                while self._seen() < at:
                    if self.over.wait(0.02):
                        return
                self._kill()
        except BaseException as exc:  # noqa: BLE001  reported by the waiting thread
            self.failure = exc

    def _kill(self) -> None:
        victim = self._rng.choice(self._cluster.nodes)
        victim.kill()
        killed, before = time.monotonic(), self._seen()
        ledger.note_kill("broker", "broker", "kafka")
        time.sleep(self._rng.uniform(0, 1.5))
        victim.start()
        while self._seen() == before:
            if self.over.wait(0.02):
                return
        self.recoveries.append(time.monotonic() - killed)


def wait_for_end(driver: Forked, scene: KafkaScene) -> int:
    """The driver's exit code."""
    wait_until(f"the end of a driver\n{scene.log}", lambda: driver.poll() is not None, DEADLINE_S)
    assert driver.returncode is not None
    return driver.returncode


@pytest.mark.parametrize("way", WAYS)
def test_nothing_twice_and_nothing_lost_whoever_is_killed(cluster: Cluster, tmp_path: Path, way: str) -> None:
    """100,000 records, three kills each of brokers, driver and workers: every key once, every record on one port.

    With a port of at least once a window is published before the next one is read, otherwise beside it. Of two
    executors, which send, one is killed in each run that ends in a kill, too; in one run while it sends.
    """
    began = time.monotonic()
    rng = random.Random(ledger.SEED)
    traffic = made_traffic(RECORDS, rng)
    scene = KafkaScene(tmp_path / "job", broker=cluster, source=way, max_offsets=9_000, **WAYS[way]).make()
    sent = send(cluster.plain(), scene.source, traffic.records)
    first, second = rng.sample(PUBLISHING, 2)
    by_tasks = way == "executors"
    drivers = [_driver_kill(point, rng, scene, by_tasks=by_tasks) for point in (first, second)] + ["at random"]
    # One worker dies in each run that ends in a kill. Producers are opened beside the first reading, or before it.
    workers = [
        "" if "kafka.initialised" in kill else point
        for kill, point in zip(drivers, rng.sample(WORKER_POINTS, len(drivers)), strict=True)
    ]
    executors = [*rng.sample(EXECUTOR_POINTS, 2), rng.choice(SENDING)] if by_tasks else [""] * len(drivers)
    recoveries: list[float] = []
    with followed(scene) as readers:

        def seen() -> int:
            return sum(len(reader.arrived) for reader in readers.values())

        at = [int(RECORDS * (third + rng.uniform(0.05, 0.25))) for third in (0.0, 0.3, 0.6)]
        kills = BrokerKills(cluster, seen, at, rng)
        kills.start()
        killed_at = None
        try:
            for kill, worker, executor in zip([*drivers, ""], [*workers, ""], [*executors, ""], strict=True):
                armed = [kill] if "=" in kill else []
                # Hits are counted by each worker: whether one has two before its driver ends, nobody knows.
                armed += [f"{worker}=kill@1:once={once_path(scene, worker)}"] if worker else []
                armed += [f"{executor}=kill-executor@1:once={once_path(scene, executor)}"] if executor else []
                before, begun = seen(), scene.windows()
                driver = scene.start("--once", armed=",".join(armed))
                wait_until(
                    f"more records\n{scene.log}",
                    lambda driver=driver, before=before: seen() > before or driver.poll() is not None,  # type: ignore[misc]
                    DEADLINE_S,
                )
                if killed_at is not None:
                    recoveries.append(time.monotonic() - killed_at)
                    ledger.note_recovery(recoveries[-1])
                if ":on=" in kill or kill == "at random":
                    # Not while it publishes what the run before has left, and after the other victims of this one: the
                    # first window may meet none, as its tables may have been filled by the run before.
                    # Of half a dozen windows: the driver must not have ended before its time.
                    # The second one's commit waits until the first one is sent.
                    after = begun + (1 if ":on=" in kill else 2 if by_tasks else rng.choice((1, 2)))
                    wait_until(
                        "windows, a worker's and an executor's death",
                        lambda driver=driver, after=after, met=(worker, executor): (
                            driver.poll() is not None  # type: ignore[misc]
                            or (
                                scene.windows() >= after
                                and all(once_path(scene, point).exists() for point in met if point)
                            )
                        ),
                        DEADLINE_S,
                    )
                if ":on=" in kill:
                    Path(kill.partition(":on=")[2]).touch()
                if kill == "at random":
                    time.sleep(rng.uniform(0, 0.5))
                    driver.kill()
                code = wait_for_end(driver, scene)
                killed_at = time.monotonic()
                assert code == (-signal.SIGKILL if kill else 0), f"{kill}: exit code {code}\n{scene.output()}"
                if kill:
                    ledger.note_kill(kill.partition("=")[0], "driver", "kafka")
                if worker:
                    assert once_path(scene, worker).exists(), f"{worker} was never met\n{scene.output()}"
                    ledger.note_kill(worker, "worker", "kafka")
                if executor:
                    assert once_path(scene, executor).exists(), f"{executor} was never met\n{scene.output()}"
                    ledger.note_kill(executor, "executor", "kafka")
            # Readers may be behind the job: the last kill can fall between its end and theirs.
            kills.join(DEADLINE_S)
        finally:
            kills.over.set()
            kills.join(120)
            for node in cluster.nodes:
                if not node.is_running:
                    node.start()
            scene.clean_up()
        assert kills.failure is None, kills.failure
        assert len(kills.recoveries) == 3, f"{scene.log}\n{scene.output()}"
        expected = len({*traffic.keys.values()}) + len(traffic.late)
        _wait_for_readers(scene, readers, ("unique", "expired"), expected)
        afterwards = scene.read()
        for port in PORTS:
            readers[port].wait_for(len(afterwards[port]))
        meanwhile = {port: reader.records for port, reader in readers.items()}
    for what, records in (("read meanwhile", meanwhile), ("read afterwards", afterwards)):
        found = problems(sent, traffic, records)
        assert found == [], f"{what}, seed {ledger.SEED}: {found}\n{scene.log}"
    assert {port: len(records) for port, records in meanwhile.items()} == {
        port: len(records) for port, records in afterwards.items()
    }
    at_points = [kill.partition(":on=")[0] for kill in drivers]
    victims = {"drivers": at_points, "workers": workers, "executors": [executor for executor in executors if executor]}
    killed = ", ".join(f"{who} at {', '.join(points)}" for who, points in victims.items() if points)
    notes.add(
        f"Kafka, {way}: {RECORDS:,} records, {scene.windows()} windows, {time.monotonic() - began:.0f} s; "
        f"unique {len(afterwards['unique']):,}, duplicate {len(afterwards['duplicate']):,}, expired "
        f"{len(afterwards['expired']):,}, error {len(afterwards['error']):,} "
        f"({repeats(afterwards['error'])} repeats); killed: {killed}; back after a driver's death "
        f"{_shown(recoveries)}, a broker's {_shown(kills.recoveries)}"
    )


def _wait_for_readers(scene: KafkaScene, readers: Mapping[str, Follower], ports: Iterable[str], count: int) -> None:
    """Until readers have so many records of these ports; says which reader has how many of what there is."""
    assert scene.broker is not None
    deadline = time.monotonic() + 120
    while sum(len(readers[port].arrived) for port in ports) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    found = {port: len(reader.arrived) for port, reader in readers.items()}
    if sum(found[port] for port in ports) >= count:
        return
    reported = {
        port: (
            f"{found[port]} read, of {len(read(scene.broker.plain(), scene.topic(port)))} committed, "
            f"of {len(read(scene.broker.plain(), scene.topic(port), committed=False))}; failure: {reader.failure}"
        )
        for port, reader in readers.items()
    }
    raise AssertionError(f"not all {count} of {ports} are read: {reported}\n{scene.log}\n{scene.output()}")


# The second window's publication hangs at the one, and the driver dies while the third is at the other.
BESIDE = (
    ("kafka.begun", "window.0.batch"),
    ("kafka.sent", "window.1.intent"),
    ("kafka.offsets", "window.2.judged"),
    ("window.5.published", "window.3.durable"),
)


@pytest.mark.parametrize(("sending", "judging"), BESIDE)
def test_a_driver_dies_while_one_window_is_sent_and_the_next_is_judged(
    cluster: Cluster, tmp_path: Path, sending: str, judging: str
) -> None:
    """Two windows are committed, one of them is not marked, and the third is begun: nothing twice, nothing lost."""
    rng = random.Random(ledger.SEED + 3)
    traffic = made_traffic(MANY, rng)
    name = f"beside-{sending.rpartition('.')[2]}"
    scene = KafkaScene(tmp_path / "job", broker=cluster, source=name, max_offsets=MANY // 4).make()
    sent = send(cluster.plain(), scene.source, traffic.records)
    # A slot in the middle of the second window; the publication as a whole.
    nth = 2 if sending.startswith("window.") else A_WINDOW + rng.randint(2, A_WINDOW - 2)
    try:
        assert scene.run(armed=f"{sending}=hang@{nth},{judging}=kill@3") == -signal.SIGKILL, scene.output()
        ledger.note_kill(judging, "driver", "kafka")
        assert scene.windows() == 2, scene.output()
        mark = read_published(local_place(scene.config.store.path / PUBLISHED_NAME))
        assert mark is not None
        assert mark.window == 0, "the second window was to hang, and the third to wait for it"
        assert scene.run() == 0, scene.output()
    finally:
        scene.clean_up()
    assert scene.windows() >= 4
    assert problems(sent, traffic, scene.read()) == []


def _driver_kill(point: str, rng: random.Random, scene: KafkaScene, *, by_tasks: bool) -> str:
    """A failpoint that kills the driver; if tasks send, a worker does so, once there is a file."""
    if by_tasks and point in SENDING:
        return f"{point}=kill-driver:on={once_path(scene, f'driver-{point}')}"
    return f"{point}=kill@{_nth(point, rng)}"


def _nth(point: str, rng: random.Random) -> int:
    """Which hit, so that it falls into the second or third window of a run; the first may be one that is recovered."""
    if point == "kafka.initialised":
        return rng.randint(2, 9)  # Of a run's first window only: producers stay open.
    if point == "window.6.half":
        return rng.randint(3, 4)  # A start may set the mark twice.
    return rng.randint(2, 3) if point.startswith("window.") else rng.randint(A_WINDOW + 1, 2 * A_WINDOW)


def _shown(seconds: list[float]) -> str:
    return ", ".join(f"{one:.1f} s" for one in seconds)


def test_old_drivers_show_nothing_when_they_wake(cluster: Cluster, tmp_path: Path) -> None:
    """One frozen while it judges, one in an open transaction, each taken over: both end with 5, and no record more."""
    rng = random.Random(ledger.SEED + 2)
    traffic = made_traffic(MANY, rng)
    scene = KafkaScene(tmp_path / "job", broker=cluster, source="sleep", max_offsets=MANY // 3).make()
    sent = send(cluster.plain(), scene.source, traffic.records)
    try:
        judging = scene.start("--once", armed=f"judge.drained=freeze:once={once_path(scene, 'asleep')}")
        wait_until("a worker frozen", lambda: _frozen_workers(judging) or judging.poll() is not None, DEADLINE_S)
        freeze_all(judging)
        assert judging.poll() is None, scene.output()
        nth = rng.randint(A_WINDOW + 2, 2 * A_WINDOW - 2)
        sending = scene.start("--once", "--take-over", armed=f"kafka.sent=freeze@{nth}")
        wait_until("a driver frozen", lambda: is_frozen(sending.pid) or sending.poll() is not None, DEADLINE_S)
        freeze_all(sending)
        assert sending.poll() is None, scene.output()
        assert scene.windows() >= 1
        with followed(scene) as readers:
            assert scene.run("--take-over") == 0, scene.output()
            for port, records in scene.read().items():
                readers[port].wait_for(len(records))
            before = {port: len(reader.arrived) for port, reader in readers.items()}
            for driver in (judging, sending):
                woken = time.monotonic()
                signal_all(driver, signal.SIGCONT)
                wait_until("the end of a sleeper", lambda driver=driver: driver.poll() is not None, 120)  # type: ignore[misc]
                assert driver.returncode == 5, f"exit code {driver.returncode}\n{scene.output()}"
                ledger.note_stop("woken on Kafka", time.monotonic() - woken)
                wait_until("no process left", lambda driver=driver: not living(driver), 60)  # type: ignore[misc]
            after = scene.read()
            assert {port: len(records) for port, records in after.items()} == before
            assert {port: len(reader.arrived) for port, reader in readers.items()} == before
        assert problems(sent, traffic, after) == []
    finally:
        scene.clean_up()


def _frozen_workers(driver: Forked) -> bool:
    return any(is_frozen(process) for process in living(driver))
