"""Exactly once into a Kafka topic: a committed window's staged rows, one transaction for each writer slot.

    1 init        init_transactions: no older producer of this slot can commit any more; what it left open is aborted
    2 look        the slot's committed offset, above the window: it is published, nothing is sent
    3 begin       when the first rows are at hand
    4 send        every row in order, and wait until the brokers have all of them
    5 offset      window + 1 and the record's checksum into the same transaction
    6 commit      rows and offset become visible together, or neither

2 after 1, and never before: a slow predecessor could commit between the look and the init, and the window would go out
twice. Steps 1 and 2 are taken once for a producer, and again after every failure. Producers stay open between windows:
while this one is not fenced, nobody else has moved the offset. docs/kafka.md argues the whole, crash by crash.

No delivery callbacks: a record that could not be delivered fails its transaction, and librdkafka names the cause.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from bucket_store import failpoints
from deduper.bounded_call import HungError, bounded
from deduper.collecting import put_off
from deduper.errors import IntegrityError
from deduper.kafka_errors import (
    KafkaDeniedError,
    KafkaOptionsError,
    ProducerFencedError,
    PublicationUnknownError,
    RecordRefusedError,
    TopicMissingError,
    TransactionTooLongError,
)
from deduper.kafka_fates import BAD_LOGIN, Fate, client_errors, error_of, fate_of, lasting_error, names_a_missing_topic
from deduper.kafka_options import librdkafka_options
from deduper.patience import Patience, Reporter
from deduper.publication import Position, Unknown, Verdict, after, verdict
from deduper.staged_records import Record, records_of_slot
from deduper.stopping import StopRequested

logger = logging.getLogger(__name__)

T = TypeVar("T")

STEP_S = 2.0
"""No call is to block for longer, so that what is waited for can be said."""

_HUNG_S = 15.0
_OFFSETS_HUNG_S = 6.0  # The one call that is known to hang; it takes milliseconds.

DEFAULT_OFFSETS_RETENTION_S = 7 * 86400.0
_RETENTION_MARGIN_S = 3600.0
_UNDECIDED = (
    "the coordinator answers, but an open transaction is yet to decide this slot's offset; the brokers end it within "
    'transaction.timeout.ms, unless they have forgotten it: see "hanging transaction" in docs/kafka.md'
)
_TOPIC_GRACE_S = 5.0
_LOGIN_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """How a publisher behaves; none of it changes what is published.

    `transaction_timeout_s` must cover the sending of one slot of the largest window. Longer is not better: when a
    driver dies and none is started in its place, readers of the topic stand still for so long.
    """

    deadline_s: float = 300.0
    transaction_timeout_s: float = 600.0
    queue_bytes: int = 64 << 20
    offsets_retention_s: float | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a window: rows sent by slot; slots that had been published before; seconds."""

    sent: Mapping[int, int]
    already: tuple[int, ...]
    seconds: float


def transactional_id(job: str, store_id: str, port: str, slot: int) -> str:
    """The name of a slot's producer and of its consumer group."""
    return f"{job}/{store_id}/{port}/{slot}"


class Publishing:
    """The slots of one window and one port that are being published."""

    def __init__(self, slots: Mapping[int, Future[int | None]]) -> None:
        self._slots = slots
        self._began = time.monotonic()

    def error(self) -> BaseException | None:
        """Wait for all of them, whatever becomes of each; of several errors the gravest, with the others as notes."""
        errors = [error for slot in self._slots.values() if (error := slot.exception()) is not None]
        return gravest(errors) if errors else None

    def wait(self) -> Publication:
        """Wait for all of them, and raise what `error` gives."""
        error = self.error()
        if error is not None:
            raise error
        rows = {number: slot.result() for number, slot in self._slots.items()}
        return Publication(
            sent={number: count for number, count in rows.items() if count is not None},
            already=tuple(number for number, count in rows.items() if count is None),
            seconds=time.monotonic() - self._began,
        )


