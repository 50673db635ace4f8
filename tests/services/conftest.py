"""Servers for tests: one of a kind for all, always up."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from deduper.sources.open import session_settings
from deduper.spark.session import start_session
from tests.services.hdfs import Hdfs
from tests.services.jars import connector_settings
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, settings
from tests.spark.harness import PORTS
from tests.triggers import stand_in_unless_asked

_topics = itertools.count(1)


_USERS = {"alice": "secret-of-alice", "bob": "secret-of-bob"}
_KINDS: dict[str, Callable[[Path], Broker | Hdfs]] = {
    "broker": Broker,
    "secure_broker": lambda directory: Broker(directory, tls=True, users=_USERS),
    "hdfs": Hdfs,
    "hdfs_pair": lambda directory: Hdfs(directory, datanodes=2, early_close=True),
}


class Servers:
    """The servers of this process. With the first that is asked for, all start that its tests need, side by side."""

    def __init__(self, items: list[pytest.Item], factory: pytest.TempPathFactory) -> None:
        self._items = items
        self._factory = factory
        self._pool = ThreadPoolExecutor(len(_KINDS))
        self._made: dict[str, tuple[Any, Future[float]]] = {}

    def begun(self, name: str) -> Any:
        """A server that starts."""
        others = [one for one in _KINDS if self._are_beside(one, name) and self.are_needed(one)]
        for one in [name, *others] if name not in self._made else ():
            if one not in self._made:
                server = _KINDS[one](self._factory.mktemp(one))
                if isinstance(server, Broker):
                    server.choose_ports()
                self._made[one] = server, self._pool.submit(server.start)
        return self._made[name][0]

    def started(self, name: str) -> Any:
        """A server that answers."""
        server = self.begun(name)
        self._made[name][1].result()
        return server

    def are_needed(self, name: str) -> bool:
        """Whether a test asks for a fixture of this name, by itself or by a parameter."""
        texts = ({value for value in _parameters(item).values() if isinstance(value, str)} for item in self._items)
        fixtures = (getattr(item, "fixturenames", ()) for item in self._items)
        return any(name in asked or name in named for asked, named in zip(fixtures, texts, strict=True))

    def stop(self) -> None:
        """Stop all, side by side."""
        for server, start in self._made.values():
            start.exception()
            self._pool.submit(server.stop)
        self._pool.shutdown()

    @staticmethod
    def _are_beside(one: str, other: str) -> bool:
        """Of several processes of a run, one has the tests on HDFS and one those on Kafka (`tests/conftest.py`)."""
        return "PYTEST_XDIST_WORKER" not in os.environ or one.startswith("hdfs") == other.startswith("hdfs")


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


@pytest.fixture(autouse=True)
def _triggers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_unless_asked(request, monkeypatch)


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All of them."""
    made = Servers(request.session.items, tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, servers: Servers) -> Broker:
    """One PLAINTEXT broker for all tests. It may be killed, stopped and frozen: after the test it runs again."""
    servers.begun("broker")
    if servers.are_needed("session"):
        request.getfixturevalue("session")  # which takes as long
    return servers.started("broker")


@pytest.fixture(scope="session")
def secure_broker(servers: Servers) -> Broker:
    """A broker with TLS and SASL listeners and ACLs; users `alice` and `bob`, who may do nothing yet."""
    return servers.started("secure_broker")


@pytest.fixture(scope="session")
def hdfs(servers: Servers) -> Hdfs:
    """An HDFS with one DataNode, for all tests. Its processes may be killed and frozen: after the test they run."""
    return servers.started("hdfs")


@pytest.fixture(scope="session")
def hdfs_pair(servers: Servers) -> Hdfs:
    """The same with two DataNodes, two replicas, and files that close before the DataNodes have reported."""
    return servers.started("hdfs_pair")


@pytest.fixture(autouse=True)
def _hdfs_is_up_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that ill-treated a shared HDFS, it runs."""
    yield
    for name in {"hdfs", "hdfs_pair"} & set(request.fixturenames):
        cluster: Hdfs = request.getfixturevalue(name)
        cluster.thaw()
        cluster.start()


@pytest.fixture(autouse=True)
def _broker_is_up_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that ill-treated the shared broker, it runs."""
    yield
    if "broker" in request.fixturenames:
        _bring_up(request.getfixturevalue("broker"))


def _bring_up(broker: Broker) -> None:
    broker.thaw()
    if not broker.is_running:
        broker.start()


@pytest.fixture
def new_topic(broker: Broker) -> Iterator[Callable[..., str]]:
    """Makes topics on the shared broker, each with a name nobody else has: `new_topic("in", partitions=3)`.

    They are deleted after the test: a broker that was killed loads every partition there is before it answers.
    """
    made: list[str] = []

    def make(name: str = "topic", partitions: int = 1, **settings: str | int) -> str:
        made.append(broker.create_topic(f"{name}-{next(_topics)}", partitions, **settings))
        return made[-1]

    yield make
    _bring_up(broker)
    if made:
        broker.admin().delete_topics(made)


@pytest.fixture(scope="session")
def session(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all jobs that run in the tests' own process, with Spark's connector for other queries."""
    end_jvm()
    topics = dict.fromkeys(PORTS, "nothing")
    spark = {"spark.master": "local[2,4]", "spark.driver.memory": "1g"}
    more = settings(servers.begun("broker"), "none", topics, spark=spark)
    config = KafkaJob(tmp_path_factory.mktemp("session"), None, more).config
    started = start_session(config.name, {**session_settings(config), **connector_settings()})
    yield started
    started.stop()


def end_jvm(deadline_s: float = 30) -> None:
    """End the JVM that other tests have left: a JVM that runs takes no further jars for its driver."""
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(deadline_s)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def topics(new_topic: Callable[..., str]) -> dict[str, str]:
    """A topic for each port."""
    return {port: new_topic(port, partitions=2) for port in PORTS}
