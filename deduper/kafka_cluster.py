"""What the job asks of a Kafka cluster beside records: its id, its topics, the offsets they hold, the group's offsets.

Every question is asked again while the brokers do not answer, until the source's deadline; what no waiting can mend
(no right to a topic, a wrong password) is told at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its annotations

from deduper.config_kafka import KafkaSource
from deduper.errors import DeduperError
from deduper.kafka_errors import TopicMissingError
from deduper.kafka_fates import error_of, lasting_error, names_a_missing_topic
from deduper.kafka_offsets import Ends, OffsetRange, Offsets, TopicPartition, write_offsets
from deduper.kafka_options import connection_options, librdkafka_options
from deduper.patience import Patience, Reporter

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_STEP_S = 5.0
_LATEST = -1
_QUIET = logging.getLogger("deduper.kafka.client")
_QUIET.setLevel(logging.CRITICAL)


def _client_options(source: KafkaSource) -> dict[str, str]:
    return librdkafka_options(source.bootstrap_servers, connection_options(source.options))


class KafkaCluster:
    """The cluster of a job's source. For one thread."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._group = source.group
        self._admin = AdminClient(dict(_client_options(source)), logger=_QUIET)
        self._reporter = Reporter()
        self._committing: Future[Any] | None = None
        self.cluster_id: str = self._ask(
            "the brokers", lambda: self._admin.describe_cluster(request_timeout=_STEP_S).result(_STEP_S).cluster_id
        )

    def topics(self) -> list[str]:
        """The topics to read that are there now, in order.

        Raises:
            TopicMissingError: one that was named is not there.
        """
        listed = self._ask("the brokers", lambda: self._admin.list_topics(timeout=_STEP_S)).topics
        if self._source.topic_pattern is not None:
            return sorted(topic for topic in listed if self._source.reads(topic))
        missing = [topic for topic in self._source.topics if topic not in listed]
        if missing:
            raise TopicMissingError(
                f"source: the cluster has no topic {', '.join(missing)}; create it, or correct source.topics"
            )
        return sorted(self._source.topics)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The id of each topic that is there: one that was deleted and made anew has another."""
        if not topics:
            return {}
        described = self._ask_each(
            "the topics", lambda: self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_STEP_S)
        )
        return {topic: str(found.topic_id) for topic, found in described.items()}

    def partitions(self) -> list[TopicPartition]:
        """Every partition of the topics to read, in source order."""
        listed = self._ask("the brokers", lambda: self._admin.list_topics(timeout=_STEP_S)).topics
        return sorted(TopicPartition(topic, number) for topic in self.topics() for number in listed[topic].partitions)

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> Offsets:
        """The first offset that each of these partitions still holds; those that are gone are left out."""
        return self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # not in its annotations

    def latest_offsets(self, places: Iterable[TopicPartition]) -> Offsets:
        """The offset after the last record of each of these partitions."""
        return self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # not in its annotations

    def starting_offsets(self, judged: Ends) -> str:
        """Where a new checkpoint is to start, in Spark's form: where the store has come to, else what is configured."""
        places = self.partitions()
        offsets = {place: judged[place].offset for place in places if place in judged}
        new = [place for place in places if place not in judged]
        offsets |= self.earliest_offsets(new) if judged else self._configured(new)
        return write_offsets(offsets)

    def commit_offsets(self, ranges: Iterable[OffsetRange]) -> None:
        """Tell the consumer group how far a window has come, for tools that show lag. Nothing of ours depends on it."""
        if self._group is None:
            return
        if self._committing is not None:
            try:
                self._committing.result(_STEP_S)
            except (KafkaException, TimeoutError) as exc:
                logger.warning("consumer group %s could not be told the offsets: %s", self._group, exc)
        ends = [ClientPartition(taken.place.topic, taken.place.partition, taken.end) for taken in ranges]
        request = ConsumerGroupTopicPartitions(self._group, ends)
        (self._committing,) = self._admin.alter_consumer_group_offsets([request], request_timeout=_STEP_S).values()

    def _configured(self, places: Sequence[TopicPartition]) -> Offsets:
        start = self._source.starting_offsets
        if start == "earliest":
            return self.earliest_offsets(places)
        if start == "latest":
            return self.latest_offsets(places)
        assert isinstance(start, Mapping)
        if isinstance(start.get("time"), str):  # and not a topic of that name
            when = datetime.fromisoformat(str(start["time"]))
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
            found = self._offsets(places, OffsetSpec.for_timestamp(int(when.timestamp() * 1000)))
            after_all = [place for place, offset in found.items() if offset < 0]
            return found | self.latest_offsets(after_all)
        named = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in start.items()
            for partition, offset in partitions.items()
        }
        unknown = sorted(named.keys() - set(places))
        if unknown:
            raise DeduperError(f"source.starting_offsets: the cluster has no partition {', '.join(map(str, unknown))}")
        return self.earliest_offsets([place for place in places if place not in named]) | named

    def _offsets(self, places: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
        wanted = {ClientPartition(place.topic, place.partition): spec for place in places}
        if not wanted:
            return {}
        found = self._ask_each("the offsets", lambda: self._admin.list_offsets(wanted, request_timeout=_STEP_S))
        return {TopicPartition(place.topic, place.partition): answer.offset for place, answer in found.items()}

    def _ask_each(self, what: str, ask: Callable[[], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """The answers that there are; of topics that are gone there is none."""

        def answers() -> dict[Any, Any]:
            found = {}
            for key, future in ask().items():
                try:
                    found[key] = future.result(_STEP_S)
                except KafkaException as exc:
                    if not names_a_missing_topic(error_of(exc)):
                        raise
            return found

        return self._ask(what, answers)

    def _ask(self, what: str, ask: Callable[[], _T]) -> _T:
        patience = Patience("source", self._source.deadline / 1_000_000, self._reporter)
        while True:
            try:
                return ask()
            except KafkaException as exc:
                lasting = lasting_error(error_of(exc), "source")
                if lasting is not None:
                    raise lasting from exc
                patience.wait(what, error_of(exc).str())
            except TimeoutError:
                patience.wait(what, "no answer")
