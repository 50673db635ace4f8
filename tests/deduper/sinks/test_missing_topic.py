"""A wait for an output topic that was deleted names it: the client only says that nobody answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deduper.kafka.calls import Calls
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.retry import RetryDeadline, ThrottledLog
from deduper.sinks.transaction import OpenProducer


class Stuck:
    """A producer that sends nothing; `topics` are those of the cluster, None while it does not answer."""

    def __init__(self, topics: list[str] | None) -> None:
        self.topics = topics

    def __len__(self) -> int:
        return 7

    def flush(self, _: float) -> int:
        return 7

    def begin_transaction(self) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    def list_topics(self, timeout: float) -> Any:
        del timeout
        if self.topics is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics=self.topics)


@pytest.mark.parametrize(
    ("topics", "named"),
    [
        (["other"], "the cluster has no topic out: it was deleted; create it again"),
        (["out"], "no answer"),
        (None, "no answer"),
    ],
)
def test_a_deleted_topic_is_named(topics: list[str] | None, named: str, caplog: pytest.LogCaptureFixture) -> None:
    """Within 30 s, in the lines of the wait and in its end."""
    now = [0.0]

    def tick(_: float) -> None:
        now[0] += 1.0

    log = ThrottledLog(lambda: now[0])
    retry = RetryDeadline("sinks.unique", 60, log, clock=lambda: now[0], sleep=tick)
    producer: Any = Stuck(topics)
    sending = OpenProducer(producer, "out", 1, Calls(lambda: None))
    with pytest.raises(BrokerUnavailableError, match=f"waited 60 s for the brokers to take 7 records: {named}"):
        sending.flush(retry)
    assert named in caplog.messages[1], "20 s at most"


class Resumed(Stuck):
    """Its topic is missing until the tenth flush, which sends a record; it sends nothing more."""

    def __init__(self) -> None:
        super().__init__(["other"])
        self.flushes = 0

    def flush(self, _: float) -> int:
        self.flushes += 1
        if self.flushes < 10:
            return 7
        self.topics = ["out"]
        return 6


def test_a_topic_that_came_back_is_missing_no_more() -> None:
    """A wait after progress has causes of its own."""
    now = [0.0]

    def tick(_: float) -> None:
        now[0] += 1.0

    retry = RetryDeadline("sinks.unique", 60, ThrottledLog(), clock=lambda: now[0], sleep=tick)
    said = list[str]()
    waiting = retry.wait

    def wait(what: str, reason: str, pause_s: float = 1.0) -> float:
        said.append(reason)
        return waiting(what, reason, pause_s)

    retry.wait = wait  # type: ignore[method-assign]  # what each wait names
    producer: Any = Resumed()
    with pytest.raises(BrokerUnavailableError):
        OpenProducer(producer, "out", 1, Calls(lambda: None)).flush(retry)
    before, after = said[:9], said[9:]
    assert "was deleted" in before[-1]
    assert set(after) == {"no answer"}
