"""One writer slot of one port: a committed window's staged rows into a topic, exactly once, as one transaction.

    1 init        init_transactions: no older producer of this slot can commit any more; what it left open is aborted
    2 position    the slot's committed offset; if it is above the window, that is published and nothing is sent
    3 begin       when the first rows are read
    4 send        every row in order, and wait until the brokers have all of them
    5 offset      window + 1 and the record's checksum into the same transaction
    6 commit      rows and offset become visible together, or neither

2 comes after 1: otherwise a slow earlier producer could commit between the two, and the window would be sent twice.
Steps 1 and 2 are taken once for a producer, and again after every failure. Producers stay open between windows: while
one is not fenced, no other producer has moved the offset. docs/kafka.md argues the whole, crash by crash.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from bucket_store import failpoints
from bucket_store.places.place import Place
from deduper.config.kafka.options import KafkaOptionsError
from deduper.errors import IntegrityError
from deduper.kafka.calls import STEP_S, Calls, HungError
from deduper.kafka.client import QUIET
from deduper.kafka.error_actions import (
    ErrorAction,
    action_of,
    client_errors,
    error_of,
    lasting_error,
    names_a_missing_topic,
)
from deduper.kafka.errors import (
    ProducerFencedError,
    PublicationUnknownError,
    TopicMissingError,
    TransactionTooLongError,
)
from deduper.kafka.retry import RetryDeadline, ThrottledLog
from deduper.sinks.position import may_be_forgotten, read_position
from deduper.sinks.publish_state import OnUnknown, Position, PublishDecision, after, decision
from deduper.sinks.staged_records import records_of_slot
from deduper.sinks.transaction import OpenProducer, TransactionalSink

logger = logging.getLogger(__name__)

_TOPIC_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class CommittedWindow:
    """One window as the commit record has it: the staged files of each slot, and the slots of each file. Pickles.

    `age_s`: seconds since its commit, infinite if its staged files are all gone. `unknown`: the operator's answer when
    the cluster has forgotten whether it was published.
    """

    number: int
    checksum: int
    slots: Mapping[int, Sequence[Place]]
    owners: Mapping[Place, set[int]]
    age_s: float
    unknown: OnUnknown

    @classmethod
    def of(
        cls,
        number: int,
        checksum: int,
        slots: Mapping[int, Sequence[Place]],
        *,
        age_s: float = 0.0,
        unknown: OnUnknown = OnUnknown.REFUSE,
    ) -> CommittedWindow:
        """The window. `slots` is taken from the commit record, never from today's settings; files are in order."""
        owners: dict[Place, set[int]] = {}
        for slot, files in slots.items():
            for file in files:
                owners.setdefault(file, set()).add(slot)
        return cls(number, checksum, {slot: files for slot, files in slots.items() if files}, owners, age_s, unknown)

    def part(self, slots: Collection[int]) -> CommittedWindow:
        """The window with these slots alone."""
        kept = {slot: self.slots[slot] for slot in sorted(slots)}
        files = set(chain.from_iterable(kept.values()))
        return replace(self, slots=kept, owners={file: self.owners[file] for file in files})

    def records(self, slot: int) -> Iterator[pa.RecordBatch]:
        """A slot's rows, in order."""
        return chain.from_iterable(records_of_slot(file, slot, self.owners[file]) for file in self.slots[slot])


