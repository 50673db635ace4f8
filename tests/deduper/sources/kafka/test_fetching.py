"""A range of offsets from a scripted consumer: whole and in order, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from deduper.errors import IntegrityError, SourceAwayError
from deduper.kafka.errors import KafkaDeniedError
from deduper.sources.kafka import fetching
from deduper.sources.kafka.fetching import RangePart, fetched
from deduper.sources.kafka.partition_queue import OFFSET, SCHEMA, Event

CLIENT = {"bootstrap.servers": "nowhere:1"}


Record = dict[str, Any]
Script = Sequence[Sequence[Record | Event]]


def record(offset: int, value: bytes | None = b"v") -> Record:
    """A record of the partition."""
    return {"offset": offset, "timestamp_ms": offset * 10, "value": value, "key": None, "headers": None}


def failure(code: int, offset: int = -1) -> Event:
    """An event that is no record."""
    return Event(KafkaError(code), offset)


def end(offset: int) -> Event:
    """The report that the partition has been read so far."""
    return failure(KafkaError._PARTITION_EOF, offset)


class ScriptedConsumer:
    """Notes what is assigned, and has `words` to say when it is polled."""

    words: ClassVar[list[Message[bytes, bytes]]] = []
    made = 0

    def __init__(self, options: dict[str, Any], **_: Any) -> None:
        type(self).made += 1
        assert options["auto.offset.reset"] == "error"
        assert options["enable.auto.commit"] is False
        self.assigned: list[TopicPartition] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert ScriptedQueue.is_open, "records would come to the consumer's own queue"
        self.assigned = partitions

    def unassign(self) -> None:
        self.assigned = []

    def poll(self, timeout: float) -> Message[bytes, bytes] | None:
        assert timeout == 0
        return self.words.pop(0) if self.words else None


class ScriptedQueue:
    """Gives what `script` has: a list at a time, as much of it as is asked for, and nothing for an empty one."""

    script: Script = ()
    is_open = False
    now = 0.0
    """Seconds: time passes where the script has nothing more to give, and only there."""

    def __init__(self, consumer: ScriptedConsumer, topic: str, partition: int, with_headers: bool) -> None:
        assert (topic, partition, consumer.assigned) == ("t", 1, [])
        type(self).is_open = True
        self._left = [list(some) for some in self.script]

    def take(self, most: int, wait_ms: int) -> tuple[pa.RecordBatch, list[Event]]:
        assert 0 < wait_ms < 100
        type(self).now += 0.0 if self._left else 1.0
        some = self._left.pop(0) if self._left else []
        if len(some) > most:
            self._left.insert(0, some[most:])
        some = some[:most]
        rows = [one for one in some if not isinstance(one, Event)]
        return pa.RecordBatch.from_pylist(rows, SCHEMA), [one for one in some if isinstance(one, Event)]

    def close(self) -> None:
        type(self).is_open = False


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fetching.close()
    monkeypatch.setattr(fetching, "Consumer", ScriptedConsumer)
    monkeypatch.setattr(fetching, "PartitionQueue", ScriptedQueue)
    monkeypatch.setattr(fetching, "time", SimpleNamespace(monotonic=lambda: ScriptedQueue.now))
    ScriptedConsumer.made = 0
    ScriptedConsumer.words = []
    yield
    fetching.close()
    assert not ScriptedQueue.is_open


def read(script: Script, start: int, stop: int) -> list[pa.RecordBatch]:
    """The range of these offsets."""
    ScriptedQueue.script = script
    return list(fetched(CLIENT, RangePart("t", 1, start, stop, 0, 0, silence_s=0.05), with_headers=False))


def offsets(found: Sequence[pa.RecordBatch]) -> list[int]:
    """Of all records, in their order."""
    return [offset for some in found for offset in some.column(OFFSET).to_pylist()]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([[record(3), record(4), record(5)]], [3, 4, 5]),
        ([[record(3)], [], [record(4)], [record(5), record(6)]], [3, 4, 5]),
        ([[record(4), record(9)]], [4]),  # holes, and a record behind the end
        ([[record(3)], [end(6)]], [3]),  # marks at the end, and nothing behind them
        ([[record(3)], [end(4)], [record(5)]], [3, 5]),  # an end before the range's: it goes on
        ([[end(6)]], []),
        ([[failure(KafkaError.GROUP_AUTHORIZATION_FAILED)], [record(5)]], [5]),
        ([[record(7)]], []),
    ],
)
def test_a_range_is_over_at_its_end(script: Script, expected: list[int]) -> None:
    """At its last offset, at a record behind it, or when there is nothing more."""
    assert offsets(read(script, 3, 6)) == expected


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([[record(3)]], "no record in 0 s, at 4: no answer"),
        ([[end(5)]], "no record"),
        ([[record(2), record(3)]], "out of order"),
        ([[record(4), record(3), record(5)]], "out of order"),
        ([[record(3), record(3), record(5)]], "out of order"),
        ([[record(3)], [record(3)]], "out of order"),
        ([[record(3)], [failure(KafkaError._AUTO_OFFSET_RESET)]], "offsets 3 to 5"),
        ([[failure(KafkaError.UNKNOWN_TOPIC_OR_PART)]], "t-1, offsets 3 to 5: "),
    ],
)
def test_whatever_is_unusual_is_tried_again(script: Script, reason: str) -> None:
    """And the next range has a new consumer."""
    with pytest.raises(SourceAwayError, match=reason):
        read(script, 3, 6)
    assert offsets(read([[record(3), record(4), record(5)]], 3, 6)) == [3, 4, 5]
    assert ScriptedConsumer.made == 2


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaDeniedError, "it needs Read and Describe on the topic"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, KafkaDeniedError, "it needs a login that is valid"),
        (KafkaError._BAD_MSG, IntegrityError, "a batch of records is damaged"),
        (KafkaError._BAD_COMPRESSION, IntegrityError, "a batch of records is damaged"),
    ],
)
def test_what_no_waiting_mends_is_an_error_of_its_own(code: int, kind: type[Exception], told: str) -> None:
    """With the range in front."""
    with pytest.raises(kind, match=f"t-1, offsets 3 to 5: .*{told}"):
        read([[record(3)], [failure(code)]], 3, 6)


def test_a_refused_login_is_the_reason_of_silence() -> None:
    """The client reports it beside the partition, and goes on trying."""
    read([[record(0)]], 0, 1)
    ScriptedQueue.script = []
    reading = fetched(CLIENT, RangePart("t", 1, 3, 6, 0, 0, silence_s=2.5), with_headers=False)
    polled = ScriptedConsumer.poll

    def poll(consumer: ScriptedConsumer, timeout: float) -> None:
        fetching._readers[0]._failed(KafkaError(KafkaError._AUTHENTICATION))

    ScriptedConsumer.poll = poll  # type: ignore[assignment, method-assign]
    try:
        with pytest.raises(KafkaDeniedError, match="it needs a login that is valid"):
            next(reading)
    finally:
        ScriptedConsumer.poll = polled  # type: ignore[method-assign]


def test_a_consumer_stays_for_the_next_range_and_forgets_the_last() -> None:
    """With the same options; a range that was given up in its midst leaves none."""
    read([[record(3), record(4), record(5)]], 3, 6)
    read([[record(6)]], 6, 7)
    assert ScriptedConsumer.made == 1
    assert fetching._readers[0]._consumer.assigned == []  # type: ignore[attr-defined]  # the scripted one
    ScriptedQueue.script = [[record(offset) for offset in range(50_000)]]
    begun = fetched(CLIENT, RangePart("t", 1, 0, 50_000, 0, 0), with_headers=False)
    next(begun)
    begun.close()  # type: ignore[attr-defined]  # a generator
    read([[record(3)]], 3, 4)
    assert ScriptedConsumer.made == 2
    list(fetched({"bootstrap.servers": "elsewhere:1"}, RangePart("t", 1, 3, 4, 0, 0), with_headers=False))
    assert ScriptedConsumer.made == 3


def test_large_records_come_few_at_a_time() -> None:
    """Bytes bound what is held, not only numbers."""
    megabyte = bytes(1 << 20)
    found = read([[record(offset, megabyte)] for offset in range(40)], 0, 40)
    assert offsets(found) == list(range(40))
    assert [some.num_rows for some in found] == [16, 16, 8]


def test_what_the_consumer_reports_beside_the_records() -> None:
    """A group's refusal means nothing. Another error, or a record in the wrong queue, ends the fetch."""
    refused, unknown = (
        Message(topic="t", partition=1, offset=-1, error=KafkaError(code))
        for code in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)
    )
    ScriptedConsumer.words = [refused]
    assert offsets(read([[], [record(3), record(4), record(5)]], 3, 6)) == [3, 4, 5]
    ScriptedConsumer.words = [unknown]
    with pytest.raises(SourceAwayError, match="t-1, offsets 3 to 5: "):
        read([[], [record(3), record(4), record(5)]], 3, 6)
    ScriptedConsumer.words = [Message(topic="t", partition=1, offset=3, value=b"v")]
    with pytest.raises(SourceAwayError, match="t-1: a record outside its partition's queue"):
        read([[], [record(4), record(5)]], 3, 6)


@given(st.data())
def test_however_records_arrive_each_of_the_range_comes_once(data: st.DataObject) -> None:
    """Holes, chunks, ends that are reported early, records behind the end."""
    there = sorted(data.draw(st.sets(st.integers(0, 60), max_size=40)))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
    events: list[list[Record | Event]] = [[]]
    for offset in (offset for offset in there if offset >= start):
        events[-1].append(record(offset))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            events.append([])
        elif kind == 1 and offset + 1 < stop:
            events.append([end(offset + 1)])
    events.append([end(61)])
    assert offsets(read(events, start, stop)) == [offset for offset in there if start <= offset < stop]
