"""How far a slot has published, as the cluster tells it: the committed offset of the slot's consumer group.

What it means is in `publication`. Two things can stand between the question and its answer. A transaction that is still
open, of a predecessor that is about to move the offset: the coordinator answers only when it is decided. And time: the
cluster forgets the offset of a group that has been idle for `offsets.retention.minutes`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from deduper.kafka_calls import STEP_S, Calls
from deduper.kafka_clients import QUIET
from deduper.kafka_fates import error_of, lasting_error
from deduper.kafka_sink import TransactionalSink
from deduper.patience import Patience
from deduper.publication import Position

logger = logging.getLogger(__name__)

DEFAULT_OFFSETS_RETENTION_S = 7 * 86400.0
_RETENTION_MARGIN_S = 3600.0
_UNDECIDED = (
    "the coordinator answers, but an open transaction is yet to decide this slot's offset; the brokers end it within "
    'transaction.timeout.ms, unless they have forgotten it: see "hanging transaction" in docs/kafka.md'
)


def look(
    sink: TransactionalSink, name: str, calls: Calls, patience: Patience, subject: str
) -> tuple[Position | None, Any]:
    """What the slot of this name has published, None when the cluster knows nothing of it; and its group.

    The group is what `send_offsets_to_transaction` wants to be given. The offset is never that of a transaction which
    is still open.

    Raises:
        IntegrityError: somebody else has committed an offset to this group.
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
        # The coordinator's refusal comes as an event; the call itself would only run out of time.
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
        found = calls.again(ask, "the group's coordinator", patience)
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
    """Whether the coordinator gives an offset to whoever does not ask it to wait for transactions.

    The client asks again by itself while one is open, and then says no more than that its time is over.
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
    if age_s < _RETENTION_MARGIN_S:
        return False
    retention_s = sink.settings.offsets_retention_s
    if retention_s is None:
        retention_s = offsets_retention_s(sink.client) or DEFAULT_OFFSETS_RETENTION_S
    return age_s > retention_s - _RETENTION_MARGIN_S


def offsets_retention_s(client: Mapping[str, str]) -> float | None:
    """How long the cluster keeps the offsets of an idle group; None when it does not say or may not be asked."""
    admin = AdminClient(dict(client), logger=QUIET)
    try:
        broker = next(iter(admin.list_topics(timeout=STEP_S).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        (answer,) = admin.describe_configs([resource], request_timeout=STEP_S).values()
        return float(answer.result(STEP_S)["offsets.retention.minutes"].value) * 60
    except (KafkaException, StopIteration, KeyError, TimeoutError) as exc:
        logger.info("offsets.retention.minutes cannot be read, 7 days are assumed: %s", exc)
        return None
