"""Servers for tests: one of a kind for all, always up, and brokers of one's own to ill-treat at length."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from deduper.sources.open import session_settings
from deduper.spark import kafka_jars
from deduper.spark.session import start_session
from tests.services.hdfs import Hdfs
from tests.services.jars import connector_folder
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, settings
from tests.spark.harness import PORTS

_topics = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One PLAINTEXT broker for all tests. It may be killed, stopped and frozen: after the test it runs again."""
    with Broker(tmp_path_factory.mktemp("kafka")) as one:
        yield one


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS with one DataNode, for all tests. Its processes may be killed and frozen: after the test they run."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as one:
        yield one


@pytest.fixture(scope="session")
def hdfs_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """The same with two DataNodes, two replicas, and files that close before the DataNodes have reported."""
    with Hdfs(tmp_path_factory.mktemp("hdfs-pair"), datanodes=2, early_close=True) as one:
        yield one


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
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with TLS and SASL listeners and ACLs; users `alice` and `bob`, who may do nothing yet."""
    users = {"alice": "secret-of-alice", "bob": "secret-of-bob"}
    with Broker(tmp_path_factory.mktemp("secure-kafka"), tls=True, users=users) as one:
        yield one


@pytest.fixture
def new_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    """Makes started brokers of a test's own, with the arguments of `Broker`; they are gone after the test."""
    made: list[Broker] = []

    def make(**arguments: object) -> Broker:
        one = Broker(tmp_path_factory.mktemp("own-kafka"), **arguments)  # type: ignore[arg-type]
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.kill()


@pytest.fixture(scope="session")
def session(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all jobs that run in the tests' own process, with Spark's connector."""
    os.environ[kafka_jars.VARIABLE] = str(connector_folder())
    end_jvm()
    topics = dict.fromkeys(PORTS, "nothing")
    spark = {"spark.master": "local[2,4]", "spark.driver.memory": "1g"}
    more = settings(broker, "none", topics, spark=spark)
    config = KafkaJob(tmp_path_factory.mktemp("session"), None, more).config
    started = start_session(config.name, session_settings(config))
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
