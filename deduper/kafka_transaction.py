"""A slot's producer, and how rows and the offset go into its transactions.

No delivery callbacks: a record that could not be delivered fails its transaction, and librdkafka names the cause.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from deduper.bounded_call import HungError, bounded
from deduper.kafka_calls import HUNG_S, STEP_S, Calls
from deduper.kafka_errors import RecordRefusedError
from deduper.kafka_fates import Fate, client_errors, error_of, fate_of
from deduper.patience import Patience
from deduper.publication import Position
from deduper.staged_records import Record

_OFFSETS_HUNG_S = 6.0  # The one call that is known to hang; it takes milliseconds.


@dataclass(slots=True)
class OpenProducer:
    """A producer that has fenced its predecessors, and what is known of its slot. For one thread at a time.

    `looked` is False until it was asked how far the slot has published, and after every failure; `position` and `group`
    are the answer. `since` is when its transaction was begun, while there is one.
    """

    producer: Producer
    topic: str
    partitions: int
    calls: Calls
    group: Any = None
    looked: bool = False
    position: Position | None = None
    since: float | None = None

    def begin(self) -> None:
        """Open a transaction."""
        self.producer.begin_transaction()
        self.since = time.monotonic()

    def send(self, batch: Sequence[Record], spread: int, patience: Patience, subject: str) -> None:
        """Hand rows to the producer, as fast as it takes them; rows without a key go to partition `spread`, modulo."""
        produce, topic = self.producer.produce, self.topic
        for key, value, headers, timestamp_ms in batch:
            while True:
                try:
                    if key is None:
                        partition = spread % self.partitions
                        produce(topic, value, partition=partition, timestamp=timestamp_ms, headers=headers)
                    else:
                        produce(topic, value, key, timestamp=timestamp_ms, headers=headers)
                    break
                except BufferError:
                    if not len(self.producer):
                        raise RecordRefusedError(
                            f"{subject}: a record of {len(value or b''):,} bytes does not fit into the client's "
                            "queue; raise kafka.buffer.memory"
                        ) from None
                    self._drain(patience, enough=len(self.producer) // 2)
                except KafkaException:
                    self._raise_failure()
                    raise
        self.producer.poll(0)

    def flush(self, patience: Patience) -> None:
        """Wait until the brokers have every row."""
        self._drain(patience, enough=0)

    def send_position(self, position: Position, patience: Patience) -> None:
        """The slot's offset, into the same transaction."""
        offset = TopicPartition(self.topic, 0, position.offset, metadata=position.metadata)
        self.calls.again(
            lambda: self.producer.send_offsets_to_transaction([offset], self.group, STEP_S),
            "the group's coordinator",
            patience,
            _OFFSETS_HUNG_S,
        )

    def commit(self, position: Position, patience: Patience) -> None:
        """Make rows and offset visible. A commit that ran into its time is asked again, never aborted: it may have
        happened.
        """
        self.calls.again(lambda: self.producer.commit_transaction(STEP_S), "the commit", patience)
        self.since = None
        self.position = position

    def abort(self, patience: Patience) -> Fate:
        """Abort the open transaction: ABORT when it is, FENCED, or RENEW when this producer cannot any more."""
        try:
            self.calls.again(lambda: self.producer.abort_transaction(STEP_S), "the abort", patience)
        except KafkaException as exc:
            return Fate.FENCED if fate_of(error_of(exc)) is Fate.FENCED else Fate.RENEW
        except HungError:
            return Fate.RENEW
        self.since = None
        return Fate.ABORT

    def abort_once(self) -> Exception | None:
        """Abort what is open, if that is a matter of seconds; why not, otherwise: then whoever comes next does it."""
        if self.since is None:
            return None
        try:
            with client_errors():
                bounded(lambda: self.producer.abort_transaction(STEP_S), HUNG_S, "the abort")
        except (KafkaException, HungError) as exc:
            return exc
        return None

    def _drain(self, patience: Patience, enough: int) -> None:
        before = len(self.producer)
        while before > enough:
            if enough:
                self.producer.poll(0.05)
                left = len(self.producer)
            else:
                left = self.producer.flush(1.0)
            if left < before:
                patience.forward()
            else:
                # In a transaction that has failed nothing is sent any more.
                self._raise_failure()
                patience.wait(f"the brokers to take {left} records", self.calls.said(), pause_s=0)
            before = left

    def _raise_failure(self) -> None:
        """Raise why the transaction has failed, if it has.

        There is no question for it; but beginning once more is refused at once and without effect, with the cause.
        """
        try:
            self.producer.begin_transaction()
        except KafkaException as exc:
            if error_of(exc).code() != KafkaError._STATE:
                raise
