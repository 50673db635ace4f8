"""A range of offsets from a scripted consumer: whole and in order, or left to Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from deduper.sources.kafka import fetching
from deduper.sources.kafka.fetching import Fetched, RangePart, fetched
from deduper.tasks.readers.plain_file import NotPlain

CLIENT = {"bootstrap.servers": "nowhere:1"}


def record(offset: int, value: bytes | None = b"v", partition: int = 1) -> Message[bytes, bytes]:
    """A record of the topic."""
    return Message(topic="t", partition=partition, offset=offset, value=value, timestamp=(1, offset * 10))


def failure(code: int, offset: int = -1) -> Message[bytes, bytes]:
    """An event that is no record."""
    return Message(topic="t", partition=1, offset=offset, error=KafkaError(code))


def end(offset: int) -> Message[bytes, bytes]:
    """The report that the partition has been read so far."""
    return failure(KafkaError._PARTITION_EOF, offset)


class ScriptedConsumer:
    """Gives what `script` has: a list at a time, as much of it as is asked for, and nothing for an empty one."""

    script: Sequence[Sequence[Message[bytes, bytes]]] = ()
    made = 0

    def __init__(self, options: dict[str, Any], **_: Any) -> None:
        type(self).made += 1
        assert options["auto.offset.reset"] == "error"
        assert options["enable.auto.commit"] is False
        self.assigned: list[TopicPartition] = []
        self._left: Iterator[list[Message[bytes, bytes]]] = iter(())

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions
        self._left = iter([list(some) for some in self.script])

    def unassign(self) -> None:
        self.assigned = []

    def consume(self, most: int, timeout: float) -> list[Message[bytes, bytes]]:
        assert timeout == 0
        some = next(self._left, [])
        if len(some) > most:
            self._left = iter([some[most:], *self._left])
        return some[:most]

    def poll(self, timeout: float) -> Message[bytes, bytes] | None:
        del timeout
        return None


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fetching.close()
    monkeypatch.setattr(fetching, "Consumer", ScriptedConsumer)
    monkeypatch.setattr(fetching, "_SILENCE_S", 0.05)
    ScriptedConsumer.made = 0
    yield
    fetching.close()


def read(script: Sequence[Sequence[Message[bytes, bytes]]], start: int, stop: int) -> list[Fetched]:
    """The range of these offsets."""
    ScriptedConsumer.script = script
    return list(fetched(CLIENT, RangePart("t", 1, start, stop, 0, 0)))


def offsets(found: Sequence[Fetched]) -> list[int]:
    """Of all records, in their order."""
    return [offset for some in found for offset in some.offsets.tolist()]


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
def test_a_range_is_over_at_its_end(script: Sequence[Sequence[Message[bytes, bytes]]], expected: list[int]) -> None:
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
        ([[record(3, partition=0)]], "out of order"),
        ([[record(3)], [failure(KafkaError._AUTO_OFFSET_RESET)]], "offsets 3 to 5"),
        ([[failure(KafkaError.UNKNOWN_TOPIC_OR_PART)]], "t-1, offsets 3 to 5: "),
    ],
)
def test_whatever_is_unusual_is_left_to_spark(script: Sequence[Sequence[Message[bytes, bytes]]], reason: str) -> None:
    """And the next range has a new consumer."""
    with pytest.raises(NotPlain, match=reason):
        read(script, 3, 6)
    assert offsets(read([[record(3), record(4), record(5)]], 3, 6)) == [3, 4, 5]
    assert ScriptedConsumer.made == 2


def test_a_consumer_stays_for_the_next_range_and_forgets_the_last() -> None:
    """With the same options; a range that was given up in its midst leaves none."""
    read([[record(3), record(4), record(5)]], 3, 6)
    read([[record(6)]], 6, 7)
    assert ScriptedConsumer.made == 1
    assert fetching._readers[0]._consumer.assigned == []  # type: ignore[attr-defined]  # the scripted one
    ScriptedConsumer.script = [[record(offset) for offset in range(50_000)]]
    begun = fetched(CLIENT, RangePart("t", 1, 0, 50_000, 0, 0))
    next(begun)
    begun.close()  # type: ignore[attr-defined]  # a generator
    read([[record(3)]], 3, 4)
    assert ScriptedConsumer.made == 2
    list(fetched({"bootstrap.servers": "elsewhere:1"}, RangePart("t", 1, 3, 4, 0, 0)))
    assert ScriptedConsumer.made == 3


def test_large_records_come_few_at_a_time() -> None:
    """Bytes bound what is held, not only numbers."""
    megabyte = bytes(1 << 20)
    found = read([[record(offset, megabyte)] for offset in range(40)], 0, 40)
    assert offsets(found) == list(range(40))
    assert [len(some.messages) for some in found] == [16, 16, 8]


def test_values_timestamps_and_what_is_absent() -> None:
    """A tombstone is None; a record without a timestamp has -1, as for Java."""
    untimed = Message(topic="t", partition=1, offset=4, value=b"", timestamp=(0, 0))
    (found,) = read([[record(3, None), untimed]], 3, 5)
    assert found.values == [None, b""]
    assert found.timestamps_ms.tolist() == [30, -1]
    assert found.keys == [None, None]
    assert found.headers == [None, None]


@given(st.data())
def test_however_records_arrive_each_of_the_range_comes_once(data: st.DataObject) -> None:
    """Holes, chunks, ends that are reported early, records behind the end."""
    there = sorted(data.draw(st.sets(st.integers(0, 60), max_size=40)))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
    events: list[list[Message[bytes, bytes]]] = [[]]
    for offset in (offset for offset in there if offset >= start):
        events[-1].append(record(offset))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            events.append([])
        elif kind == 1 and offset + 1 < stop:
            events.append([end(offset + 1)])
    events.append([end(61)])
    assert offsets(read(events, start, stop)) == [offset for offset in there if start <= offset < stop]
