"""Requests to a source's Kafka cluster: its id, its topics, their offsets; and commits to the group.

`KafkaCluster` repeats a request while the brokers do not answer; `ClusterOffsets` makes it once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from threading import Event
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicMetadata  # type: ignore[attr-defined]  # not in its annotations
from confluent_kafka.admin._config import ConfigResource

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import DeduperError
from deduper.kafka.calls import STEP_S
from deduper.kafka.client import QUIET, source_admin, source_isolation, source_options
from deduper.kafka.error_actions import error_of, lasting_error, names_a_missing_topic, names_a_stale_leader
from deduper.kafka.errors import BrokerUnavailableError, TopicMissingError
from deduper.kafka.offsets import Ends, Held, OffsetRange, Offsets, TopicPartition
from deduper.kafka.retry import RetryDeadline, ThrottledLog

logger = logging.getLogger(__name__)

_COMMIT_S, _LAST_COMMIT_S = 0.2, 5.0


class GroupOffsets:
    """The committed offsets of a group that has no members, so that any tool can show the lag. For one thread.

    A consumer that never subscribes does this, not the admin client's `alter_consumer_group_offsets`: librdkafka (to
    2.16) ends the whole process when the connection to a group's coordinator is lost under one of the admin client's
    requests ("Assertion `eonce->refcnt > 0' failed", its issues 4605 and 5397).
    """

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
        ends = [ClientPartition(taken.place.topic, taken.place.partition, taken.end) for taken in ranges]
        try:
            if ends:
                self._consumer.commit(offsets=ends, asynchronous=True)
                self._waiting += 1
        except KafkaException as exc:
            self._failed(error_of(exc))
        self._wait(_COMMIT_S)

    def settle(self) -> None:
        """Wait some seconds for missing answers: the end of the process cancels its requests.

        The first request of a process takes longest: it finds the coordinator and makes connections.
        """
        self._wait(_LAST_COMMIT_S)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._waiting and time.monotonic() < until:
            self._consumer.poll(0.01)

    def _committed(self, error: KafkaError | None, _: list[ClientPartition]) -> None:
        self._waiting = max(0, self._waiting - 1)
        if error is not None:
            self._failed(error)

    def _failed(self, error: KafkaError) -> None:
        logger.warning("consumer group %s: the judged offsets were not committed: %s", self._group, error.str())


DEFAULT_OFFSETS_RETENTION_S = 7 * 86400.0
_MARGIN_S = 3600.0


def may_have_expired(client: Mapping[str, str], age_s: float, retention_s: float | None = None) -> bool:
    """Whether an offset that was committed this long ago may have expired; asks the cluster if necessary.

    True for a time ahead of now by more than an hour, since such a clock is wrong.
    """
    if abs(age_s) < _MARGIN_S:
        return False
    if retention_s is None:
        retention_s = offsets_retention_s(client) or DEFAULT_OFFSETS_RETENTION_S
    return age_s < 0 or age_s > retention_s - _MARGIN_S


def offsets_retention_s(client: Mapping[str, str]) -> float | None:
    """Seconds for which the cluster keeps the offsets of an idle group; None when it does not report them."""
    admin = AdminClient(dict(client), logger=QUIET)
    try:
        broker = next(iter(admin.list_topics(timeout=STEP_S).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        (answer,) = admin.describe_configs([resource], request_timeout=STEP_S).values()
        return float(answer.result(STEP_S)["offsets.retention.minutes"].value) * 60
    except (KafkaException, StopIteration, KeyError, TimeoutError) as exc:
        logger.info("offsets.retention.minutes cannot be read, 7 days are assumed: %s", exc)
        return None


_T = TypeVar("_T")
_STEP_S = 5.0
_ANSWER_S = 5.0


class ClusterOffsets:
    """The partitions of a source and their offsets, by one request, for showing a lag. For one thread.

    Every method raises BrokerUnavailableError when there is no answer within `answer_s`.
    """

    def __init__(self, source: KafkaSource, answer_s: float = _ANSWER_S) -> None:
        self._source = source
        self._answer_s = answer_s
        self._admin = source_admin(source)
        # By it `latest_offsets` end where the source can read to: before the first open transaction, or after it.
        self._isolation = source_isolation(source)

    def places(self) -> list[TopicPartition]:
        """The partitions of the source's topics that are there."""
        listed = self._listed()
        topics = [topic for topic in listed if self._source.reads(topic)]
        return sorted(TopicPartition(topic, number) for topic in topics for number in listed[topic].partitions)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic that is there: one that was deleted and recreated has another."""
        return {topic: topic_id for topic, (topic_id, _) in self._described(topics).items()}

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> Offsets:
        """The first offset that each of these partitions still holds; those that are gone are left out."""
        return self._offsets(dict.fromkeys(places, OffsetSpec.earliest()))  # type: ignore[no-untyped-call]  # not in its annotations

    def latest_offsets(self, places: Iterable[TopicPartition], *, isolation: IsolationLevel | None = None) -> Offsets:
        """The offset after the last record of each of these partitions that can be read; see `earliest_offsets`.

        `isolation` replaces the source's isolation level.
        """
        return self._offsets(dict.fromkeys(places, OffsetSpec.latest()), isolation)  # type: ignore[no-untyped-call]  # see above

    def offsets_since(self, times_ms: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset of each of these partitions whose record has this time stamp or a later one; -1 without one.

        Times are not negative. All records before it are earlier, those behind it may be too.
        """
        return self._offsets({place: OffsetSpec.for_timestamp(time_ms) for place, time_ms in times_ms.items()})

    def greatest_times(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The greatest time stamp of a record of each of these partitions in ms; -1 if no record has one."""
        specs = dict.fromkeys(places, OffsetSpec.max_timestamp())  # type: ignore[no-untyped-call]  # see above
        return {place: found.timestamp for place, found in self._offset_answers(specs).items()}

    def written(self, places: Collection[TopicPartition]) -> Held:
        """The offsets that the cluster holds of these partitions, with records of open transactions."""
        ids = self.topic_ids(place.topic for place in places)
        latest = self.latest_offsets(places, isolation=IsolationLevel.READ_UNCOMMITTED)
        return Held(ids, self.earliest_offsets(places), latest)

    def _described(self, topics: Iterable[str]) -> dict[str, tuple[str, list[int]]]:
        """The id of each topic that is there, and the numbers of its partitions."""
        wanted = sorted(set(topics))
        if not wanted:
            return {}
        described = self._ask_each(
            "the topics", lambda: self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._answer_s)
        )
        return {
            topic: (str(found.topic_id), [partition.id for partition in found.partitions])
            for topic, found in described.items()
        }

    def _offsets(self, specs: Mapping[TopicPartition, Any], isolation: IsolationLevel | None = None) -> Offsets:
        return {place: found.offset for place, found in self._offset_answers(specs, isolation).items()}

    def _offset_answers(
        self, specs: Mapping[TopicPartition, Any], isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, Any]:
        wanted = {ClientPartition(place.topic, place.partition): spec for place, spec in specs.items()}
        if not wanted:
            return {}
        level = self._isolation if isolation is None else isolation
        found = self._ask_each(
            "the offsets",
            lambda: self._admin.list_offsets(wanted, isolation_level=level, request_timeout=self._answer_s),
        )
        return {TopicPartition(place.topic, place.partition): answer for place, answer in found.items()}

    def _listed(self) -> dict[str, TopicMetadata]:
        return self._ask("the topics", lambda: self._admin.list_topics(timeout=self._answer_s)).topics

    def _ask_each(self, what: str, ask: Callable[[], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """The answers, without those for topics that are gone."""

        def answers() -> dict[Any, Any]:
            found = {}
            for key, future in ask().items():
                try:
                    found[key] = future.result(self._answer_s)
                except KafkaException as exc:
                    if names_a_stale_leader(error_of(exc)):
                        # The client repeats a leader's epoch that was refused, until it gets the leaders anew: here.
                        self._admin.list_topics(timeout=self._answer_s)
                    if not names_a_missing_topic(error_of(exc)):
                        raise
            return found

        return self._ask(what, answers)

    def _ask(self, what: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except KafkaException as exc:
            raise BrokerUnavailableError(f"{what} of the source: {error_of(exc).str()}") from exc
        except TimeoutError as exc:
            raise BrokerUnavailableError(f"{what} of the source: no answer") from exc


class KafkaCluster(ClusterOffsets):
    """The cluster of a job's source; requests are repeated until the source's deadline. For one thread.

    An error that does not pass by waiting (no right to a topic, a wrong password) is raised at once.
    """

    def __init__(self, source: KafkaSource, stop: Event | None = None, name: str = "source") -> None:
        """`name` is that of the source's section, for messages."""
        super().__init__(source, _STEP_S)
        self._stop = stop
        self._name = name
        self._group = None if source.group is None else GroupOffsets(source_options(source), source.group)
        self._reporter = ThrottledLog()
        self.cluster_id: str = self._ask(
            "the brokers", lambda: self._admin.describe_cluster(request_timeout=_STEP_S).result(_STEP_S).cluster_id
        )

    def topics(self, judged: Ends) -> list[str]:
        """The topics to read that are there now, in order.

        Raises:
            TopicMissingError: one that was named is not there, and never was.
        """
        listed = self._listed()
        if self._source.topic_pattern is not None:
            return sorted(topic for topic in listed if self._source.reads(topic))
        known = {place.topic for place in judged}
        missing = [topic for topic in self._source.topics if topic not in listed and topic not in known]
        if missing:
            raise TopicMissingError(
                f"{self._name}: the cluster has no topic {', '.join(missing)}; create it, or correct "
                f"{self._name}.topics"
            )
        return sorted(topic for topic in self._source.topics if topic in listed)

    def held(self, topics: Iterable[str]) -> Held:
        """The offsets that the cluster holds of these topics now, for every partition of a topic that is there."""
        retry = self._deadline()
        while True:
            described = self._described(topics)
            places = [TopicPartition(topic, number) for topic, (_, numbers) in described.items() for number in numbers]
            earliest, latest = self.earliest_offsets(places), self.latest_offsets(places)
            if len(earliest) == len(latest) == len(places):
                return Held({topic: topic_id for topic, (topic_id, _) in described.items()}, earliest, latest)
            # A topic is being made or deleted; the next answers show which.
            absent = sorted(set(places) - (earliest.keys() & latest.keys()))
            retry.wait("the offsets", f"{absent[0]} is listed, and not known to its broker")

    def configured_start(self, held: Held) -> Offsets:
        """The offset at which a new store begins in each partition that is held.

        Raises:
            DeduperError: offsets are named that no partition has.
        """
        start = self._source.starting_offsets
        if start == "earliest":
            return dict(held.earliest)
        if start == "latest":
            return dict(held.latest)
        assert isinstance(start, Mapping)
        if isinstance(start.get("time"), str):  # and not a topic of that name
            when = datetime.fromisoformat(str(start["time"]))
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
            found = self.offsets_since(dict.fromkeys(held.earliest, int(when.timestamp() * 1000)))
            # A later record may be in a transaction that is still open.
            return {
                place: last if found.get(place, -1) < 0 else min(found[place], last)
                for place, last in held.latest.items()
            }
        named = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in start.items()
            for partition, offset in partitions.items()
        }
        unknown = sorted(named.keys() - held.earliest.keys())
        if unknown:
            raise DeduperError(
                f"{self._name}.starting_offsets: the cluster has no partition {', '.join(map(str, unknown))}"
            )
        beyond = [place for place in sorted(named) if named[place] > held.latest[place]]
        if beyond:
            reported = "; ".join(f"{place} at {named[place]}, it ends at {held.latest[place]}" for place in beyond)
            raise DeduperError(
                f"{self._name}.starting_offsets: beyond the end: {reported}; name an offset that is there"
            )
        return {**held.earliest, **named}

    def commit_offsets(self, ranges: Iterable[OffsetRange]) -> None:
        """Commit the ends of a window to the consumer group, for tools that show lag. Nothing of ours depends on it."""
        if self._group is not None:
            self._group.commit(ranges)

    def settle_offsets(self) -> None:
        """Wait some seconds for the commits to the group. Called before the end of a run."""
        if self._group is not None:
            self._group.settle()

    def _ask(self, what: str, ask: Callable[[], _T]) -> _T:
        retry = self._deadline()
        while True:
            try:
                return ask()
            except KafkaException as exc:
                lasting = lasting_error(error_of(exc), self._name)
                if lasting is not None:
                    raise lasting from exc
                retry.wait(what, error_of(exc).str())
            except TimeoutError:
                retry.wait(what, "no answer")

    def _deadline(self) -> RetryDeadline:
        return RetryDeadline(
            self._name,
            self._source.deadline / 1_000_000,
            self._reporter,
            stop=self._stop,
            when_stopped="nothing of the batch is committed",
        )
