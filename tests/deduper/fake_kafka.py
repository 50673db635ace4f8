"""A Kafka cluster as far as a transactional producer sees it, in this process: transactions, fences, offsets, faults.

What a transaction has sent is visible when it is committed, together with its offset; a producer that was initialised
later fences all earlier ones of its name. `Cluster.fail` makes a call fail, before or after it has done its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition


def failure(code: int = KafkaError._FAIL, **flags: bool) -> KafkaException:
    """An error as the client raises it; `flags` are `fatal`, `retriable` and `txn_requires_abort`."""
    return KafkaException(KafkaError(code, f"code {code}", **flags))


TIMED_OUT = KafkaError._TIMED_OUT
FENCED = KafkaError._FENCED


@dataclass(frozen=True)
class Sent:
    """A record as it lies in the topic; `partition` is None where its key decides."""

    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Any
    timestamp: int


@dataclass
class Cluster:
    """What is in the topic, how far each group has committed, and what is to go wrong.

    `calls` are the names of all calls in order. `room` is how many records a producer's queue takes.
    """

    topic: str = "unique"
    partitions: int = 3
    room: int = 1000
    visible: list[Sent] = field(default_factory=list)
    offsets: dict[str, tuple[int, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)
    topic_errors: list[KafkaError] = field(default_factory=list)
    _faults: list[tuple[str, int, bool, Callable[[], object]]] = field(default_factory=list)

    def fail(self, call: str, error: BaseException, *, nth: int = 1, done: bool = False) -> None:
        """Let the n-th call of this name from now on fail; with `done`, after it has done its work."""

        def raise_it() -> None:
            raise error

        self.act(call, raise_it, nth=nth, done=done)

    def act(self, call: str, action: Callable[[], object], *, nth: int = 1, done: bool = False) -> None:
        """Do something in the n-th call of this name from now on, before its work or after it."""
        self._faults.append((call, self.calls.count(call) + nth, done, action))

    def forget_faults(self) -> None:
        """All goes well from now on."""
        self._faults.clear()

    def called(self, call: str) -> None:
        """Note a call, and let it fail when it is to."""
        self.calls.append(call)
        self.strike(call, done=False)

    def strike(self, call: str, *, done: bool) -> None:
        """What is to happen in this call, before or after its work."""
        for fault in list(self._faults):
            if fault[:3] == (call, self.calls.count(call), done):
                self._faults.remove(fault)
                fault[3]()

    def producer(self, options: dict[str, Any], logger: Any = None) -> Producer:
        """In place of `confluent_kafka.Producer`."""
        self.called("producer")
        made = Producer(self, options)
        self.producers.append(made)
        return made

    def consumer(self, options: dict[str, Any], logger: Any = None) -> Consumer:
        """In place of `confluent_kafka.Consumer`."""
        return Consumer(self, options["group.id"])


def sending(producer: Producer, topic: str, rows: pa.RecordBatch, partition: int) -> Callable[[int], int]:
    """In place of `sinks.row_sender.sending`."""
    records = rows.to_pylist()

    def send(begin: int) -> int:
        for number, record in enumerate(records[begin:], begin):
            key, headers = record["key"], [(one["key"], one["value"]) for one in record["headers"] or []]
            place = {} if key is not None else {"partition": partition}
            try:
                producer.produce(
                    topic, record["value"], key, timestamp=record["timestamp_ms"], headers=headers, **place
                )
            except BufferError:
                return number
        return len(records)

    return send


class Consumer:
    """Tells what a group has committed."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group

    def poll(self, timeout: float) -> None:
        """No events."""

    def committed(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        """The group's offset."""
        self._cluster.called("look")
        (place,) = places
        offset, metadata = self._cluster.offsets.get(self._group, (-1001, ""))
        return [TopicPartition(place.topic, place.partition, offset, metadata=metadata)]

    def consumer_group_metadata(self) -> str:
        """What a transaction is to be given."""
        return self._group

    def close(self) -> None:
        """Nothing to release."""


class Producer:
    """A transactional producer. `failed` is why its transaction cannot be committed any more.

    `words` are what it has to say of its connections; it says them when it is polled.
    """

    def __init__(self, cluster: Cluster, options: dict[str, Any]) -> None:
        self.options = options
        self.failed: KafkaException | None = None
        self.purged = False
        self.words: list[KafkaError] = []
        self._cluster = cluster
        self._epoch = 0
        self._is_open = False
        self._queue: list[Sent] = []
        self._delivered: list[Sent] = []
        self._offset: tuple[str, int, str] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def _name(self) -> str:
        return str(self.options["transactional.id"])

    def init_transactions(self, timeout: float) -> None:
        """Fences all earlier ones."""
        self._cluster.called("init")
        self._epoch = self._cluster.epochs[self._name] = self._cluster.epochs.get(self._name, 0) + 1
        self._cluster.strike("init", done=True)

    def list_topics(self, topic: str = "unique", timeout: float = 0.0) -> Any:
        """The topic, and what is wrong with it."""
        self._cluster.called("list")
        error = self._cluster.topic_errors.pop(0) if self._cluster.topic_errors else None
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=error, partitions=dict.fromkeys(range(self._cluster.partitions)))}
        )

    def begin_transaction(self) -> None:
        """Refused while one is open, with the cause when that one has failed."""
        self._cluster.called("begin")
        if self.failed is not None:
            raise self.failed
        if self._is_open:
            raise failure(KafkaError._STATE)
        self._is_open = True

    def produce(self, topic: str, value: bytes, key: bytes | None = None, **more: Any) -> None:
        """Into the queue, while there is room."""
        self._cluster.called("produce")
        assert self._is_open, "a record outside a transaction"
        assert topic == self._cluster.topic
        if self.failed is not None:
            raise failure(KafkaError._STATE)
        if len(self._queue) >= self._cluster.room:
            raise BufferError
        self._queue.append(Sent(key, value, more.get("partition"), more["headers"], more["timestamp"]))

    def poll(self, timeout: float) -> None:
        """Says what it has to say, and delivers one record, if there is time for it."""
        assert 0 <= timeout < 0.1, "nothing is to wait for words"
        self._cluster.called("poll")
        while self.words:
            self.options["error_cb"](self.words.pop(0))
        if timeout and self.failed is None and self._queue:
            self.deliver_one()

    def deliver_one(self) -> None:
        """The brokers have one record more."""
        self._delivered.append(self._queue.pop(0))

    def flush(self, timeout: float) -> int:
        """Delivers all; gives how many are left."""
        assert 0 < timeout <= 1, "what is waited for is to be said"
        self._cluster.called("flush")
        if self.failed is None:
            self._delivered += self._queue
            self._queue.clear()
        return len(self._queue)

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], group: str, timeout: float) -> None:
        """With the transaction."""
        self._cluster.called("offsets")
        self._demand_unfenced()
        assert self._is_open
        (offset,) = offsets
        assert (offset.topic, offset.partition) == (self._cluster.topic, 0)
        self._offset = group, offset.offset, offset.metadata
        self._cluster.strike("offsets", done=True)

    def commit_transaction(self, timeout: float) -> None:
        """All becomes visible. A commit that was made and not answered is answered the second time."""
        self._cluster.called("commit")
        self._demand_unfenced()
        assert not self._queue, "records that the brokers do not have"
        if self._is_open:
            assert self._offset is not None
            self._cluster.visible += self._delivered
            group, offset, metadata = self._offset
            self._cluster.offsets[group] = offset, metadata
            self._end()
        self._cluster.strike("commit", done=True)

    def abort_transaction(self, timeout: float) -> None:
        """None of it ever was."""
        self._cluster.called("abort")
        self._demand_unfenced()
        self._end()
        self._queue.clear()
        self.failed = None

    def purge(self) -> None:
        """Forgets what it has not sent."""
        self._cluster.called("purge")
        self.purged = True
        self._queue.clear()

    def _end(self) -> None:
        self._is_open, self._delivered, self._offset = False, [], None

    def _demand_unfenced(self) -> None:
        if self._cluster.epochs[self._name] != self._epoch:
            raise failure(FENCED, fatal=True)


def hang() -> None:
    """For longer than the tests' bound on calls that hang."""
    time.sleep(0.5)
