"""The records between two offsets of a topic partition, by librdkafka; runs in the reading tasks and in the driver.

The window's offsets are planned, so the end of a fetch is known. Not every offset has a record: transactions leave
marks, compaction leaves holes. So a fetch is over at a record beyond the end, or when the client reports that the
partition was read so far. Records come in the order of their offsets. A fetch fails if no record comes in time, if the
client reports an error that may pass, if an offset or a topic is gone, or if records come out of order: a leader that
has lost some makes the client go back. Then the window begins again once the brokers answer, and is compared with what
they hold.

A process keeps its consumer from window to window. It is in no group: offsets are assigned, none is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deduper.errors import DeduperError, IntegrityError, SourceAwayError
from deduper.kafka.client import QUIET
from deduper.kafka.commands import committed_ranges
from deduper.kafka.error_actions import error_of, reading_error
from deduper.kafka.errors import BrokerUnavailableError
from deduper.sources.kafka.partition_queue import (
    HEADERS,
    KEY,
    MOST_RECORDS,
    OFFSET,
    TIMESTAMP,
    VALUE,
    Event,
    PartitionQueue,
)

_MOST_BYTES: Final = 16 << 20
_STEP_MS: Final = 50
SILENCE_S: Final = 10.0
"""A fetch fails after so long without a record."""

_READING: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # an offset that is gone is a loss, which `sources.kafka.batch` finds
    # The last fetch of a range requests more than there is, and the next range waits for its answer.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 20,
    "fetch.queue.backoff.ms": 2,
    "queued.max.messages.kbytes": 32 << 10,
    "max.partition.fetch.bytes": 8 << 20,
}
_HARMLESS: Final = (KafkaError.GROUP_AUTHORIZATION_FAILED,)
"""Errors about the group's coordinator, which the client requests and does not need."""
_DAMAGED: Final = (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION)


@dataclass(frozen=True, slots=True)
class RangePart:
    """The offsets [start, end) of a topic partition, the source partition `ordinal` of a window.

    Its records take about `decoded_bytes`. A fetch is given up after `silence_s` without a record.
    """

    topic: str
    partition: int
    start: int
    end: int
    ordinal: int
    decoded_bytes: int
    silence_s: float = SILENCE_S

    @property
    def name(self) -> str:
        """The range, for messages."""
        return f"{self.topic}-{self.partition}, offsets {self.start} to {self.end - 1}"


def fetched(client: Mapping[str, str], part: RangePart, with_headers: bool) -> Iterator[pa.RecordBatch]:
    """The records of a range, some thousands at a time: `partition_queue.SCHEMA`. `client` are a consumer's options.

    Headers are null in all rows if they are not asked for.

    Raises:
        SourceAwayError: the range cannot be read now.
        KafkaDeniedError: no right to read it.
        IntegrityError: the brokers hold a batch of records that is damaged.
    """
    try:
        yield from _reader(client).records(part, with_headers)
    except KafkaException as exc:
        close()
        raise _failure(part, error_of(exc)) from exc
    except BaseException:
        close()  # it is in the midst of a range
        raise


def expect(client: Mapping[str, str], parts: Sequence[RangePart], with_headers: bool) -> None:
    """Begin to fetch some ranges at once, each of another partition; `fetched` gives them, in this order.

    Together they take as long as one: a fetch waits for its brokers. An error is one of the range that it is about.
    """
    _reader(client).expect(parts, with_headers)


def _failure(part: RangePart, error: KafkaError) -> DeduperError:
    if error.code() in _DAMAGED:
        return IntegrityError(
            f"{part.name}: a batch of records is damaged: {error.str()}; make a replica with a sound copy the leader, "
            "or delete the records up to its end, and set `data_loss: continue`"
        )
    return reading_error(error, part.name) or SourceAwayError(f"{part.name}: {error.str()}")


