"""Which offsets of which topic partitions a batch holds, and which of them are new to the store. PURE.

Spark writes the end of every batch into its checkpoint, as `{"topic": {"0": 23, …}, …}`; its beginning is the end of
the batch before. What the store has judged stands in its last commit record: for each topic partition the topic's id
and the offset up to which it was judged (`Ends`). A batch is held against that, never against Spark's own numbers:

    batch        [ start ........... end )
    judged     .......... end )                      overlap: trimmed to what is new
    judged   .. end )                                gap: offsets that nobody has judged; the job stops
    judged   ............................ end )      nothing is new: skipped

Offsets are positions in a topic partition, half open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bucket_store.log_values import LogState
from deduper.errors import IntegrityError

ENDS = "kafka.ends"
"""Where a commit record keeps how far each topic partition was judged: in its `extra`."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic; ordered as the source is."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class End:
    """Up to where a topic partition was judged, and of which topic of that name: one made anew has another id."""

    topic_id: str
    offset: int


Ends = dict[TopicPartition, End]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a window takes from one topic partition: the offsets [start, end)."""

    place: TopicPartition
    topic_id: str
    start: int
    end: int

    def digest(self, cluster_id: str) -> bytes:
        """16 bytes that tell this range from all others, for as long as the store lives."""
        parts = (cluster_id, self.topic_id, self.place.topic, self.place.partition, self.start, self.end)
        return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets [start, end) of a topic partition that cannot be judged any more, and why."""

    place: TopicPartition
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        if self.start == self.end:
            return f"{self.place}, after offset {self.start}: {self.why}"
        return f"{self.place}: {self.end - self.start:,} offsets, from {self.start} to {self.end - 1}: {self.why}"


@dataclass(frozen=True, slots=True)
class NewOffsets:
    """What of a batch the store has not judged: its ranges in the order of the source, and what is lost before them.

    `ends` is how far each topic partition is judged, or lost, after them.
    """

    ranges: tuple[OffsetRange, ...]
    losses: tuple[Loss, ...]
    ends: Ends


def parse_offsets(text: str) -> Offsets:
    """Spark's JSON of offsets.

    Raises:
        ValueError: it is none.
    """
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ValueError(f"no object of topics: {text[:100]!r}")
    offsets: Offsets = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"topic {topic}: no object of partitions")
        for partition, offset in partitions.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or not partition.isdecimal():
                raise ValueError(f"topic {topic}, partition {partition}: {offset!r} is no offset")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Spark's JSON of these offsets, topics and partitions in order."""
    topics: dict[str, dict[str, int]] = {}
    for place in sorted(offsets):
        topics.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return json.dumps(topics)


def new_offsets(
    start: Offsets,
    end: Offsets,
    judged: Ends,
    *,
    topic_ids: Mapping[str, str],
    earliest: Mapping[TopicPartition, int],
) -> NewOffsets:
    """What of the batch from `start` to `end` the store has not judged.

    A partition that is not in `start` was found after the batch before and begins at its earliest offset. Whoever may
    not lose anything stops when there are losses: offsets between what was judged and what is still there.

    Raises:
        IntegrityError: the batch is of a topic that is not there any more.
    """
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    ends = dict(judged)
    for place in sorted(end):
        if place.topic not in topic_ids:
            raise IntegrityError(f"topic {place.topic} is gone from the broker, and its batch was not judged yet")
        topic_id = topic_ids[place.topic]
        known = judged.get(place)
        first = earliest.get(place, 0)
        begin = start.get(place, first)
        if known is not None and known.topic_id != topic_id:
            losses.append(
                Loss(place, known.offset, known.offset, "the topic was deleted and made anew; what followed is unknown")
            )
            known = None
        if known is not None and begin > known.offset:
            losses.append(Loss(place, known.offset, begin, "the batch begins beyond what was judged"))
        begin = begin if known is None else max(begin, known.offset)
        if begin < first and begin < end[place]:
            reached = min(first, end[place])
            losses.append(Loss(place, begin, reached, "older than what the broker still keeps"))
            begin = reached
        if begin < end[place]:
            ranges.append(OffsetRange(place, topic_id, begin, end[place]))
        # A batch without anything new moves no end back, and a loss is told once.
        ends[place] = End(topic_id, max(begin, end[place]))
    return NewOffsets(tuple(ranges), tuple(losses), ends)


def ends_to_wire(ends: Ends) -> list[Any]:
    """The form in a commit record: [[topic, topic id, [[partition, offset]]]], in order."""
    wire: dict[tuple[str, str], list[list[int]]] = {}
    for place in sorted(ends):
        wire.setdefault((place.topic, ends[place].topic_id), []).append([place.partition, ends[place].offset])
    return [[topic, topic_id, partitions] for (topic, topic_id), partitions in wire.items()]


def ends_from_wire(wire: Iterable[Any]) -> Ends:
    """The inverse of `ends_to_wire`."""
    return {
        TopicPartition(topic, partition): End(topic_id, offset)
        for topic, topic_id, partitions in wire
        for partition, offset in partitions
    }


def judged_ends(state: LogState) -> Ends:
    """How far each topic partition was judged, says the log."""
    return ends_from_wire(state.extra.get(ENDS, ()))
