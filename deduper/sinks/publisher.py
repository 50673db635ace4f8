"""Publishes the committed windows of a job to its Kafka topics: slots side by side, each as one transaction.

`sinks.slot` has the protocol, docs/kafka.md its proof. Slots are published by threads of this process, or by tasks of
Spark, which do so by threads of theirs: see `task_publisher`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from deduper.errors import IntegrityError, StopRequested
from deduper.kafka.errors import ProducerFencedError, PublicationUnknownError
from deduper.kafka.retry import ThrottledLog
from deduper.sinks.slot import CommittedWindow, Slot
from deduper.sinks.transaction import TransactionalSink

_THREADS = 8
"""At most so many slots are published at a time; each may hold 8 MB of rows, and what its producer queues."""

Outcome: TypeAlias = int | BaseException | None
"""The result of a slot: the number of rows sent, None if they were published before, or the error."""


@dataclass(frozen=True, slots=True)
class PortWork:
    """The slots of a committed window that go to one port's topic."""

    sink: TransactionalSink
    window: CommittedWindow


class Publisher(Protocol):
    """Publishes windows, in order, one after another. For one thread at a time."""

    def publish(self, works: Sequence[PortWork]) -> list[dict[int, Outcome]]:
        """Publish the slots of a committed window, unless they are published. Called in step 5, after the commit.

        Safe to repeat after any crash.

        Gives the outcome of each slot of each work. Waits for all slots, also after one has failed. The errors:

            ProducerFencedError: check the epochs; if this is still the highest, call again, a few times.
            IntegrityError: another record was published under this number, or staged rows are damaged or gone.
            PublicationUnknownError: see `CommittedWindow.unknown`.
            KafkaSinkError: the operator must act, or a deadline has passed.
            StopRequested: a stop was requested while it waited for the brokers.
        """

    def close(self) -> None:
        """Close the producers, after the last window. The next owner aborts what they have not committed."""


class ThreadPublisher:
    """A `Publisher` on threads of this process. Producers stay open from window to window.

    So do the threads: Arrow and the C library keep memory for every thread that has read rows, and reuse it slowly once
    the thread has ended.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[str, str], Slot] = {}
        self._pool = ThreadPoolExecutor(_THREADS, "kafka")

    def publish(self, works: Sequence[PortWork]) -> list[dict[int, Outcome]]:
        """See `Publisher`."""
        throttled = ThrottledLog()
        begun = [
            {
                number: self._pool.submit(self._slot(work.sink, number).publish, work.window, throttled)
                for number in sorted(work.window.slots)
            }
            for work in works
        ]
        return [{number: _outcome(future) for number, future in slots.items()} for slots in begun]

    def drop_producers(self) -> None:
        """Close the producers, and keep the threads."""
        for slot in self._slots.values():
            slot.discard()
        self._slots.clear()

    def close(self) -> None:
        """See `Publisher`."""
        self.drop_producers()
        self._pool.shutdown(cancel_futures=True)

    def _slot(self, sink: TransactionalSink, number: int) -> Slot:
        name = (sink.topic, sink.transactional_id(number))
        if name not in self._slots:
            self._slots[name] = Slot(sink, number)
        return self._slots[name]


def _outcome(future: Future[int | None]) -> Outcome:
    return future.exception() or future.result()


def failure(outcomes: Mapping[int, Outcome]) -> BaseException | None:
    """The gravest of the errors, with the others as notes; None if every slot is published."""
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, BaseException)]
    return gravest(errors) if errors else None


def gravest(errors: Sequence[BaseException]) -> BaseException:
    """The error to report, with the others as notes: a fence first, then an integrity error; a stop comes last."""
    order = (ProducerFencedError, IntegrityError, PublicationUnknownError)

    def rank(error: BaseException) -> int:
        if isinstance(error, StopRequested):
            return len(order) + 1
        return next((number for number, kind in enumerate(order) if isinstance(error, kind)), len(order))

    first = min(errors, key=rank)
    for other in errors:
        if other is not first:
            first.add_note(f"and: {other}")
    return first
