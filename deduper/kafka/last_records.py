"""The values of a few records at the end of each topic of a source, for a check of their fields before a start.

The bounds are small, since a start does not depend on this check. It uses no group and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deduper.config.kafka.sections import KafkaSource
from deduper.kafka.client import QUIET, consumer_options
from deduper.kafka.cluster import ClusterOffsets
from deduper.kafka.error_actions import error_of
from deduper.kafka.offsets import Offsets
from deduper.kafka.topic_ends import broker_failure

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
