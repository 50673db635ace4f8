"""The records between two offsets of a topic partition, by librdkafka; runs in the reading tasks and in the driver.

Spark's stream has planned the offsets, so the fetch knows where it ends. Not every offset has a record: transactions
leave marks, compaction leaves holes. So a fetch is over at a record beyond the end, or when the client reports that the
partition has been read so far. It gives records in the order of their offsets, or nothing more: whatever is
unusual (an error of the client, silence, an offset that is gone) ends it, and Spark reads the range.

A process keeps its consumer from window to window. It is in no group: offsets are assigned, none is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition
from numpy.typing import NDArray

from deduper.gc_pause import paused
from deduper.kafka.quiet import QUIET
from deduper.tasks.readers.plain_file import NotPlain

_MOST_RECORDS: Final = 20_000
_MOST_BYTES: Final = 16 << 20
_STEP_S: Final = 0.05
_SILENCE_S: Final = 10.0
"""A fetch without any record for so long is left to Spark, which waits longer and reports why."""

_NO_TIMESTAMP: Final = -1
_READING: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # an offset that is gone is a loss, which `sources.kafka.batch` finds
    # The last fetch of a range asks for more than there is: the next range waits for its answer.
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 20,
    "fetch.queue.backoff.ms": 2,
    "queued.max.messages.kbytes": 32 << 10,
    "max.partition.fetch.bytes": 8 << 20,
}
_HARMLESS: Final = (KafkaError.GROUP_AUTHORIZATION_FAILED,)
"""The client asks for its group's coordinator, and needs no answer."""

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class RangePart:
    """The offsets [start, end) of a topic partition, the source partition `ordinal` of a window.

    Its records take about `plain_bytes`.
    """

    topic: str
    partition: int
    start: int
    end: int
    ordinal: int
    plain_bytes: int

    @property
    def name(self) -> str:
        """The range, for messages."""
        return f"{self.topic}-{self.partition}, offsets {self.start} to {self.end - 1}"


@dataclass(frozen=True)
class Fetched:
    """Records of a range, in the order of their offsets. The rest of them is made when it is asked for."""

    offsets: NDArray[np.int64]
    values: list[bytes | None]
    messages: list[Message] = field(repr=False)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """Their keys."""
        return list(map(Message.key, self.messages))

    @cached_property
    def headers(self) -> list[Headers | None]:
        """Their headers, None for none."""
        return cast(list[Headers | None], list(map(Message.headers, self.messages)))

    @cached_property
    def timestamps_ms(self) -> NDArray[np.int64]:
        """Their timestamps; -1 where a record has none."""
        found = np.array(list(map(Message.timestamp, self.messages)), np.int64).reshape(-1, 2)
        return np.where(found[:, 0] == TIMESTAMP_NOT_AVAILABLE, _NO_TIMESTAMP, found[:, 1])


def fetched(client: Mapping[str, str], part: RangePart) -> Iterator[Fetched]:
    """The records of a range, some thousands at a time. `client` are the options of a consumer.

    Raises:
        NotPlain: Spark has to read the range.
    """
    try:
        with paused():
            yield from _reader(client).records(part)
    except KafkaException as exc:
        close()
        raise NotPlain(f"{part.name}: {exc.args[0].str()}") from exc
    except BaseException:
        close()  # it is in the midst of a range
        raise


class _Reader:
    """A consumer, one range at a time."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self.client = client
        self._error = ""
        options: dict[str, Any] = {"group.id": "deduper", **_READING, **client, "error_cb": self._failed}
        self._consumer = Consumer(options, logger=QUIET)

    def records(self, part: RangePart) -> Iterator[Fetched]:
        """See `fetched`."""
        self._error = ""
        self._consumer.assign([TopicPartition(part.topic, part.partition, part.start)])
        offsets: list[NDArray[np.int64]] = []
        values: list[bytes | None] = []
        messages: list[Message] = []
        following, size, is_over = part.start, 0, part.start >= part.end
        while not is_over:
            given, is_over = self._some(part, following)
            if given:
                at = np.fromiter(map(Message.offset, given), np.int64, len(given))
                _check(part, given, at, following)
                within = int(np.searchsorted(at, part.end))
                if within < len(given):
                    given, at, is_over = given[:within], at[:within], True
                following = int(at[-1]) + 1 if within else following
                is_over = is_over or following == part.end
                read = list(map(Message.value, given))
                offsets.append(at)
                messages += given
                values += read
                size += sum(map(len, filter(None, read)))
            if is_over:
                self._consumer.unassign()  # what it has fetched of the next window's may be another process'
            if messages and (is_over or len(messages) >= _MOST_RECORDS or size >= _MOST_BYTES):
                yield Fetched(np.concatenate(offsets), values, messages)
                offsets, values, messages, size = [], [], [], 0

    def _some(self, part: RangePart, following: int) -> tuple[list[Message], bool]:
        """At least one record, unless the range is over, which is the second value."""
        until = time.monotonic() + _SILENCE_S
        while True:
            given = self._consumer.consume(min(_MOST_RECORDS, part.end - following), 0.0)
            if not given:
                first = self._consumer.poll(_STEP_S)
                given = [] if first is None else [first]
            is_over = False
            if any(map(Message.error, given)):
                for message in given:
                    error = message.error()
                    if error is None or error.code() in _HARMLESS:
                        continue
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    # An end before the range's: the leader has changed, and does not know yet how far it may give.
                    is_over = is_over or (message.offset() or 0) >= part.end
                given = [message for message in given if message.error() is None]
            if given or is_over:
                return given, is_over
            if time.monotonic() > until:
                why = self._error or "no answer"
                raise NotPlain(f"{part.name}: no record in {_SILENCE_S:.0f} s, at {following}: {why}")

    def _failed(self, error: KafkaError) -> None:
        self._error = error.str()


_readers: list[_Reader] = []
"""The consumer of this process: none or one."""


def _reader(client: Mapping[str, str]) -> _Reader:
    if not _readers or _readers[0].client != client:
        _readers[:] = [_Reader(client)]
    return _readers[0]


def close() -> None:
    """Close this process' consumer, if there is one."""
    _readers.clear()


def _check(part: RangePart, given: list[Message], offsets: NDArray[np.int64], following: int) -> None:
    """Raises NotPlain for records of another partition, or out of order: none may be skipped, none come twice."""
    of_another = any(
        (message.topic(), message.partition()) != (part.topic, part.partition) for message in (given[0], given[-1])
    )
    if of_another or offsets[0] < following or (np.diff(offsets) <= 0).any():
        raise NotPlain(f"{part.name}: records out of order behind {following}")
