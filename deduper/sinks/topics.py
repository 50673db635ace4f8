"""Publishing a window's rows to the topics of its ports: step 5 for Kafka, from the staged rows the record names.

Topic and job's name come from the commit record (`TopicPlace`), never from the present configuration: otherwise a
window that was committed before the job or a topic was renamed would be sent a second time. The connection to the
brokers is that of the present configuration.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import xxhash

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import OutputFile
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.config.kafka.options import librdkafka_options
from deduper.config.kafka.sections import KafkaSink
from deduper.errors import DeduperError, UsageError
from deduper.kafka.commands import topic_id
from deduper.kafka.errors import BrokerUnavailableError, ProducerFencedError
from deduper.sinks.names import TopicPlace
from deduper.sinks.publish_state import OnUnknown
from deduper.sinks.publisher import PortWork, Publisher, failure, gravest
from deduper.sinks.slot import CommittedWindow
from deduper.sinks.transaction import PublisherSettings, TransactionalSink

logger = logging.getLogger(__name__)

_MOST_FENCED = 5
_ANSWER_S = 5.0
TOPICS = "topics"


@dataclass(frozen=True, slots=True)
class _PortRows:
    """The rows of one window for one port's topic."""

    name: str
    sink: KafkaSink
    topic: str
    job: str
    outputs: tuple[OutputFile, ...]
    slots: Mapping[int, Sequence[Place]]


class KafkaPorts:
    """The Kafka ports of a job, for the owner of its store: it is checked here, `publisher` sends.

    `sinks` are the ports by name, `deadline_s` is the time to wait for brokers that do not answer. `unpublished` is the
    operator's answer for windows of which the cluster has forgotten whether they were published.
    `stop` ends the waiting for brokers that are away.
    """

    def __init__(
        self,
        sinks: Mapping[str, KafkaSink],
        deadline_s: float,
        log: CommitLog,
        publisher: Publisher,
        unpublished: OnUnknown = OnUnknown.REFUSE,
        stop: Event | None = None,
    ) -> None:
        self._sinks = sinks
        self._deadline_s = deadline_s
        self._log = log
        self._first_own = log.state.next_window
        self._unpublished = unpublished
        self._stop = stop
        self._publisher = publisher
        self._known = {port: one for port, one in known_topics(log.state.extra).items() if port in sinks}
        self._not_compared = set(sinks)
        self._is_asked_again = False

    def compare_topics(self) -> None:
        """Warn of each topic that was deleted and made again since the newest commit. Waits some seconds at most.

        Those without an answer are compared once more, after the next publication.
        """
        for port in sorted(self._not_compared):
            sink = self._sinks[port]
            try:
                found = topic_id(librdkafka_options(sink.bootstrap_servers, sink.options), sink.topic, _ANSWER_S)
            except DeduperError as exc:
                logger.info("port %s: whether topic %s was made again is not known: %s", port, sink.topic, exc)
                if isinstance(exc, BrokerUnavailableError):
                    return  # the others would be waited for too
                continue
            self._not_compared.remove(port)
            now, warning = compared(self._known.get(port), sink.topic, found, self._first_own)
            self._known = {**self._known, port: now}
            if warning is not None:
                logger.warning("port %s: %s", port, warning)

    def extra(self) -> dict[str, Any]:
        """Of the next commit: the topics as far as they are known. For any thread."""
        return topics_extra(self._known)

    def publish(self, window: int, outputs: Sequence[tuple[OutputFile, TopicPlace]]) -> None:
        """Publish the rows of a committed window that go to topics. Safe to repeat after any crash.

        All ports at once; every one is tried, even when another fails.

        Raises:
            FencedError: another owner has taken the store.
            UsageError: a port of the window is no topic any more.
            KafkaSinkError, IntegrityError, StopRequested: see `Publisher.publish`.
        """
        left: Sequence[_PortRows] = self._ports(window, outputs)
        committed_us = self._committed_us(window)
        for attempt in range(1, _MOST_FENCED + 1):
            outcomes = self._publisher.publish([self._work(window, port, committed_us) for port in left])
            failed = [
                (port, error)
                for port, slots in zip(left, outcomes, strict=True)
                if (error := failure(slots)) is not None
            ]
            left = [port for port, error in failed if isinstance(error, ProducerFencedError)]
            if left:
                self._log.check_owner()
            if len(left) < len(failed) or (left and attempt == _MOST_FENCED):
                raise gravest([error for _, error in failed])
            if not left:
                if self._not_compared and not self._is_asked_again:
                    self._is_asked_again = True
                    self.compare_topics()
                return
            logger.warning(
                "port %s: fenced by a producer of this same store: publishing again",
                ", ".join(port.name for port in left),
            )

    def close(self) -> None:
        """Close the publisher."""
        self._publisher.close()

    def _ports(self, window: int, outputs: Sequence[tuple[OutputFile, TopicPlace]]) -> list[_PortRows]:
        by_port: defaultdict[str, list[tuple[OutputFile, TopicPlace]]] = defaultdict(list)
        for output, place in outputs:
            by_port[output.port].append((output, place))
        sinks = self._sinks
        ports = []
        for name, files in by_port.items():
            first = files[0][1]
            if name not in sinks:
                raise UsageError(
                    f"window {window} was committed for port {name} to go to topic {first.topic}, and may not be there "
                    f"yet; sinks.{name} is no topic now: put it back, start once, then change it"
                )
            slots: defaultdict[int, list[Place]] = defaultdict(list)
            for output, place in sorted(files, key=lambda pair: open_place(pair[0].staged).name):
                for slot in place.slots:
                    slots[slot].append(open_place(output.staged))
            ports.append(
                _PortRows(name, sinks[name], first.topic, first.job, tuple(output for output, _ in files), slots)
            )
        return ports

    def _committed_us(self, window: int) -> int | None:
        """The wall clock of the commit of a window that is resumed; None of one that this owner has committed.

        Its staged files are of this run, and a repeated intent keeps its earlier wall clock.
        """
        if window >= self._first_own:
            return None
        commits = self._log.last_commits(self._log.state.next_window - window)
        # The record of the window is folded: it was committed before the first of these.
        return min((commit.wall_us for commit in commits if commit.window >= window), default=None)

    def _work(self, window: int, port: _PortRows, committed_us: int | None) -> PortWork:
        sink = TransactionalSink(
            job=port.job,
            store_id=self._log.manifest.store_id,
            port=port.name,
            topic=port.topic,
            client=librdkafka_options(port.sink.bootstrap_servers, port.sink.options),
            keep_order=port.sink.preserve_order,
            settings=PublisherSettings(deadline_s=self._deadline_s),
            stop=self._stop,
        )
        return PortWork(
            sink,
            CommittedWindow.of(
                window,
                _checksum(window, port.outputs),
                port.slots,
                age_s=_age_s(port.outputs, committed_us),
                unknown=self._unpublished,
            ),
        )


