"""How far a job is behind its topics: what the brokers hold and no committed window does.

Asked beside the job, with a client of its own and without patience: whoever shows a lag can do without it for a while,
and nobody may be kept waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in its annotations

from deduper.config_kafka import KafkaSource
from deduper.kafka_clients import source_admin, source_isolation
from deduper.kafka_errors import BrokerUnavailableError
from deduper.kafka_fates import error_of, names_a_missing_topic
from deduper.kafka_offsets import Offsets, TopicPartition

_ANSWER_S = 5.0


class LatestOffsets:
    """Asks the brokers of a source for the ends of its partitions. For one thread."""

    def __init__(self, source: KafkaSource, answer_s: float = _ANSWER_S) -> None:
        self._source = source
        self._answer_s = answer_s
        self._admin = source_admin(source)
        # The end that the source itself can read up to: what lies in an open transaction is not there yet.
        self._isolation = source_isolation(source)

    def ask(self, places: Iterable[TopicPartition]) -> Offsets:
        """The offset after the last readable record of each of these partitions; those that are gone are left out.

        Raises:
            BrokerUnavailableError: no answer within seconds.
        """
        return self._ask(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # not in its annotations

    def ask_first(self, places: Iterable[TopicPartition]) -> Offsets:
        """The first offset that each of these partitions still holds; as `ask`."""
        return self._ask(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # as above

    def places(self) -> list[TopicPartition]:
        """The partitions of the source's topics that are there.

        Raises:
            BrokerUnavailableError: no answer within seconds.
        """
        try:
            listed = self._admin.list_topics(timeout=self._answer_s).topics
        except KafkaException as exc:
            raise BrokerUnavailableError(f"the source's topics: {error_of(exc).str()}") from exc
        topics = [topic for topic in listed if self._source.reads(topic)]
        return sorted(TopicPartition(topic, number) for topic in topics for number in listed[topic].partitions)

    def _ask(self, places: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
        wanted = {ClientPartition(place.topic, place.partition): spec for place in places}
        found: Offsets = {}
        if not wanted:
            return found
        answers = self._admin.list_offsets(wanted, isolation_level=self._isolation, request_timeout=self._answer_s)
        for place, answer in answers.items():
            try:
                found[TopicPartition(place.topic, place.partition)] = answer.result(self._answer_s).offset
            except KafkaException as exc:
                if not names_a_missing_topic(error_of(exc)):
                    raise BrokerUnavailableError(f"the ends of the source's topics: {error_of(exc).str()}") from exc
            except TimeoutError as exc:
                raise BrokerUnavailableError("the ends of the source's topics: no answer") from exc
        return found
