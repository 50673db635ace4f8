"""Records of a command on their way to one topic, each at least once; a window's rows go by `deduper.sinks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from deduper.kafka.client import QUIET
from deduper.kafka.error_actions import client_errors, error_of
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.topic_ends import ANSWER_S, broker_failure

Headers = list[tuple[str, str | bytes | None]]
_DELIVERY_S = 60
_ANY_PARTITION = -1


class Sending:
    """An idempotent producer without transactions. For one thread.

    Every method raises for the first record that the brokers have refused: BrokerUnavailableError, KafkaDeniedError,
    RecordRefusedError, TopicMissingError.
    """

    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._failed: KafkaError | None = None
        options = {"enable.idempotence": True, "message.timeout.ms": _DELIVERY_S * 1000}
        self._producer = Producer({**client, **options, "partitioner": "murmur2_random"}, logger=QUIET)

    def send(
        self, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None, timestamp_ms: int
    ) -> None:
        """Take one record, for the partition of its key where none is given; a negative time is that of the sending."""
        place = _ANY_PARTITION if partition is None else partition
        when: dict[str, Any] = {"timestamp": timestamp_ms} if timestamp_ms >= 0 else {}
        try:
            with client_errors():
                while True:
                    try:
                        self._producer.produce(
                            self._topic, value, key, place, on_delivery=self._delivered, headers=headers, **when
                        )
                        break
                    except BufferError:
                        self._producer.poll(0.1)
                self._producer.poll(0)
        except KafkaException as exc:
            raise broker_failure(error_of(exc), f"topic {self._topic}") from exc
        self._check()

    def finish(self) -> None:
        """Return when the brokers have all of them."""
        left = self._producer.flush(_DELIVERY_S + ANSWER_S)
        self._check()
        if left:
            raise BrokerUnavailableError(f"topic {self._topic}: {left} records were not acknowledged")

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        self._failed = self._failed or error

    def _check(self) -> None:
        if self._failed is not None:
            raise broker_failure(self._failed, f"topic {self._topic}")
