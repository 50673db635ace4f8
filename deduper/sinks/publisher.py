"""Publishes the committed windows of one port to its Kafka topic: its slots side by side, each as one transaction.

`sinks.slot` has the protocol, docs/kafka.md its proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future

from bucket_store.places.place import Place
from deduper.errors import IntegrityError, StopRequested
from deduper.kafka.errors import ProducerFencedError, PublicationUnknownError
from deduper.kafka.retry import ThrottledLog
from deduper.sinks.publish_state import OnUnknown
from deduper.sinks.slot import CommittedWindow, Slot
from deduper.sinks.topic_sink import TransactionalSink


class KafkaPublisher:
    """Publishes the windows of one port, in order: begins one, waits for it, begins the next. For one thread.

    The slots are published on `pool`. Its threads should outlive the windows: Arrow and the C library keep memory for
    every thread that has read rows, and reuse it only slowly once the thread is gone.
    """

    def __init__(self, sink: TransactionalSink, pool: Executor) -> None:
        self._sink = sink
        self._pool = pool
        self._slots: dict[int, Slot] = {}

    def begin(
        self,
        window: int,
        record_checksum: int,
        slots: Mapping[int, Sequence[Place]],
        *,
        age_s: float = 0.0,
        unknown: OnUnknown = OnUnknown.REFUSE,
    ) -> dict[int, Future[int | None]]:
        """Begin to publish a committed window, unless it is published. Safe to repeat after any crash.

        Gives each slot's future: the rows that were sent, None when it was published before; `failure` waits for all.

        `slots` is taken from the commit record, never from today's settings: the staged files of each slot, in order.
        Windows come in order. `age_s` is how long ago the window was committed, for the case that the cluster
        has forgotten the slot's offset since; `unknown` is the operator's answer to that.

        Raises, in the futures:
            ProducerFencedError: check the epochs; if this is still the highest, call again, a few times.
            IntegrityError: another record was published under this number, or staged rows are damaged or gone.
            PublicationUnknownError: see `unknown`.
            KafkaSinkError: the operator must act, or a deadline has passed.
            StopRequested: a stop was requested while it waited for the brokers.
        """
        owners: dict[Place, set[int]] = {}
        for slot, files in slots.items():
            for file in files:
                owners.setdefault(file, set()).add(slot)
        work = CommittedWindow(window, record_checksum, slots, owners, age_s, unknown)
        throttled = ThrottledLog()
        numbers = sorted(number for number, files in slots.items() if files)
        for number in numbers:
            if number not in self._slots:
                self._slots[number] = Slot(self._sink, number)
        return {number: self._pool.submit(self._slots[number].publish, work, throttled) for number in numbers}

    def close(self) -> None:
        """Close the producers. The next owner aborts what they have not committed."""
        for slot in self._slots.values():
            slot.discard()
        self._slots.clear()


def failure(slots: Iterable[Future[int | None]]) -> BaseException | None:
    """Wait for all slots, also after one has failed; of several errors the gravest, with the others as notes."""
    errors = [error for slot in slots if (error := slot.exception()) is not None]
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
