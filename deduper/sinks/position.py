"""The position that a slot has published to: the committed offset of the slot's consumer group.

`publish_state` interprets it. While an earlier producer's transaction that moves the offset is open, the coordinator
answers only once that has ended. The cluster forgets the offset of a group that was idle for
`offsets.retention.minutes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deduper.kafka.calls import STEP_S, Calls
from deduper.kafka.client import QUIET
from deduper.kafka.cluster import may_have_expired
from deduper.kafka.error_actions import error_of, lasting_error
from deduper.kafka.retry import RetryDeadline
from deduper.sinks.publish_state import Position
from deduper.sinks.transaction import TransactionalSink

_UNDECIDED = (
    "the coordinator answers, but an open transaction is yet to decide this slot's offset; the brokers end it within "
    'transaction.timeout.ms, unless they have forgotten it: see "hanging transaction" in docs/kafka.md'
)


def read_position(
    sink: TransactionalSink, name: str, calls: Calls, retry: RetryDeadline, subject: str
) -> tuple[Position | None, Any]:
    """The last window that the slot of this name has published, None when the cluster has no offset; and its group.

    The group is an argument of `send_offsets_to_transaction`. The offset is never that of a transaction which
    is still open.

    Raises:
        IntegrityError: another program has committed an offset to this group.
        What `Calls.again` raises.
    """
    options = {
        **sink.client,
        "group.id": name,
        # Makes the coordinator answer only when no transaction is about to move the offset.
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "error_cb": calls.remember,
    }
    consumer = Consumer(options, logger=QUIET)

    def ask() -> TopicPartition:
        # The coordinator's refusal comes as an event; the call itself only times out.
        event = consumer.poll(0)
        refusal = None if event is None else event.error()
        if refusal is not None and lasting_error(refusal, subject) is not None:
            raise KafkaException(refusal)
        try:
            return _committed(consumer, sink.topic)
        except KafkaException as exc:
            if error_of(exc).code() == KafkaError._TIMED_OUT and _is_undecided(options, sink.topic):
                raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, _UNDECIDED)) from exc
            raise

    try:
        found = calls.again(ask, "the group's coordinator", retry)
        group = consumer.consumer_group_metadata()
    finally:
        consumer.close()
    if found.offset < 0:
        return None, group
    return Position.of(found.offset, found.metadata or "", f"{subject}: group {name}"), group


def _committed(consumer: Consumer, topic: str) -> TopicPartition:
    (found,) = consumer.committed([TopicPartition(topic, 0)], STEP_S)
    if found.error is not None:
        raise KafkaException(found.error)
    return found


def _is_undecided(options: Mapping[str, Any], topic: str) -> bool:
    """Whether the coordinator gives an offset to a client that does not wait for transactions.

    A client that waits repeats the request while a transaction is open, and then reports only a timeout.
    """
    consumer = Consumer({**options, "isolation.level": "read_uncommitted"}, logger=QUIET)
    try:
        _committed(consumer, topic)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def may_be_forgotten(sink: TransactionalSink, age_s: float) -> bool:
    """Whether an offset that was committed right after a window of this age may have expired by now."""
    return may_have_expired(sink.client, age_s, sink.settings.offsets_retention_s)
