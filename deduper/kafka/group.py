"""Commits the judged offsets to a consumer group, so that any tool can show the lag. Nothing depends on it.

A consumer that never subscribes does this, not the admin client's `alter_consumer_group_offsets`: librdkafka (to 2.16)
ends the whole process when the connection to a group's coordinator is lost under one of the admin client's requests
("Assertion `eonce->refcnt > 0' failed", its issues 4605 and 5397).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deduper.kafka.client import QUIET
from deduper.kafka.error_actions import error_of
from deduper.kafka.offsets import OffsetRange

logger = logging.getLogger(__name__)

_ANSWER_S = 0.2
_LAST_ANSWER_S = 5.0


class GroupOffsets:
    """The committed offsets of a group that has no members. For one thread."""

    def __init__(self, client: Mapping[str, str], group: str) -> None:
        self._group = group
        self._waiting = 0
        options: dict[str, Any] = {
            **client,
            "group.id": group,
            "enable.auto.commit": False,
            "on_commit": self._committed,
            "error_cb": lambda _: None,
        }
        self._consumer = Consumer(options, logger=QUIET)

    def commit(self, ranges: Iterable[OffsetRange]) -> None:
        """Commit the ends of these ranges. Waits a moment for the answer, and continues without it: see `settle`."""
        ends = [TopicPartition(taken.place.topic, taken.place.partition, taken.end) for taken in ranges]
        try:
            if ends:
                self._consumer.commit(offsets=ends, asynchronous=True)
                self._waiting += 1
        except KafkaException as exc:
            self._failed(error_of(exc))
        self._wait(_ANSWER_S)

    def settle(self) -> None:
        """Wait some seconds for missing answers: the end of the process cancels its requests.

        The first request of a process takes longest: it finds the coordinator and makes connections.
        """
        self._wait(_LAST_ANSWER_S)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._waiting and time.monotonic() < until:
            self._consumer.poll(0.01)

    def _committed(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        self._waiting = max(0, self._waiting - 1)
        if error is not None:
            self._failed(error)

    def _failed(self, error: KafkaError) -> None:
        logger.warning("consumer group %s: the judged offsets were not committed: %s", self._group, error.str())
