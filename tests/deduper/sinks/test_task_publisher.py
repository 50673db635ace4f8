"""One Spark job after another until every slot is published: what is asked again, and when it is given up."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.places.local import local_place
from deduper.errors import StopRequested
from deduper.kafka.errors import BrokerUnavailableError, RecordRefusedError
from deduper.kafka.retry import NOTHING_LOST
from deduper.sinks import task_publisher
from deduper.sinks.publisher import Outcome, PortWork
from deduper.sinks.slot import CommittedWindow
from deduper.sinks.task_publisher import TaskPublisher
from deduper.sinks.transaction import PublisherSettings, TransactionalSink


class Rounds:
    """In place of a session of two executors: each job has the outcomes that a function gives of its slots."""

    def __init__(self, *rounds: Callable[[int], Outcome]) -> None:
        self.rounds = list(rounds)
        self.asked: list[list[list[int]]] = []
        self.sparkContext = self

    def parallelize(self, parts: list[dict[int, PortWork]], tasks: int) -> Rounds:
        """Keep the slots of each task."""
        assert len(parts) == tasks
        self.asked.append([sorted(slot for work in part.values() for slot in work.window.slots) for part in parts])
        self._parts = pickle.loads(pickle.dumps(parts))
        return self

    def map(self, _: object) -> Rounds:
        """The task itself is not run."""
        return self

    def collect(self) -> list[dict[int, dict[int, Outcome]]]:
        """The outcomes of this job."""
        outcome = self.rounds.pop(0)
        return [
            {port: {slot: outcome(slot) for slot in work.window.slots} for port, work in part.items()}
            for part in self._parts
        ]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Rounds, dict[int, Outcome]]]:
    """A publication of slots 0, 1 and 2 of one port in these jobs: what they were asked, and its outcomes."""
    monkeypatch.setattr(task_publisher, "Executors", lambda _: SimpleNamespace(alive=lambda: [1, 2]))
    file = local_place(tmp_path / "rows.parquet")

    def publish(
        *given: Callable[[int], Outcome], stop: bool = False, deadline_s: float = 60.0
    ) -> tuple[Rounds, dict[int, Outcome]]:
        session, event = Rounds(*given), Event()
        if stop:
            event.set()
        settings = PublisherSettings(deadline_s=deadline_s)
        sink = TransactionalSink("clicks", "0123", "unique", "clicks-unique", {}, settings=settings, stop=event)
        work = PortWork(sink, CommittedWindow.of(0, 1, {number: [file] for number in range(3)}))
        made: Any = session
        (outcomes,) = TaskPublisher(lambda: made, event).publish([work])
        return session, outcomes

    return publish


def away(slot: int) -> Outcome:
    """It has waited as long as a task waits."""
    return BrokerUnavailableError(f"slot {slot}: waited 35 s for the brokers: refused{NOTHING_LOST}")


def test_one_task_for_each_executor(rounds: Callable[..., tuple[Rounds, dict[int, Outcome]]]) -> None:
    """Slots are dealt to as many tasks as there are executors."""
    session, outcomes = rounds(lambda slot: slot)
    assert session.asked == [[[0, 2], [1]]]
    assert outcomes == {0: 0, 1: 1, 2: 2}


def test_slots_whose_brokers_areaway_are_sent_again(
    rounds: Callable[..., tuple[Rounds, dict[int, Outcome]]], caplog: pytest.LogCaptureFixture
) -> None:
    """By another job, so that no core is held meanwhile; those that are published are not."""
    with caplog.at_level(logging.WARNING):
        session, outcomes = rounds(lambda slot: away(slot) if slot else 7, lambda slot: slot)
    assert session.asked == [[[0, 2], [1]], [[1], [2]]]
    assert outcomes == {0: 7, 1: 1, 2: 2}
    assert "waited 35 s for the brokers: refused; 2 slots are sent again, gives up after 60 s" in caplog.text


def test_the_deadline_counts_from_the_last_progress(rounds: Callable[..., tuple[Rounds, dict[int, Outcome]]]) -> None:
    """Past it, the error of the task is the publication's."""
    session, outcomes = rounds(lambda slot: away(slot) if slot else 7, away, deadline_s=1e-9)
    assert len(session.asked) == 2
    assert outcomes[0] == 7
    assert isinstance(outcomes[1], BrokerUnavailableError)


def test_a_stop_ends_the_waiting(rounds: Callable[..., tuple[Rounds, dict[int, Outcome]]]) -> None:
    """After the job that is under way."""
    session, outcomes = rounds(away, stop=True)
    assert len(session.asked) == 1
    assert all(isinstance(outcome, StopRequested) for outcome in outcomes.values())


def test_an_error_for_the_operator_is_not_waited_over(
    rounds: Callable[..., tuple[Rounds, dict[int, Outcome]]],
) -> None:
    """Beside a slot whose brokers are away."""
    session, outcomes = rounds(lambda slot: away(slot) if slot else RecordRefusedError("too large"))
    assert len(session.asked) == 1
    assert isinstance(outcomes[0], RecordRefusedError)
