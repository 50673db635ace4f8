"""Brokers that are away while Spark reads: what counts as that, what is said, when it is given up."""

from __future__ import annotations

import logging
import threading
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import StopRequested
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.spark_failures import may_pass
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.spark.failures import innermost_cause

PASSING = [
    "java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a "
    "node assignment. Call: listNodes",
    "Job aborted due to stage failure\nCaused by: java.util.concurrent.TimeoutException: Cannot fetch record for "
    "offset 41 in 120000 milliseconds",
    "Query terminated\nCaused by: org.apache.kafka.common.errors.DisconnectException: Cancelled fetchMetadata request",
    "x\nCaused by: org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in "
    "bootstrap.servers",
]
LASTING = [
    "x\nCaused by: org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [in]",
    "x\nCaused by: org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed",
    # One of several tasks has reported the reason, the others only waited for it.
    "org.apache.kafka.common.errors.TimeoutException: Expiring 4 record(s)\nCaused by: "
    "org.apache.kafka.common.errors.RecordTooLargeException: The request included a message larger than the max",
    "org.apache.spark.SparkException: Job aborted: java.util.concurrent.TimeoutException: Futures timed out",
    "java.lang.OutOfMemoryError: Java heap space",
    "x\nCaused by: org.apache.spark.api.python.PythonException: Traceback",
]


class SparkFailure(Exception):
    """As PySpark raises it: a message, and beside it Java's stack trace."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self._stackTrace = trace


@pytest.mark.parametrize("text", PASSING)
def test_what_brokers_explain_may_pass(text: str) -> None:
    """In the message as in the trace beside it."""
    assert may_pass(SparkFailure(text))
    assert may_pass(SparkFailure("[STREAM_FAILED] Query terminated with exception", text))


@pytest.mark.parametrize("text", LASTING)
def test_what_they_do_not_explain_lasts(text: str) -> None:
    """Waiting for the brokers would hide it until the deadline."""
    assert not may_pass(SparkFailure(text))


def test_the_innermost_cause_may_stand_in_the_trace() -> None:
    """Without a cause the first line."""
    assert innermost_cause(SparkFailure("a\nb", "c\nCaused by: x.Y: why\n\tat d")) == "Y: why"
    assert innermost_cause(SparkFailure("a\nb")) == "a"


class World:
    """Brokers that are there or not, and a clock that only sleeping moves."""

    def __init__(self, deadline_s: float = 60.0) -> None:
        self.now, self.away, self.asked, self.stop = 100.0, False, 0, threading.Event()
        source = KafkaSource.model_validate(
            {
                "format": "kafka",
                "bootstrap_servers": "h:1",
                "topics": ["in"],
                "value": {"format": "text"},
                "deadline": f"{deadline_s:.0f}s",
            }
        )
        self.watch = BrokerWatch(source, self.stop, ask=self._ask, clock=lambda: self.now, sleep=self._sleep)

    def _ask(self) -> None:
        self.asked += 1
        if self.away:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "connection refused"))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


FAILURE = SparkFailure(PASSING[0])


def test_it_says_so_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """While they are away, from the second second on; never while they answer."""
    world = World()
    assert all(world.watch.is_over(FAILURE) for _ in range(20))
    assert (world.asked, caplog.messages) == (20, [])
    world.watch.progressed()
    world.away = True
    for _ in range(60):
        world.watch.is_over(FAILURE)
    assert 3 <= len(caplog.messages) <= 4
    assert all("the brokers have not answered for" in message for message in caplog.messages)
    assert caplog.records[0].levelno == logging.WARNING


def test_after_a_failure_it_waits_for_the_brokers() -> None:
    """As long as they are away; then the same may be tried again, soon but not at once."""
    world = World()
    world.away = True
    assert [world.watch.is_over(FAILURE) for _ in range(3)] == [False] * 3
    world.away = False
    before = world.now
    assert world.watch.is_over(FAILURE)
    assert world.now > before


def test_the_deadline_counts_from_the_first_failure() -> None:
    """However long the next one takes to come; a judged window restarts it."""
    world = World(deadline_s=60)
    world.away = True
    assert not world.watch.is_over(FAILURE)
    world.now += 59
    assert not world.watch.is_over(FAILURE)
    world.now += 1
    with pytest.raises(BrokerUnavailableError, match=r"source: waited 6\d s for the brokers: connection refused"):
        world.watch.is_over(FAILURE)
    world.away = False
    world.watch.progressed()
    assert world.watch.is_over(FAILURE)


def test_brokers_that_answer_and_help_nobody() -> None:
    """A failure that comes again and again has the same deadline."""
    world = World(deadline_s=60)
    assert all(world.watch.is_over(FAILURE) for _ in range(120))
    with pytest.raises(BrokerUnavailableError, match="Timed out waiting for a node assignment"):
        world.watch.is_over(FAILURE)


def test_a_fault_hours_after_another_is_another() -> None:
    """Though no window was judged in between: a topic may have had no records."""
    world = World(deadline_s=60)
    assert world.watch.is_over(FAILURE)
    world.now += 4 * 3600
    assert world.watch.is_over(FAILURE)
    world.away = True
    assert not world.watch.is_over(FAILURE)
    world.now += 60
    with pytest.raises(BrokerUnavailableError):
        world.watch.is_over(FAILURE)


def test_any_other_failure_ends_the_job() -> None:
    """As it is."""
    world = World()
    failure = SparkFailure(LASTING[0])
    for call in (world.watch.is_over, world.watch.wait_for):
        with pytest.raises(SparkFailure) as raised:
            cast("object", call(failure))
        assert raised.value is failure


def test_a_stop_ends_the_waiting() -> None:
    """Nothing of the batch is committed, and Spark must not count it as done."""
    world = World()
    world.away = True
    world.stop.set()
    with pytest.raises(StopRequested):
        world.watch.wait_for(FAILURE)
