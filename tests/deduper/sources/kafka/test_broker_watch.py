"""Brokers that are away while a window is read: what is said, and when it is given up."""

from __future__ import annotations

import logging
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import IntegrityError, SourceAwayError, StopRequested
from deduper.kafka.errors import BrokerUnavailableError
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.sources.kafka.fetching import SILENCE_S


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


FAILURE = SourceAwayError("in-0, offsets 3 to 5: no record in 10 s, at 3: no answer")


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
    with pytest.raises(BrokerUnavailableError, match="no record in 10 s, at 3: no answer; nothing is lost"):
        world.watch.is_over(FAILURE)


def test_a_fetch_waits_longer_after_each_failure() -> None:
    """Up to two minutes, for brokers that slow a client down; a judged window ends it."""
    world = World(deadline_s=600)
    waits = []
    for _ in range(6):
        waits.append(world.watch.silence_s)
        world.watch.wait_for(FAILURE)
    assert waits == [SILENCE_S, 20, 40, 80, 120, 120]
    world.watch.progressed()
    assert world.watch.silence_s == SILENCE_S


def test_any_other_failure_ends_the_job() -> None:
    """As it is."""
    failure = IntegrityError("in-0, offsets 3 to 5: a batch of records is damaged")
    with pytest.raises(IntegrityError) as raised:
        World().watch.wait_for(failure)
    assert raised.value is failure


@pytest.mark.parametrize("away", [True, False])
def test_a_stop_ends_the_waiting(away: bool) -> None:
    """Nothing of the batch is committed, and Spark must not count it as done; also of brokers that give no records."""
    world = World()
    world.away = away
    world.stop.set()
    with pytest.raises(StopRequested):
        world.watch.wait_for(FAILURE)