@dataclass(slots=True)
class Slot:
    """One writer: its producer, and the position that it has published to. For one thread at a time."""

    sink: TransactionalSink
    number: int
    name: str = field(init=False)
    _calls: Calls = field(init=False)
    _opened: OpenProducer | None = None
    _last: int | None = None
    """The last window that this process knows as published."""
    _last_at: float = 0.0
    """When it was known, by the monotonic clock."""

    def __post_init__(self) -> None:
        self.name = self.sink.transactional_id(self.number)
        self._calls = Calls(self._serve)

    def publish(self, work: CommittedWindow, throttled: ThrottledLog) -> int | None:
        """Publish the slot's part of a window: rows sent, None when it was published before.

        Raises: what `Publisher.publish` gives.
        """
        subject = f"port {self.sink.port}, topic {self.sink.topic}, window {work.number}, slot {self.number}"
        retry = RetryDeadline(subject, self.sink.settings.deadline_s, throttled, stop=self.sink.stop)
        while True:
            try:
                with client_errors():
                    return self._attempt(work, retry, subject)
            except KafkaException as exc:
                try:
                    reason = self._recover(exc, retry, subject)
                except BaseException:
                    self.discard()
                    raise
                retry.repeat(reason)
            except HungError as exc:
                # The call may have taken effect: the next position shows it, and the next init ends its transaction.
                logger.warning(
                    "%s: %s; retrying with another producer, gives up after %.0f s",
                    subject,
                    exc,
                    self.sink.settings.deadline_s,
                )
                self.discard()
                retry.repeat(str(exc))
            except FileNotFoundError as exc:
                self._give_back()
                raise self._files_are_gone(work, retry, subject) from exc
            except BaseException:
                self._give_back()
                raise

    def discard(self) -> None:
        """Drop the producer with everything it has not sent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.producer.purge()

    def _attempt(self, work: CommittedWindow, retry: RetryDeadline, subject: str) -> int | None:
        if self._opened is not None:
            self._serve()
            if self._calls.last_error is not None:
                # It has lost a connection since. Such a producer tends to hang when it sends the offset, and a new one
                # costs 0.1 s.
                self.discard()
        if self._opened is None:
            self._opened = self._init(retry, subject)  # 1
            failpoints.hit("kafka.initialised")
        opened = self._opened
        if not opened.has_position:
            opened.position, opened.group = read_position(self.sink, self.name, self._calls, retry, subject)  # 2
            opened.has_position = True
            self._look_for_another_topic(opened.position, subject)
        if self._is_published(opened.position, work, subject):
            return None
        sent = 0
        spread = self.number if self.sink.keep_order else self.number + work.number
        batches = work.records(self.number)
        first = next(batches, None)
        opened.begin()  # 3
        failpoints.hit("kafka.begun")
        for batch in chain([] if first is None else [first], batches):
            opened.send(batch, spread, retry, subject)  # 4
            sent += batch.num_rows
            failpoints.hit("kafka.part")
        opened.flush(retry)
        failpoints.hit("kafka.sent")
        position = after(opened.position, work.number, work.checksum)
        opened.send_position(position, retry)  # 5
        failpoints.hit("kafka.offsets")
        opened.commit(position, retry)  # 6
        self._last, self._last_at = position.last, time.monotonic()
        failpoints.hit("kafka.committed")
        return sent

    def _look_for_another_topic(self, position: Position | None, subject: str) -> None:
        """Warn once if the offset is gone that was there, and too young to have expired."""
        if position is not None and self._last is None:
            self._last_at = time.monotonic()
        age_s = time.monotonic() - self._last_at
        if position is None and self._last is not None and not may_be_forgotten(self.sink, age_s):
            logger.warning(
                "%s: its offset is gone: the topic, or the group, was deleted. A topic that was made again lacks the "
                "windows up to %d. If readers need them, judge their records again with a store of another name: "
                "docs/kafka.md",
                subject,
                self._last,
            )
        self._last = None if position is None else position.last

    def _init(self, retry: RetryDeadline, subject: str) -> OpenProducer:
        """Step 1: a producer that has fenced all earlier ones, for a topic that exists."""
        self._calls.last_error = None
        try:
            producer = Producer(
                {**self.sink.producer_options(self.name), "error_cb": self._calls.remember},
                logger=QUIET,
            )
        except KafkaException as exc:
            raise KafkaOptionsError(f"{subject}: {error_of(exc).str()}; correct the sink's options") from exc

        def init() -> None:
            producer.poll(0)  # Only this calls `remember` with earlier errors.
            producer.init_transactions(STEP_S)

        self._calls.again(init, "the transaction coordinator", retry)
        return OpenProducer(producer, self.sink.topic, self._partitions(producer, retry, subject), self._calls)

    def _partitions(self, producer: Producer, retry: RetryDeadline, subject: str) -> int:
        """The number of the topic's partitions. A topic just made may be unknown to a broker for a moment."""
        topic = self.sink.topic
        began = time.monotonic()
        while True:
            known = self._calls.again(lambda: producer.list_topics(topic, STEP_S), "the brokers", retry)
            found = known.topics[topic]
            if found.error is None:
                return len(found.partitions)
            lasting = lasting_error(found.error, subject)
            if lasting is not None:
                raise lasting
            if names_a_missing_topic(found.error) and time.monotonic() - began > _TOPIC_GRACE_S:
                raise TopicMissingError(
                    f"{subject}: the cluster has no such topic; create it, or correct sinks.{self.sink.port}.topic"
                )
            retry.repeat(f"topic {topic}: {found.error.str()}")

    def _is_published(self, position: Position | None, work: CommittedWindow, subject: str) -> bool:
        found = decision(
            position,
            work.number,
            work.checksum,
            may_be_forgotten=position is None and may_be_forgotten(self.sink, work.age_s),
            where=f"{subject}: group {self.name}",
        )
        if found is not PublishDecision.UNKNOWN:
            return found is PublishDecision.PUBLISHED
        if work.unknown is OnUnknown.REFUSE:
            past = "no offset any more" if position is None else f"only windows from {min(position.checksums)} on"
            is_gone = math.isinf(work.age_s)
            when = "its staged files are gone, it is" if is_gone else f"committed {work.age_s / 86400:.1f} days ago and"
            answers = "skip" if is_gone else "publish or --unpublished skip"
            raise PublicationUnknownError(
                f"{subject}: {when} not marked as published; group {self.name} holds {past}, so whether it was is "
                "unknown. Search the topic for its records (header dedup-window, read_committed), then start once "
                f"with --unpublished {answers} (a Deduper: `unpublished=`)"
            )
        logger.warning("%s: %s, as the operator has answered", subject, work.unknown.value)
        return work.unknown is OnUnknown.SKIP

    def _files_are_gone(self, work: CommittedWindow, retry: RetryDeadline, subject: str) -> Exception:
        """The reason for missing staged files: another process has published the window, or they are lost."""
        position, _ = read_position(self.sink, self.name, self._calls, retry, subject)
        if position is not None and position.last >= work.number:
            return ProducerFencedError(f"{subject}: published by another process while this one prepared to")
        return IntegrityError(
            f"{subject}: the window is committed and not published, but its staged files are gone: they must have been "
            "deleted by hand; `deduper verify` shows which rows they held"
        )

    def _recover(self, exc: KafkaException, retry: RetryDeadline, subject: str) -> str:
        """Prepare the slot to repeat the protocol, and give the reason; or raise an error for the operator."""
        error = error_of(exc)
        opened = self._opened
        action = action_of(error)
        is_aborted = False
        open_s = 0.0
        if opened is not None and opened.since is not None:
            open_s = time.monotonic() - opened.since
            if action is not ErrorAction.FENCED:
                action = opened.abort(retry)
                is_aborted = action is ErrorAction.ABORT
        if action is ErrorAction.FENCED:
            timeout_s = self.sink.transaction_timeout_ms / 1000
            if open_s >= timeout_s:
                raise TransactionTooLongError(
                    f"{subject}: the transaction was open for {open_s:.0f} s, longer than transaction.timeout.ms "
                    f"({timeout_s:.0f} s): {error.str()}; raise kafka.transaction.timeout.ms or "
                    "make windows smaller"
                ) from exc
            raise ProducerFencedError(f"{subject}: {self.name}: {error.str()}") from exc
        lasting = lasting_error(error, subject)
        if lasting is not None:
            raise lasting from exc
        # A producer counts the partitions of its topic once.
        if is_aborted and opened is not None and not names_a_missing_topic(error):
            opened.has_position = False
        else:
            self.discard()
        logger.info("%s: beginning again: %s", subject, error.str())
        return error.str()

    def _give_back(self) -> None:
        """After an error that is not Kafka's: drop the producer, and abort its transaction if that takes seconds."""
        if self._opened is not None:
            error = self._opened.abort_once()
            if error is not None:
                logger.debug("%s: not aborted: %s", self.name, error)
        self.discard()

    def _serve(self) -> None:
        """Serve the producer's callbacks."""
        if self._opened is not None:
            self._opened.producer.poll(0)
