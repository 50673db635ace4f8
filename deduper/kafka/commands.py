"""What commands and checks read of topics and send to one: ranges of offsets, some last values, single records.

A command stops at the present end of a topic. Nothing here uses a group or commits an offset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import DeduperError
from deduper.kafka.client import QUIET, consumer_options
from deduper.kafka.cluster import ClusterOffsets
from deduper.kafka.error_actions import client_errors, error_of, lasting_error, names_a_missing_topic
from deduper.kafka.errors import BrokerUnavailableError, TopicMissingError
from deduper.kafka.offsets import Offsets

ANSWER_S = 30.0
_NO_GROUP = "deduper-reads-without-a-group"
"""The client wants one; nothing is committed to it."""


def committed_ranges(client: Mapping[str, str], topic: str) -> dict[int, tuple[int, int]]:
    """First offset and present end of each partition of a topic, for a reader of committed records.

    Raises:
        TopicMissingError: there is no such topic.
        BrokerUnavailableError: no answer for 30 s.
        KafkaDeniedError: no right to read it.
    """
    options = {**client, "group.id": _NO_GROUP, "isolation.level": "read_committed"}
    consumer = Consumer(options, logger=QUIET)
    try:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWER_S)
            for number in partitions_of(consumer, topic)
        }
    except KafkaException as exc:
        raise broker_failure(error_of(exc), f"topic {topic}") from exc
    finally:
        consumer.close()


def topic_id(client: Mapping[str, str], topic: str, answer_s: float = ANSWER_S) -> str:
    """The id of a topic, as `KafkaCluster.topic_ids` has it; one that is created again has another.

    Raises:
        TopicMissingError: there is no such topic.
        BrokerUnavailableError: no answer in time.
        KafkaDeniedError: no right to read it.
    """
    admin = AdminClient(dict(client), logger=QUIET)
    try:
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=answer_s)
        return str(asked[topic].result(answer_s).topic_id)
    except KafkaException as exc:
        error = error_of(exc)
        if names_a_missing_topic(error):
            raise TopicMissingError(f"the cluster has no topic {topic}") from exc
        raise broker_failure(error, f"topic {topic}") from exc
    except TimeoutError as exc:
        raise BrokerUnavailableError(f"topic {topic}: no answer") from exc


def broker_failure(error: KafkaError, subject: str) -> DeduperError:
    """The error for the operator if a client's error ends a command."""
    return lasting_error(error, subject) or BrokerUnavailableError(f"{subject}: {error.str()}")


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """The numbers of a topic's partitions. Raises TopicMissingError without one."""
    listed = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if listed.error is not None or not listed.partitions:
        raise TopicMissingError(f"the cluster has no topic {topic}")
    return sorted(listed.partitions)


_TOPICS, _PARTITIONS, _OFFSETS = 10, 3, 10
"""At most so many topics, partitions with records of a topic, and offsets of a partition."""
_BYTES = 4 << 20
"""At most so many bytes of all values, and about as many fetched. One record may be larger."""
_STEP_S = 0.1
_AT_A_TIME = 100

_READING: Mapping[str, str | int | bool] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "latest",
    "fetch.wait.max.ms": 10,
    "fetch.max.bytes": 1 << 20,
    "max.partition.fetch.bytes": 64 << 10,
    "queued.max.messages.kbytes": 256,
}


def last_values(source: KafkaSource, *, seconds: float) -> dict[str, list[bytes]]:
    """The last values that the source can read of each topic that has some; records without a value are left out.

    The bounds are small, since a start does not depend on the check that reads them.

    Each of three questions to the brokers has `seconds` for its answer; records that have not come so long after the
    call are left out too.

    Raises:
        DeduperError: the brokers do not answer, or refuse.
    """
    options: dict[str, Any] = {"group.id": "deduper", **consumer_options(source), **_READING}
    until = time.monotonic() + seconds
    cluster = ClusterOffsets(source, answer_s=seconds)
    ends = cluster.latest_offsets(cluster.places())
    firsts = _firsts(cluster.earliest_offsets(ends), ends)
    if not firsts:
        return {}
    try:
        consumer = Consumer(options, logger=QUIET)
        try:
            return _values(consumer, firsts, until)
        finally:
            consumer.close()
    except KafkaException as exc:
        raise broker_failure(error_of(exc), "source") from exc


def _firsts(earliest: Offsets, ends: Offsets) -> Offsets:
    """The offsets to read from, for some partitions that have records."""
    firsts = {}
    counts: dict[str, int] = {}
    for place in sorted(earliest.keys() & ends.keys()):
        count = counts.get(place.topic, 0)
        if earliest[place] < ends[place] and count < _PARTITIONS and (count or len(counts) < _TOPICS):
            counts[place.topic] = count + 1
            firsts[place] = max(earliest[place], ends[place] - _OFFSETS)
    return firsts


def _values(consumer: Consumer, firsts: Offsets, until: float) -> dict[str, list[bytes]]:
    consumer.assign([TopicPartition(place.topic, place.partition, first) for place, first in firsts.items()])
    values: dict[str, list[bytes]] = {}
    left = {(place.topic, place.partition) for place in firsts}
    size = 0
    while left and size < _BYTES and time.monotonic() < until:
        for message in consumer.consume(_AT_A_TIME, _STEP_S):
            failure, topic, value = message.error(), message.topic(), message.value()
            if failure is not None:
                # At its end, or not to be read. The client asks for its group too, whose refusal does no harm.
                if failure.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                    left.discard((topic, message.partition()))
            elif topic is not None and value is not None and size < _BYTES:
                size += len(value)
                values.setdefault(topic, []).append(value)
    return values


Headers = list[tuple[str, str | bytes | None]]
_DELIVERY_S = 60
_ANY_PARTITION = -1


class Sending:
    """An idempotent producer without transactions: each record is sent at least once. For one thread.

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
