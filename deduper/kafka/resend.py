"""Records of one topic sent to others exactly once: the positions in the one go into the transactions that send.

A position is the committed offset of a consumer group without members. A caller may keep several, one for each kind of
record that it sends. Another process that opens the same transactional id later fences it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from deduper.kafka.calls import HungError, bounded
from deduper.kafka.error_actions import ErrorAction, action_of, client_errors, error_of
from deduper.kafka.errors import BrokerUnavailableError, ProducerFencedError, TransactionTooLongError
from deduper.kafka.quiet import QUIET
from deduper.kafka.topic_ends import ANSWER_S, broker_failure, partitions_of

Offsets = dict[int, int]
"""Offsets by partition."""
_AGAIN_S = 0.2
_TRANSACTION_S = 60
"""The brokers abort a transaction that is open for longer, and fence its producer."""


class Resend:
    """From `topic` to other topics of its cluster, under one transactional id. For one thread; a context manager.

    Every method raises ProducerFencedError when another process has taken over, TransactionTooLongError when the
    transaction was open for too long, BrokerUnavailableError when the brokers do not answer, and what `lasting_error`
    has; after an error nothing of the open transaction is sent.
    """

    def __init__(self, client: Mapping[str, str], transactional_id: str, topic: str) -> None:
        self._client = dict(client)
        self._topic = topic
        self._subject = f"sending records of {topic} again"
        self._groups: dict[str, Any] = {}
        self._since: float | None = None
        with self._errors():
            self._producer = Producer(
                {
                    **self._client,
                    "transactional.id": transactional_id,
                    "partitioner": "murmur2_random",
                    "message.timeout.ms": _TRANSACTION_S * 1000,
                    "transaction.timeout.ms": _TRANSACTION_S * 1000,
                },
                logger=QUIET,
            )
            self._producer.init_transactions(ANSWER_S)

    def __enter__(self) -> Resend:
        return self

    def __exit__(self, *_: object) -> None:
        if self._since is not None:
            # The next call's producer aborts it too; readers of the topics would wait until then.
            try:
                with client_errors():
                    self._producer.abort_transaction(ANSWER_S)
            except KafkaException:
                return

    @property
    def open_s(self) -> float:
        """Seconds since the transaction was begun, 0 if none is open."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def positions(self, group: str) -> Offsets:
        """The next offset of each partition by a group; those without one are left out.

        To be called for every group that `commit` names: the transaction of the producer before this one is decided.
        """
        with self._errors():
            found, self._groups[group] = _committed(self._client, group, self._topic)
        return found

    def send(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: list[Any],
        timestamp_ms: int,
    ) -> None:
        """Add a record to the transaction, which is begun if none is open; a negative time is that of the sending."""
        with self._errors():
            self._begin()
            when: dict[str, Any] = {"timestamp": timestamp_ms} if timestamp_ms >= 0 else {}
            while True:
                try:
                    self._producer.produce(topic, value, key, partition=partition, headers=headers, **when)
                    return
                except BufferError:
                    self._producer.poll(0.1)

    def commit(self, positions: Mapping[str, Offsets]) -> None:
        """Make the records visible, and the groups' positions with them; without a record they move alone."""
        with self._errors():
            self._begin()
            for group, offsets in positions.items():
                ends = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
                if ends:
                    metadata = self._groups[group]
                    # The call ignores its timeout while the group's coordinator is away (librdkafka, issue 5456).
                    sending = partial(self._producer.send_offsets_to_transaction, ends, metadata, ANSWER_S)
                    bounded(sending, 2 * ANSWER_S, "the group's coordinator")
            self._producer.commit_transaction(2 * ANSWER_S)
            self._since = None

    def _begin(self) -> None:
        if self._since is None:
            self._producer.begin_transaction()
            self._since = time.monotonic()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with client_errors():
                yield
        except KafkaException as exc:
            error = error_of(exc)
            if action_of(error) is ErrorAction.FENCED:
                if self.open_s >= _TRANSACTION_S:
                    raise TransactionTooLongError(
                        f"{self._subject}: the transaction was open for {self.open_s:.0f} s, longer than "
                        f"transaction.timeout.ms ({_TRANSACTION_S} s): this machine or the brokers were too slow, "
                        "nothing of it was sent; run `replay-errors` again"
                    ) from exc
                raise ProducerFencedError(f"{self._subject}: another `replay-errors` has taken over") from exc
            raise broker_failure(error, self._subject) from exc
        except HungError as exc:
            raise BrokerUnavailableError(f"{self._subject}: {exc}") from exc


def group_positions(client: Mapping[str, str], group: str, topic: str) -> Offsets:
    """As `Resend.positions`, and disturbs nobody."""
    try:
        return _committed(client, group, topic)[0]
    except KafkaException as exc:
        raise broker_failure(error_of(exc), f"group {group}") from exc


def _committed(client: Mapping[str, str], group: str, topic: str) -> tuple[Offsets, Any]:
    options = {**client, "group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer(options, logger=QUIET)
    until = time.monotonic() + ANSWER_S
    try:
        while True:
            try:
                found = consumer.committed(
                    [TopicPartition(topic, one) for one in partitions_of(consumer, topic)], ANSWER_S
                )
                for one in found:
                    if one.error is not None:
                        raise KafkaException(one.error)
                return {
                    one.partition: one.offset for one in found if one.offset >= 0
                }, consumer.consumer_group_metadata()
            except KafkaException as exc:
                # A broker that has just started may not know yet who coordinates the group.
                if action_of(error_of(exc)) is not ErrorAction.RETRY or time.monotonic() > until:
                    raise
            time.sleep(_AGAIN_S)
    finally:
        consumer.close()