class _RangeReader:
    """A consumer, which gives one range at a time."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self.client = client
        self._error: KafkaError | None = None
        options: dict[str, Any] = {"group.id": "deduper", **_READING, **client, "error_cb": self._failed}
        self._consumer = Consumer(options, logger=QUIET)
        self._expected: dict[RangePart, PartitionQueue] = {}

    def expect(self, parts: Sequence[RangePart], with_headers: bool) -> None:
        """See `expect`."""
        self.forget()
        self._error = None
        wanted = [part for part in parts if part.start < part.end]
        for part in wanted:
            self._expected[part] = PartitionQueue(self._consumer, part.topic, part.partition, with_headers)
        self._consumer.assign([TopicPartition(part.topic, part.partition, part.start) for part in wanted])

    def forget(self) -> None:
        """Expect no range any more."""
        while self._expected:
            self._expected.popitem()[1].close()

    def records(self, part: RangePart, with_headers: bool) -> Iterator[pa.RecordBatch]:
        """See `fetched`."""
        if part.start >= part.end:
            return
        if part not in self._expected:
            self.expect([part], with_headers)
        with closing(self._expected.pop(part)) as queue:
            pieces: list[pa.RecordBatch] = []
            following, count, size, is_over = part.start, 0, 0, False
            while not is_over:
                given, is_over = self._some(queue, part, following)
                if given.num_rows:
                    offsets = given.column(OFFSET).to_numpy()
                    if offsets[0] < following or (np.diff(offsets) <= 0).any():
                        raise SourceAwayError(f"{part.name}: records out of order behind {following}")
                    within = int(np.searchsorted(offsets, part.end))
                    if within < len(offsets):
                        given, is_over = given.slice(0, within), True
                    following = int(offsets[within - 1]) + 1 if within else following
                    is_over = is_over or following == part.end
                    pieces.append(given)
                    count += within
                    size += given.get_total_buffer_size()
                if is_over and not self._expected:
                    self._consumer.unassign()  # what it has fetched of the next window's may be another process'
                    self._consumer.poll(0)  # lines of log and lost connections that have gathered
                if count and (is_over or count >= MOST_RECORDS or size >= _MOST_BYTES):
                    yield pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
                    pieces, count, size = [], 0, 0

    def _some(self, queue: PartitionQueue, part: RangePart, following: int) -> tuple[pa.RecordBatch, bool]:
        """At least one record, unless the range is over, which is the second value."""
        until = time.monotonic() + part.silence_s
        while True:
            given, events = queue.take(min(MOST_RECORDS, part.end - following), _STEP_MS)
            if not given.num_rows:
                events = events + self._of_consumer()
            is_over = False
            for event in events:
                if event.error.code() in _HARMLESS:
                    continue
                if event.error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(event.error)
                # An end before the range's: the leader has changed, and does not know yet how far it may give.
                is_over = is_over or event.offset >= part.end
            if given.num_rows or is_over:
                return given, is_over
            if time.monotonic() > until:
                denied = self._error and reading_error(self._error, part.name)
                if denied:
                    raise denied
                why = self._error.str() if self._error else "no answer"
                raise SourceAwayError(f"{part.name}: no record in {part.silence_s:.0f} s, at {following}: {why}")

    def _of_consumer(self) -> list[Event]:
        """What the consumer has to report beside its partition's records; calls `_failed` for connections."""
        message = self._consumer.poll(0)
        if message is None:
            return []
        error = message.error()
        if error is None:
            raise SourceAwayError(f"{message.topic()}-{message.partition()}: a record outside its partition's queue")
        return [Event(error, message.offset() or 0)]

    def _failed(self, error: KafkaError) -> None:
        self._error = error


_readers: list[_RangeReader] = []
"""The consumer of this process: none or one."""


def _reader(client: Mapping[str, str]) -> _RangeReader:
    if not _readers or _readers[0].client != client:
        close()
        _readers.append(_RangeReader(client))
    return _readers[0]


def close() -> None:
    """Close this process' consumer, if there is one."""
    for reader in _readers:
        reader.forget()
    _readers.clear()


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic; its headers in their order. `timestamp_ms` is negative where it has none."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def header(self, name: str) -> str | None:
        """The last header of this name as text."""
        found = next((value for key, value in reversed(self.headers) if key == name), None)
        return None if found is None else found.decode("utf-8", "replace")


def whole_topic(client: Mapping[str, str], topic: str) -> Iterator[tuple[RangePart, pa.RecordBatch]]:
    """All committed records of a topic that the brokers hold, up to its ends now; for commands.

    Batches of `partition_queue.SCHEMA`, each of one range, in the order of each partition.

    Raises:
        BrokerUnavailableError: the records do not come as the brokers have promised them.
        TopicMissingError, KafkaDeniedError: as `committed_ranges`.
        IntegrityError: as `fetched`.
    """
    options = {**client, "isolation.level": "read_committed"}
    for number, (first, end) in committed_ranges(client, topic).items():
        part = RangePart(topic, number, first, end, 0, 0)
        try:
            for batch in fetched(options, part, True):
                yield part, batch
        except SourceAwayError as exc:
            raise BrokerUnavailableError(f"topic {topic}: {exc}") from exc


def records_of(part: RangePart, batch: pa.RecordBatch) -> Iterator[TopicRecord]:
    """The records of a batch, one by one."""
    for row in batch.to_pylist():
        headers = tuple((name_of(one["name"]), one["value"]) for one in row[HEADERS] or ())
        yield TopicRecord(part.partition, row[OFFSET], row[TIMESTAMP], row[KEY], row[VALUE], headers)


def name_of(header: bytes | None) -> str:
    """The name of a header, as Java has one that is no UTF-8."""
    return (header or b"").decode("utf-8", "replace")
