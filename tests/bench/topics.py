"""Topics of one run on a cluster that others may use too: created under a name of its own, deleted at the end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from deduper.errors import UsageError

_DEADLINE_S = 60.0
_QUEUED = 200_000


class Topics:
    """A context manager. Not for several threads."""

    def __init__(self, bootstrap: str) -> None:
        """`bootstrap` are brokers without login.

        Raises:
            UsageError: they do not answer.
        """
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        try:
            self._admin.list_topics(timeout=20)
        except KafkaException as exc:
            raise UsageError(f"--bootstrap-servers {bootstrap}: no broker answers within 20 s") from exc
        self._prefix = f"deduper-bench-{secrets.token_hex(4)}"
        self._partitions: dict[str, int] = {}
        self._producer: Producer | None = None

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, *_: object) -> None:
        if self._partitions:
            for done in self._admin.delete_topics(list(self._partitions)).values():
                done.exception(_DEADLINE_S)

    def create(self, name: str, partitions: int, settings: Mapping[str, str] | None = None) -> str:
        """An empty topic; gives its whole name."""
        topic = f"{self._prefix}-{len(self._partitions)}-{name}"
        new = NewTopic(topic, num_partitions=partitions, config=dict(settings or {}))
        for done in self._admin.create_topics([new]).values():
            done.result(_DEADLINE_S)
        self._partitions[topic] = partitions
        until = time.monotonic() + _DEADLINE_S
        # The controller has it; a broker may take a moment longer.
        while not self._admin.list_topics(topic, timeout=20).topics[topic].partitions:
            if time.monotonic() > until:
                raise TimeoutError(f"topic {topic} has no partition after {_DEADLINE_S:.0f} s")
            time.sleep(0.05)
        return topic

    def send(self, topic: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Send records, to each partition in turn."""
        producer, partitions = self._sender(), self._partitions[topic]
        failed: list[KafkaError] = []

        def acknowledged(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            while True:
                try:
                    producer.produce(topic, value, key, number % partitions, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(_DEADLINE_S) or failed:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))

    def forget(self, topic: str) -> None:
        """Delete the records that a topic has now."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = {TopicPartition(topic, number): latest for number in range(self._partitions[topic])}
        found = self._admin.list_offsets(ends, request_timeout=_DEADLINE_S)
        places = [
            TopicPartition(place.topic, place.partition, done.result(_DEADLINE_S).offset)
            for place, done in found.items()
        ]
        for deleted in self._admin.delete_records(places).values():
            deleted.result(_DEADLINE_S)

    def _sender(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "log_level": 2,
                    "linger.ms": 20,
                    "batch.size": 1_000_000,
                    "queue.buffering.max.messages": _QUEUED,
                }
            )
        return self._producer
