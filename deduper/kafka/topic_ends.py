"""First offset and end of a topic for a reader of committed records; for commands, which stop at the present end."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from deduper.errors import DeduperError
from deduper.kafka.client import QUIET
from deduper.kafka.error_actions import error_of, lasting_error, names_a_missing_topic
from deduper.kafka.errors import BrokerUnavailableError, TopicMissingError

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
