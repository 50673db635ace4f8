"""What tests do with topics: fill, read, follow, and change under a reader's feet.

Reading is by confluent-kafka without a group, from the first record there is; `committed` is read_committed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.services.kafka_broker import Broker
from tests.services.kafka_connection import Connection

_STILL_S = 15.0
_PASSING = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    # librdkafka wants a group's name and looks for its coordinator, though nothing is asked of it.
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True)
class Record:
    """One record, to be sent or read. Sent without partition, its key decides; without timestamp, the clock."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None
    offset: int | None = None


def send(connection: Connection, topic: str, records: Iterable[Record], *, deadline_s: float = 60.0) -> list[Record]:
    """Sends all, in order, each exactly once. Gives them with the partition and offset they got.

    Raises:
        KafkaException: one could not be sent.
        TimeoutError: not all were acknowledged within the deadline.
    """
    sent: list[Record | None] = []
    failed: list[KafkaError] = []
    producer = Producer(connection.confluent(enable_idempotence=True, linger_ms=5))
    for record in records:
        position = len(sent)
        sent.append(None)

        def acknowledged(error: KafkaError | None, message: Any, at: int = position, what: Record = record) -> None:
            if error is not None:
                failed.append(error)
                return
            sent[at] = Record(
                what.value,
                what.key,
                what.headers,
                message.timestamp()[1],
                message.partition(),
                message.offset(),
            )

        _produce(producer, topic, record, acknowledged)
    producer.flush(deadline_s)
    if failed:
        raise KafkaException(failed[0])
    done = [record for record in sent if record is not None]
    if len(done) < len(sent):
        raise TimeoutError(f"{len(sent) - len(done)} of {len(sent)} not acknowledged within {deadline_s:.0f} s")
    return done


def _produce(producer: Producer, topic: str, record: Record, acknowledged: Any) -> None:
    options: dict[str, Any] = {}
    if record.partition is not None:
        options["partition"] = record.partition
    if record.timestamp_ms is not None:
        options["timestamp"] = record.timestamp_ms
    while True:
        try:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                on_delivery=acknowledged,
                **options,
            )
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def read(
    connection: Connection, topic: str, *, committed: bool = True, marked_s: float = 10.0, deadline_s: float = 60.0
) -> list[Record]:
    """All records there are, ordered by (partition, offset); with `committed` up to the first open transaction.

    A committed transaction is open for readers until the broker's mark is in the partition, a moment later: what stays
    open for `marked_s` is taken for open.

    Raises:
        KafkaException: what the broker refused.
        TimeoutError: the ends were not reached within the deadline.
    """
    with Follower(connection, topic, committed=committed) as follower:
        follower.wait_for_ends(deadline_s)
        if committed:
            follower.wait_for_marks(marked_s)
        return follower.records