def _checksum(window: int, files: Sequence[OutputFile]) -> int:
    """Identifies this publication among others of the same number, by the bytes of all rows that are sent."""
    digest = xxhash.xxh3_64(window.to_bytes(8, "little"))
    for checksum in sorted(output.checksum for output in files):
        digest.update(checksum.to_bytes(8, "little"))
    return digest.intdigest()


def _age_s(files: Sequence[OutputFile], committed_us: int | None) -> float:
    """Seconds since the window was staged, or its commit if that is longer; infinite if its files are all gone.

    The commit counts too, because a copy of a folder may have new times. Staged files are removed after the mark, which
    is not synced: without them the window was published, or a user has deleted them.
    """
    times: list[int] = []
    for output in files:
        with contextlib.suppress(FileNotFoundError):
            times.append(open_place(output.staged).stat().modified_us)
    if not times:
        return math.inf
    since_us = min(times) if committed_us is None else min(*times, committed_us)
    return max(0.0, time.time() - since_us / 1_000_000)


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """The topic of a port: its name, its id, and the first window of the owner that saw this id first.

    A topic that was deleted and made again has another id, and lacks rows. Every commit has the ids as its owner knows
    them, under `topics` of its `extra`, so that a start can compare them.
    """

    topic: str
    topic_id: str
    first_window: int


def known_topics(extra: Mapping[str, Any]) -> dict[str, KnownTopic]:
    """By port, as the newest commit has them; none of another form."""
    return {
        port: KnownTopic(*fields)
        for port, fields in extra.get(TOPICS, {}).items()
        if [type(field) for field in fields] == [str, str, int]
    }


def topics_extra(known: Mapping[str, KnownTopic]) -> dict[str, Any]:
    """For the next commit's `extra`."""
    if not known:
        return {}
    return {TOPICS: {port: [one.topic, one.topic_id, one.first_window] for port, one in sorted(known.items())}}


def compared(known: KnownTopic | None, topic: str, topic_id: str, first_own: int) -> tuple[KnownTopic, str | None]:
    """What is known of a port's topic from here on, and the warning if it was made again meanwhile.

    `first_own`: the first window of this owner.
    """
    if known is None or known.topic != topic:
        return KnownTopic(topic, topic_id, first_own), None
    if known.topic_id == topic_id:
        return known, None
    lacks = None
    if known.first_window < first_own:
        lacks = (
            f"topic {topic} was deleted and made again: of the windows {known.first_window} to {first_own - 1} those "
            "that were published before are not in it. If readers need them, judge their records again with a store of "
            "another name: docs/kafka.md"
        )
    return KnownTopic(topic, topic_id, first_own), lacks