class KafkaPublisher:
    """Publishes the windows of one port, in order: begins one, waits for it, begins the next. For one thread.

    The slots are published on `pool`. Its threads should outlive the windows: Arrow and the C library keep memory for
    every thread that has read rows, and hand it on only slowly once the thread is gone.

    `keep_order`: rows without a key go to one and the same partition as long as their slot is the same, so that they
    too stay in order; otherwise another one each window, which spreads them. Rows with a key go where Kafka's Java
    client sends them (murmur2), whatever the slot.
    """

    def __init__(
        self,
        *,
        job: str,
        store_id: str,
        port: str,
        topic: str,
        bootstrap_servers: str,
        pool: Executor,
        options: Mapping[str, str] | None = None,
        keep_order: bool = False,
        settings: PublisherSettings | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pool = pool
        self._sink = _Sink(
            job=job,
            store_id=store_id,
            port=port,
            topic=topic,
            client=librdkafka_options(bootstrap_servers, options or {}),
            keep_order=keep_order,
            settings=settings or PublisherSettings(),
            is_stopping=is_stopping,
        )
        self._slots: dict[int, _Slot] = {}

    def begin(
        self,
        window: int,
        record_checksum: int,
        slots: Mapping[int, Sequence[Path]],
        *,
        age_s: float = 0.0,
        unknown: Unknown = Unknown.REFUSE,
    ) -> Publishing:
        """Publish a committed window, unless it is published: after waiting it is. Safe to repeat after any crash.

        `slots` is what the commit record says, never what today's settings would give: the staged files of each slot,
        in order. Windows come in order. `age_s` is how long ago the window was committed, for the case that the cluster
        has forgotten the slot's offset since; `unknown` is the operator's answer to that.

        Raises, when it is waited for:
            ProducerFencedError: look at the epochs; if this is still the highest, call again, a few times.
            IntegrityError: another record was published under this number, or staged rows are damaged or gone.
            PublicationUnknownError: see `unknown`.
            KafkaSinkError: what a person must do, or a deadline that has passed.
            StopRequested: a stop was asked for while it waited for the brokers.
        """
        owners: dict[Path, set[int]] = {}
        for slot, files in slots.items():
            for file in files:
                owners.setdefault(file, set()).add(slot)
        work = _Window(window, record_checksum, slots, owners, age_s, unknown)
        reporter = Reporter()
        numbers = sorted(number for number, files in slots.items() if files)
        for number in numbers:
            if number not in self._slots:
                self._slots[number] = _Slot(self._sink, number)
        return Publishing(
            {number: self._pool.submit(self._slots[number].publish, work, reporter) for number in numbers}
        )

    def close(self) -> None:
        """Let the producers go. What they have not committed is aborted by whoever comes next."""
        for slot in self._slots.values():
            slot.discard()
        self._slots.clear()


@dataclass(frozen=True, slots=True)
class _Sink:
    """One port's topic and how it is reached."""

    job: str
    store_id: str
    port: str
    topic: str
    client: Mapping[str, str]
    keep_order: bool
    settings: PublisherSettings
    is_stopping: Callable[[], bool]

    def producer_options(self, name: str) -> dict[str, Any]:
        """What a producer is made with; the user's options go first, except where the protocol needs one."""
        timeout_ms = int(self.client.get("transaction.timeout.ms", self.settings.transaction_timeout_s * 1000))
        defaults = {
            "linger.ms": 20,
            "queue.buffering.max.kbytes": max(1, self.settings.queue_bytes >> 10),
            "queue.buffering.max.messages": 100_000,
            # The topic's own limit decides, and its answer names the topic.
            "message.max.bytes": min(self.settings.queue_bytes, 64 << 20),
            # A record waits as long as its transaction may: the deadline is ours.
            "message.timeout.ms": timeout_ms,
        }
        fixed = {
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
        }
        return {**defaults, **self.client, **fixed}

    @property
    def transaction_timeout_s(self) -> float:
        """After how long the broker aborts an open transaction."""
        return float(self.producer_options("")["transaction.timeout.ms"]) / 1000


@dataclass(frozen=True, slots=True)
class _Window:
    """One window as the commit record has it."""

    number: int
    checksum: int
    slots: Mapping[int, Sequence[Path]]
    owners: Mapping[Path, set[int]]
    age_s: float
    unknown: Unknown

    def records(self, slot: int) -> Iterator[list[Record]]:
        """A slot's rows, in order."""
        return chain.from_iterable(records_of_slot(file, slot, self.owners[file]) for file in self.slots[slot])


@dataclass(slots=True)
class _Opened:
    """A producer after step 1, and what step 2 has found; `looked` is False until then, and after every failure."""

    producer: Producer
    partitions: int
    group: Any = None
    looked: bool = False
    position: Position | None = None
    since: float | None = None
    """When its transaction was begun, while there is one."""


@dataclass(slots=True)
class _Slot:
    """One writer: its producer, and how far it has published. For one thread at a time."""

    sink: _Sink
    number: int
    name: str = field(init=False)
    last_words: KafkaError | None = None
    _opened: _Opened | None = None

    def __post_init__(self) -> None:
        self.name = transactional_id(self.sink.job, self.sink.store_id, self.sink.port, self.number)

    def publish(self, work: _Window, reporter: Reporter) -> int | None:
        """Publish the slot's part of a window: rows sent, None when it was published before."""
        subject = f"port {self.sink.port}, topic {self.sink.topic}, window {work.number}, slot {self.number}"
        patience = Patience(subject, self.sink.settings.deadline_s, reporter, is_stopping=self.sink.is_stopping)
        while True:
            try:
                with client_errors():
                    return self._attempt(work, patience, subject)
            except KafkaException as exc:
                try:
                    reason = self._recover(exc, patience, subject)
                except BaseException:
                    self.discard()
                    raise
                patience.repeat(reason)
            except HungError as exc:
                # Whether the call has done its work, the next look tells; and the next init ends its transaction.
                logger.warning(
                    "%s: %s; goes on with another producer, gives up after %.0f s",
                    subject,
                    exc,
                    self.sink.settings.deadline_s,
                )
                self.discard()
                patience.repeat(str(exc))
            except FileNotFoundError as exc:
                self._give_back()
                raise self._files_are_gone(work, patience, subject) from exc
            except BaseException:
                self._give_back()
                raise

    def discard(self) -> None:
        """Let the producer go, with all it has not sent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.producer.purge()

    def _attempt(self, work: _Window, patience: Patience, subject: str) -> int | None:
        if self._opened is not None:
            self._opened.producer.poll(0)
            if self.last_words is not None:
                # It has lost a connection since. Such a one tends to hang when it sends the offset, and another costs
                # 0.1 s.
                self.discard()
        if self._opened is None:
            self._opened = self._init(patience, subject)  # 1
            failpoints.hit("kafka.initialised")
        opened = self._opened
        if not opened.looked:
            opened.position, opened.group = self._look(patience, subject)  # 2
            opened.looked = True
        if self._is_published(opened.position, work, subject):
            return None
        sent = 0
        with put_off():
            batches = work.records(self.number)
            first = next(batches, [])
            opened.producer.begin_transaction()  # 3
            opened.since = time.monotonic()
            failpoints.hit("kafka.begun")
            for batch in chain([first], batches):
                self._send(batch, work.number, opened, patience)  # 4
                sent += len(batch)
                failpoints.hit("kafka.part")
        self._flush(opened, patience)
        failpoints.hit("kafka.sent")
        position = after(opened.position, work.number, work.checksum)
        offset = TopicPartition(self.sink.topic, 0, position.offset, metadata=position.metadata)
        # 5
        self._again(
            lambda: opened.producer.send_offsets_to_transaction([offset], opened.group, STEP_S),
            "the group's coordinator",
            patience,
            _OFFSETS_HUNG_S,
        )
        failpoints.hit("kafka.offsets")
        # A commit that ran into its time is asked again, never aborted: it may have happened.
        self._again(lambda: opened.producer.commit_transaction(STEP_S), "the commit", patience)  # 6
        opened.since = None
        opened.position = position
        failpoints.hit("kafka.committed")
        return sent

    def _init(self, patience: Patience, subject: str) -> _Opened:
        """Step 1: a producer that has fenced its predecessors, of a topic that exists."""
        self.last_words = None
        try:
            producer = Producer(
                {**self.sink.producer_options(self.name), "error_cb": self._remember},
                logger=_QUIET,
            )
        except KafkaException as exc:
            raise KafkaOptionsError(f"{subject}: {error_of(exc).str()}; correct the sink's options") from exc

        def init() -> None:
            producer.poll(0)  # Nothing else brings `_remember` what went wrong before.
            producer.init_transactions(STEP_S)

        self._again(init, "the transaction coordinator", patience)
        return _Opened(producer, self._partitions(producer, patience, subject))

    def _partitions(self, producer: Producer, patience: Patience, subject: str) -> int:
        """How many partitions the topic has. A topic just made may be unknown to a broker for a moment."""
        topic = self.sink.topic
        began = time.monotonic()
        while True:
            found = self._again(lambda: producer.list_topics(topic, STEP_S), "the brokers", patience).topics[topic]
            if found.error is None:
                return len(found.partitions)
            lasting = lasting_error(found.error, subject)
            if lasting is not None:
                raise lasting
            if names_a_missing_topic(found.error) and time.monotonic() - began > _TOPIC_GRACE_S:
                raise TopicMissingError(
                    f"{subject}: the cluster has no such topic; create it, or correct sinks.{self.sink.port}.topic"
                )
            patience.repeat(f"topic {topic}: {found.error.str()}")

    def _look(self, patience: Patience, subject: str) -> tuple[Position | None, Any]:
        """Step 2: what the slot has published, by its group's committed offset, None when there is none; the group."""
        options = {
            **self.sink.client,
            "group.id": self.name,
            # Makes the coordinator answer only when no transaction is about to move the offset.
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "error_cb": self._remember,
        }
        consumer = Consumer(options, logger=_QUIET)

        def ask() -> TopicPartition:
            # The coordinator's refusal comes as an event; the call itself would only run out of time.
            event = consumer.poll(0)
            refusal = None if event is None else event.error()
            if refusal is not None and lasting_error(refusal, subject) is not None:
                raise KafkaException(refusal)
            try:
                return self._committed(consumer)
            except KafkaException as exc:
                if error_of(exc).code() == KafkaError._TIMED_OUT and self._is_undecided(options):
                    raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, _UNDECIDED)) from exc
                raise

        try:
            found = self._again(ask, "the group's coordinator", patience)
            group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        if found.offset < 0:
            return None, group
        return Position.of(found.offset, found.metadata or "", f"{subject}: group {self.name}"), group

    def _committed(self, consumer: Consumer) -> TopicPartition:
        (found,) = consumer.committed([TopicPartition(self.sink.topic, 0)], STEP_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return found

    def _is_undecided(self, options: Mapping[str, Any]) -> bool:
        """Whether the coordinator gives an offset to whoever does not ask it to wait for transactions.

        The client asks again by itself while one is open, and then says no more than that its time is over.
        """
        consumer = Consumer({**options, "isolation.level": "read_uncommitted"}, logger=_QUIET)
        try:
            self._committed(consumer)
        except KafkaException:
            return False
        finally:
            consumer.close()
        return True

    def _is_published(self, position: Position | None, work: _Window, subject: str) -> bool:
        found = verdict(
            position,
            work.number,
            work.checksum,
            may_be_forgotten=position is None and self._may_be_forgotten(work.age_s),
            where=f"{subject}: group {self.name}",
        )
        if found is not Verdict.UNKNOWN:
            return found is Verdict.PUBLISHED
        if work.unknown is Unknown.REFUSE:
            past = "no offset any more" if position is None else f"only windows from {min(position.checksums)} on"
            raise PublicationUnknownError(
                f"{subject}: committed {work.age_s / 86400:.1f} days ago and not marked as published; group "
                f"{self.name} holds {past}, so nobody knows whether it was. Look for its records in the topic (header "
                "dedup-window, read_committed), then start once with --unpublished publish or --unpublished skip"
            )
        logger.warning("%s: %s, as the operator has answered", subject, work.unknown.value)
        return work.unknown is Unknown.SKIP

    def _may_be_forgotten(self, age_s: float) -> bool:
        """Whether an offset that was committed right after the window may have expired by now."""
        if age_s < _RETENTION_MARGIN_S:
            return False
        retention_s = self.sink.settings.offsets_retention_s
        if retention_s is None:
            retention_s = offsets_retention_s(self.sink.client) or DEFAULT_OFFSETS_RETENTION_S
        return age_s > retention_s - _RETENTION_MARGIN_S

    def _files_are_gone(self, work: _Window, patience: Patience, subject: str) -> Exception:
        """Why staged files are missing: someone published the window meanwhile, or they are lost."""
        position, _ = self._look(patience, subject)
        if position is not None and position.last >= work.number:
            return ProducerFencedError(f"{subject}: published by another process while this one prepared to")
        return IntegrityError(
            f"{subject}: the window is committed and not published, but its staged files are gone: they must have been "
            "deleted by hand; `deduper verify` tells which rows they held"
        )

    def _send(self, batch: list[Record], window: int, opened: _Opened, patience: Patience) -> None:
        """Part of step 4: hand rows to the producer, as fast as it takes them."""
        produce, topic = opened.producer.produce, self.sink.topic
        spread = self.number if self.sink.keep_order else self.number + window
        for key, value, headers, timestamp_ms in batch:
            while True:
                try:
                    if key is None:
                        partition = spread % opened.partitions
                        produce(topic, value, partition=partition, timestamp=timestamp_ms, headers=headers)
                    else:
                        produce(topic, value, key, timestamp=timestamp_ms, headers=headers)
                    break
                except BufferError:
                    if not len(opened.producer):
                        raise RecordRefusedError(
                            f"port {self.sink.port}, topic {topic}, window {window}: a record of "
                            f"{len(value or b''):,} bytes does not fit into the client's queue; raise "
                            "kafka.buffer.memory"
                        ) from None
                    self._drain(opened, patience, enough=len(opened.producer) // 2)
                except KafkaException:
                    self._look_for_failure(opened)
                    raise
        opened.producer.poll(0)

    def _flush(self, opened: _Opened, patience: Patience) -> None:
        """The rest of step 4: wait until the brokers have every row."""
        self._drain(opened, patience, enough=0)

    def _drain(self, opened: _Opened, patience: Patience, enough: int) -> None:
        before = len(opened.producer)
        while before > enough:
            if enough:
                opened.producer.poll(0.05)
                left = len(opened.producer)
            else:
                left = opened.producer.flush(1.0)
            if left < before:
                patience.forward()
            else:
                # In a transaction that has failed nothing is sent any more.
                self._look_for_failure(opened)
                patience.wait(f"the brokers to take {left} records", self._said(), pause_s=0)
            before = left

    def _look_for_failure(self, opened: _Opened) -> None:
        """Raise why the transaction has failed, if it has.

        There is no question for it; but beginning once more is refused at once and without effect, with the cause.
        """
        try:
            opened.producer.begin_transaction()
        except KafkaException as exc:
            if error_of(exc).code() != KafkaError._STATE:
                raise

    def _again(self, call: Callable[[], T], what: str, patience: Patience, hung_s: float = _HUNG_S) -> T:
        """Make a call until it succeeds or fails for good; HungError when it does not come back."""
        while True:
            try:
                with client_errors():
                    result = bounded(call, hung_s, what)
            except KafkaException as exc:
                error = error_of(exc)
                if fate_of(error) is not Fate.AGAIN:
                    raise
                if self._opened is not None:
                    self._opened.producer.poll(0)
                waited = patience.wait(what, self._said(error))
                words = self.last_words
                if words is not None and words.code() in BAD_LOGIN and waited > _LOGIN_GRACE_S:
                    raise lasting_error(words, what) or KafkaDeniedError(f"{what}: {words.str()}") from exc
            else:
                patience.forward()
                return result

    def _recover(self, exc: KafkaException, patience: Patience, subject: str) -> str:
        """Bring the slot where the protocol can be repeated, and give the reason; or raise what a person must see."""
        error = error_of(exc)
        opened = self._opened
        fate = fate_of(error)
        is_aborted = False
        open_s = 0.0
        if opened is not None and opened.since is not None:
            open_s = time.monotonic() - opened.since
            if fate is not Fate.FENCED:
                fate = self._abort(opened, patience)
                is_aborted = fate is Fate.ABORT
        if fate is Fate.FENCED:
            if open_s >= self.sink.transaction_timeout_s:
                raise TransactionTooLongError(
                    f"{subject}: the transaction was open for {open_s:.0f} s, longer than transaction.timeout.ms "
                    f"({self.sink.transaction_timeout_s:.0f} s): {error.str()}; raise kafka.transaction.timeout.ms or "
                    "make windows smaller"
                ) from exc
            raise ProducerFencedError(f"{subject}: {self.name}: {error.str()}") from exc
        lasting = lasting_error(error, subject)
        if lasting is not None:
            raise lasting from exc
        # How many partitions a topic has is asked for once a producer.
        if is_aborted and opened is not None and not names_a_missing_topic(error):
            opened.looked = False
        else:
            self.discard()
        logger.info("%s: begun again: %s", subject, error.str())
        return error.str()

    def _abort(self, opened: _Opened, patience: Patience) -> Fate:
        """Abort the open transaction: ABORT when it is, FENCED, or RENEW when this producer cannot any more."""
        try:
            self._again(lambda: opened.producer.abort_transaction(STEP_S), "the abort", patience)
        except KafkaException as exc:
            return Fate.FENCED if fate_of(error_of(exc)) is Fate.FENCED else Fate.RENEW
        except HungError:
            return Fate.RENEW
        opened.since = None
        return Fate.ABORT

    def _give_back(self) -> None:
        """After an error that is not Kafka's: abort what is open, if that is a matter of seconds, and let go."""
        opened = self._opened
        if opened is not None and opened.since is not None:
            try:
                with client_errors():
                    bounded(lambda: opened.producer.abort_transaction(STEP_S), _HUNG_S, "the abort")
            except (KafkaException, HungError) as exc:
                # Who comes next aborts it.
                logger.debug("not aborted: %s", exc)
        self.discard()

    def _remember(self, error: KafkaError) -> None:
        self.last_words = error

    def _said(self, error: KafkaError | None = None) -> str:
        """What is known of a fault: of a call that only ran out of time, what the client said of its connections."""
        words = self.last_words
        if words is not None and (error is None or error.code() == KafkaError._TIMED_OUT):
            return words.str()
        return "no answer" if error is None else error.str()


class _Quiet:
    """What librdkafka says of every lost connection, for those who look for it; what matters is in errors and waits."""

    def log(self, _level: int, text: str, *values: object) -> None:
        """Take one line."""
        logger.debug(text, *values)


_QUIET: Any = _Quiet()


def offsets_retention_s(client: Mapping[str, str]) -> float | None:
    """How long the cluster keeps the offsets of an idle group; None when it does not say or may not be asked."""
    admin = AdminClient(dict(client), logger=_QUIET)
    try:
        broker = next(iter(admin.list_topics(timeout=STEP_S).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        (answer,) = admin.describe_configs([resource], request_timeout=STEP_S).values()
        return float(answer.result(STEP_S)["offsets.retention.minutes"].value) * 60
    except (KafkaException, StopIteration, KeyError, TimeoutError) as exc:
        logger.info("offsets.retention.minutes cannot be read, 7 days are assumed: %s", exc)
        return None


def gravest(errors: Sequence[BaseException]) -> BaseException:
    """What is to be looked at first, with the others as notes: a fence, then an integrity error; a stop comes last."""
    order = (ProducerFencedError, IntegrityError, PublicationUnknownError)

    def rank(error: BaseException) -> int:
        if isinstance(error, StopRequested):
            return len(order) + 1
        return next((number for number, kind in enumerate(order) if isinstance(error, kind)), len(order))

    first = min(errors, key=rank)
    for other in errors:
        if other is not first:
            first.add_note(f"and: {other}")
    return first