class Follower:
    """Reads a topic from its beginning in a thread of its own for as long as the `with` block runs.

    It outlasts a broker that is killed, restarted or frozen. Partitions are those there were at its start. When nothing
    has come for a while it asks anew from where it is, as a person would restart a reader that stands still: after a
    broker's death the client's fetching may, and whether there is more is not the client's to say.
    """

    def __init__(self, connection: Connection, topic: str, *, committed: bool = True) -> None:
        self._topic = topic
        self._connection = connection
        self._consumer = Consumer(
            connection.confluent(
                group_id="follower",
                enable_auto_commit=False,
                enable_partition_eof=True,
                # A reader whose place is gone says so; the default goes on at the end, and has lost what is between.
                auto_offset_reset="error",
                isolation_level="read_committed" if committed else "read_uncommitted",
                fetch_wait_max_ms=50,
                reconnect_backoff_max_ms=500,
            )
        )
        self._seen: list[Record] = []
        self._next: dict[int, int] = {}
        self._arrived_s: list[float] = []
        self._ends: dict[int, int] = {}
        self._partitions: list[int] = []
        self._failed: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follower of {topic}", daemon=True)

    @property
    def arrived(self) -> list[tuple[float, Record]]:
        """What was read so far in the order of arrival, each with time.time() of it."""
        return list(zip(self._arrived_s, self._seen, strict=False))

    @property
    def failure(self) -> BaseException | None:
        """What has ended the reading, if anything has."""
        return self._failed

    @property
    def records(self) -> list[Record]:
        """What was read so far, ordered by (partition, offset)."""
        return sorted(self._seen, key=lambda record: (record.partition, record.offset))

    def wait_for(self, count: int, deadline_s: float = 60.0) -> None:
        """Until this many records were read.

        Raises:
            TimeoutError: they were not within the deadline.
        """
        self._wait(lambda: len(self._seen) >= count, deadline_s, lambda: f"{len(self._seen)} of {count} records")

    def wait_for_ends(self, deadline_s: float = 60.0) -> None:
        """Until the end of every partition was met once.

        Raises:
            TimeoutError: it was not within the deadline.
        """
        self._wait(
            lambda: bool(self._partitions) and self._ends.keys() >= set(self._partitions),
            deadline_s,
            lambda: f"the ends of {sorted(self._ends)} of {self._partitions}, {len(self._seen)} records",
        )

    def wait_for_marks(self, deadline_s: float) -> None:
        """Until everything was read that the partitions had when this was called, or the time is over."""
        places = {TopicPartition(self._topic, number): OffsetSpec.latest() for number in self._partitions}
        admin = AdminClient(self._connection.confluent())
        wanted = {place.partition: answer.result(20).offset for place, answer in admin.list_offsets(places).items()}
        with contextlib.suppress(TimeoutError):
            self._wait(
                lambda: all(self._ends[number] >= end for number, end in wanted.items()), deadline_s, lambda: "open"
            )

    def __enter__(self) -> Follower:
        topics = self._consumer.list_topics(self._topic, timeout=20).topics
        if topics[self._topic].error is not None:
            raise KafkaException(topics[self._topic].error)
        self._partitions = sorted(topics[self._topic].partitions)
        self._assign()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(30)
        self._consumer.close()

    def _wait(self, is_so: Any, deadline_s: float, progress: Any) -> None:
        until = time.monotonic() + deadline_s
        while not is_so():
            if self._failed is not None:
                raise self._failed
            if time.monotonic() > until:
                raise TimeoutError(f"{self._topic}: after {deadline_s:.0f} s {progress()}")
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            heard = time.monotonic()
            while not self._ending.is_set():
                messages = self._consumer.consume(1000, timeout=0.05)
                for message in messages:
                    self._take(message)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard > _STILL_S:
                    self._assign()
                    heard = time.monotonic()
        except BaseException as exc:  # noqa: BLE001  reported by the waiting thread
            self._failed = exc

    def _assign(self) -> None:
        places = [(number, self._next.get(number, OFFSET_BEGINNING)) for number in self._partitions]
        self._consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in places])

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self._next[message.partition()] = message.offset() + 1
            headers = tuple(message.headers() or ())
            place = (message.timestamp()[1], message.partition(), message.offset())
            self._arrived_s.append(time.time())
            self._seen.append(Record(message.value(), message.key(), headers, *place))
        elif error.code() == KafkaError._PARTITION_EOF:
            self._ends[message.partition()] = message.offset()
        elif not (error.retriable() or error.code() in _PASSING):
            raise KafkaException(error)


def topic_id(broker: Broker, topic: str) -> str:
    """The id a topic has since it was made; another one after it was made again."""
    described = broker.admin().describe_topics(TopicCollection([topic]))[topic].result(20)
    return str(described.topic_id)


def end_offsets(broker: Broker, topic: str) -> dict[int, int]:
    """Of each partition the offset after its last record, open transactions included."""
    return broker.offsets(topic, OffsetSpec.latest())


def open_transactions(broker: Broker, topic: str) -> list[int]:
    """The partitions whose last records wait for the end of a transaction."""
    ends = broker.offsets(topic, OffsetSpec.latest())
    stable = broker.offsets(topic, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    return [number for number, end in ends.items() if stable[number] < end]


def start_offsets(broker: Broker, topic: str) -> dict[int, int]:
    """Of each partition the first offset that is still there."""
    return broker.offsets(topic, OffsetSpec.earliest())


def forget_before(broker: Broker, topic: str, offsets: Mapping[int, int]) -> None:
    """Records before these offsets are gone, as if they had aged out."""
    asked = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    for done in broker.admin().delete_records(asked).values():
        done.result(20)


def recreate_topic(broker: Broker, topic: str, partitions: int = 1) -> None:
    """The same name, empty, with another id."""
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions)


def committed_offsets(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """What a consumer group committed for a topic; partitions without a commit are left out."""
    numbers = broker.admin().list_topics(topic, timeout=10).topics[topic].partitions
    consumer = Consumer(broker.plain().confluent(group_id=group))
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in numbers], timeout=20)
    finally:
        consumer.close()
    return {place.partition: place.offset for place in found if place.offset >= 0}
