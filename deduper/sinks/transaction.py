"""The exactly-once sink of one port, a slot's producer, and how rows and the offset go into its transactions.

No delivery callbacks: a record that could not be delivered fails its transaction, and librdkafka names the cause.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from deduper.kafka.calls import HUNG_S, STEP_S, Calls, HungError, bounded
from deduper.kafka.error_actions import ErrorAction, action_of, client_errors, error_of
from deduper.kafka.errors import RecordRefusedError
from deduper.kafka.retry import RetryDeadline
from deduper.sinks.publish_state import Position
from deduper.sinks.row_sender import sending
from deduper.units import counted


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Times and sizes of a publisher; the published rows do not depend on them.

    `transaction_timeout_s` must cover the sending of one slot of the largest window. Longer is not better: if a driver
    dies and is not replaced, readers of the topic get nothing for so long.
    """

    deadline_s: float = 300.0
    transaction_timeout_s: float = 600.0
    queue_bytes: int = 64 << 20
    offsets_retention_s: float | None = None


@dataclass(frozen=True, slots=True)
class TransactionalSink:
    """One port's topic and the connection to it; `client` has librdkafka's options.

    `keep_order`: rows without a key go to the same partition as long as their slot is the same, so that they too stay
    in order; otherwise to another one each window, which spreads them. Rows with a key go where Kafka's Java client
    sends them (murmur2), whatever the slot.
    """

    job: str
    store_id: str
    port: str
    topic: str
    client: Mapping[str, str]
    keep_order: bool = False
    settings: PublisherSettings = PublisherSettings()
    stop: Event | None = None

    def transactional_id(self, slot: int) -> str:
        """The name of a slot's producer and of its consumer group."""
        return f"{self.job}/{self.store_id}/{self.port}/{slot}"

    def producer_options(self, name: str) -> dict[str, Any]:
        """The options of a producer: the user's go first, except where the protocol needs one."""
        defaults = {
            "linger.ms": 20,
            "queue.buffering.max.kbytes": max(1, self.settings.queue_bytes >> 10),
            "queue.buffering.max.messages": 100_000,
            # The topic's own limit decides, and its error names the topic.
            "message.max.bytes": min(self.settings.queue_bytes, 64 << 20),
            # A record waits as long as its transaction may: the deadline is ours.
            "message.timeout.ms": self.transaction_timeout_ms,
        }
        fixed = {
            "transactional.id": name,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
        }
        return {**defaults, **self.client, **fixed}

    @property
    def transaction_timeout_ms(self) -> int:
        """After how long the broker aborts an open transaction."""
        return int(self.client.get("transaction.timeout.ms", self.settings.transaction_timeout_s * 1000))


_OFFSETS_HUNG_S = 6.0  # The one call that is known to hang; it takes milliseconds.
_ASK_EVERY_S = 5.0
_STUCK_S = 20.0
"""A producer that makes no progress for so long is replaced. If the brokers are away, the next one waits for them.

A producer whose coordinator was killed may wait for ever for the end of its transaction, although the broker is back.
"""


@dataclass(slots=True)
class OpenProducer:
    """A producer that has fenced all earlier ones, with its slot's position. For one thread at a time.

    `has_position` is False until `position` and `group` were read, and after every failure. `since` is when its
    transaction was begun, while there is one.
    """

    producer: Producer
    topic: str
    partitions: int
    calls: Calls
    group: Any = None
    has_position: bool = False
    position: Position | None = None
    since: float | None = None

    def begin(self) -> None:
        """Open a transaction."""
        self.producer.begin_transaction()
        self.since = time.monotonic()

    def send(self, batch: pa.RecordBatch, spread: int, retry: RetryDeadline, subject: str) -> None:
        """Hand rows to the producer, as fast as it takes them; rows without a key go to partition `spread`, modulo."""
        send, row = sending(self.producer, self.topic, batch, spread % self.partitions), 0
        while True:
            try:
                row = send(row)
            except KafkaException:
                self._raise_failure()
                raise
            if row == batch.num_rows:
                break
            if not len(self.producer):
                size = len(batch.column("value")[row].as_py() or b"")
                raise RecordRefusedError(
                    f"{subject}: a record of {size:,} bytes does not fit into the client's queue; raise "
                    "kafka.buffer.memory"
                )
            self._drain(retry, enough=len(self.producer) // 2)
        self.producer.poll(0)

    def flush(self, retry: RetryDeadline) -> None:
        """Wait until the brokers have every row."""
        self._drain(retry, enough=0)

    def send_position(self, position: Position, retry: RetryDeadline) -> None:
        """The slot's offset, into the same transaction."""
        offset = TopicPartition(self.topic, 0, position.offset, metadata=position.metadata)
        self.calls.again(
            lambda: self.producer.send_offsets_to_transaction([offset], self.group, STEP_S),
            "the group's coordinator",
            retry,
            hung_s=_OFFSETS_HUNG_S,
            stuck_s=_STUCK_S,
        )

    def commit(self, position: Position, retry: RetryDeadline) -> None:
        """Make rows and offset visible. A commit that timed out is repeated, never aborted: it may have happened."""
        self.calls.again(lambda: self.producer.commit_transaction(STEP_S), "the commit", retry, stuck_s=_STUCK_S)
        self.since = None
        self.position = position

    def abort(self, retry: RetryDeadline) -> ErrorAction:
        """Abort the open transaction: ABORT when it is aborted, FENCED, or RECREATE when this producer cannot."""
        try:
            self.calls.again(lambda: self.producer.abort_transaction(STEP_S), "the abort", retry, stuck_s=_STUCK_S)
        except KafkaException as exc:
            return ErrorAction.FENCED if action_of(error_of(exc)) is ErrorAction.FENCED else ErrorAction.RECREATE
        except HungError:
            return ErrorAction.RECREATE
        self.since = None
        return ErrorAction.ABORT

    def abort_once(self) -> Exception | None:
        """Abort an open transaction if that takes seconds; else gives the error, and the next producer aborts it."""
        if self.since is None:
            return None
        try:
            with client_errors():
                bounded(lambda: self.producer.abort_transaction(STEP_S), HUNG_S, "the abort")
        except (KafkaException, HungError) as exc:
            return exc
        return None

    def _drain(self, retry: RetryDeadline, enough: int) -> None:
        before, missing, asked_s = len(self.producer), "", 0.0
        while before > enough:
            if enough:
                self.producer.poll(0.05)
                left = len(self.producer)
            else:
                left = self.producer.flush(1.0)
            if left < before:
                retry.progressed()
                missing, asked_s = "", 0.0
            else:
                # A failed transaction sends nothing more.
                self._raise_failure()
                cause = missing or self.calls.cause()
                records = counted(left, "record")
                waited = retry.wait(f"the brokers to take {records}", cause, pause_s=0)
                if waited - asked_s > _ASK_EVERY_S:
                    missing, asked_s = self._missing_topic(), waited
            before = left

    def _missing_topic(self) -> str:
        """In words, if the cluster answers and has no such topic; the client only waits for it."""
        try:
            topics = self.producer.list_topics(timeout=STEP_S).topics  # all: the question for one could create it
        except KafkaException:
            return ""
        return "" if self.topic in topics else f"the cluster has no topic {self.topic}: it was deleted; create it again"

    def _raise_failure(self) -> None:
        """Raise the cause if the transaction has failed.

        The client has no call for the cause, but refuses a second begin at once, without effect and with the cause.
        """
        try:
            self.producer.begin_transaction()
        except KafkaException as exc:
            if error_of(exc).code() != KafkaError._STATE:
                raise
