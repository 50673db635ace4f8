"""The records of a topic from an offset to its end, for commands; the job's own reading is `sources.kafka`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from deduper.errors import DeduperError
from deduper.kafka.error_actions import error_of, lasting_error
from deduper.kafka.errors import BrokerUnavailableError, TopicMissingError
from deduper.kafka.quiet import QUIET

ANSWER_S = 30.0
_NO_GROUP = "deduper-reads-without-a-group"
"""The client wants one; nothing is committed to it."""
_BATCH = 5000
_STEP_S = 0.5


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic; its headers in their order. `timestamp_ms` is negative where it has none."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def header(self, name: str) -> str | None:
        """The last header of this name as text."""
        found = next((value for key, value in reversed(self.headers) if key == name), None)
        return None if found is None else found.decode("utf-8", "replace")


def read_topic(
    client: Mapping[str, str], topic: str, starts: Mapping[int, int] | None = None
) -> Iterator[list[TopicRecord]]:
    """The committed records of a topic up to its ends now, in the order of each partition.

    `starts` has the first offset of some partitions; the others begin with what the brokers still hold.

    Raises:
        TopicMissingError: there is no such topic.
        BrokerUnavailableError: no answer, or no records, for 30 s.
        KafkaDeniedError: no right to read it.
    """
    consumer = Consumer(
        {
            **client,
            "group.id": _NO_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        },
        logger=QUIET,
    )
    try:
        yield from _records(consumer, topic, starts or {})
    except KafkaException as exc:
        raise broker_failure(error_of(exc), f"topic {topic}") from exc
    finally:
        consumer.close()


def committed_ranges(client: Mapping[str, str], topic: str) -> dict[int, tuple[int, int]]:
    """First offset and end of each partition of a topic, as far as a reader of committed records comes now.

    Raises: as `read_topic`.
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


def broker_failure(error: KafkaError, subject: str) -> DeduperError:
    """The error for the operator of a command that a client's error ends."""
    return lasting_error(error, subject) or BrokerUnavailableError(f"{subject}: {error.str()}")


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """The numbers of a topic's partitions. Raises TopicMissingError without one."""
    listed = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if listed.error is not None or not listed.partitions:
        raise TopicMissingError(f"the cluster has no topic {topic}")
    return sorted(listed.partitions)


def _records(consumer: Consumer, topic: str, starts: Mapping[int, int]) -> Iterator[list[TopicRecord]]:
    assigned, ends = [], {}
    for partition in partitions_of(consumer, topic):
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        start = max(starts.get(partition, first), first)
        if start < end:
            ends[partition] = end
            assigned.append(TopicPartition(topic, partition, start))
    consumer.assign(assigned)
    moved = time.monotonic()
    while ends:
        batch = consumer.consume(_BATCH, timeout=_STEP_S)
        found = []
        for message in batch:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            record = _record(message)
            end = ends.get(record.partition, 0)
            if error is None and record.offset < end:
                found.append(record)
            if error is not None or record.offset >= end - 1:
                ends.pop(record.partition, None)
        if batch:
            moved = time.monotonic()
        elif time.monotonic() - moved > ANSWER_S:
            raise BrokerUnavailableError(f"topic {topic}: no records for {ANSWER_S:.0f} s")
        if found:
            yield found


def _record(message: Message) -> TopicRecord:
    headers: Any = message.headers() or ()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return TopicRecord(
        partition, offset, message.timestamp()[1], message.key(), message.value(), tuple((k, v) for k, v in headers)
    )
