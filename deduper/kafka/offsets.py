"""The offsets of a batch by topic partition, and those of them that are new to the store. PURE.

The last commit record of the store has the id of each topic and, by partition, the offset up to which it was judged
(`Ends`). A batch is compared with that and with what the cluster holds (`Held`):

    batch                           end )
    judged     .......... end )                      read from there
    judged   ............................ end )      nothing is new: skipped
    held            [ first .. last )                between judged and first: lost

Offsets are positions in a topic partition, half open. They need not all have a record: transactions leave marks among
them, compaction leaves holes. So a loss is reported in offsets, never in records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bucket_store.log.records import LogState

ENDS = "kafka.ends"
"""The name, in the `extra` of a commit record, of the judged end of each topic partition."""
HELD_BACK = "kafka.held_back"
"""The name, in the same place, of the partitions that the window took nothing of, for the times of their records."""


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
    """The judged end of a topic partition, with the topic's id: a recreated topic has another.

    `is_gone`: the topic was absent at the last check, and that was reported.
    """

    topic_id: str
    offset: int
    is_gone: bool = False


Ends = dict[TopicPartition, End]


@dataclass(frozen=True, slots=True)
class Held:
    """A cluster at one moment: the id of each topic, and of each partition the offsets [earliest, latest).

    Absent topics are left out. `latest` is as far as can be read: before the first open transaction.
    """

    topic_ids: Mapping[str, str]
    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) that a window takes from one topic partition."""

    place: TopicPartition
    topic_id: str
    start: int
    end: int

    def digest(self, cluster_id: str) -> bytes:
        """16 bytes that identify this range among all of the store's life."""
        parts = (cluster_id, self.topic_id, self.place.topic, self.place.partition, self.start, self.end)
        return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets [start, end) of a topic partition that cannot be judged any more, and why.

    Where `end` is `start`, their number is unknown.
    """

    place: TopicPartition
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        if self.start == self.end:
            return f"{self.place}, from offset {self.start} on: {self.why}"
        number = self.end - self.start
        return f"{self.place}: {number:,} offset{'s'[: number > 1]}, from {self.start} to {self.end - 1}: {self.why}"


@dataclass(frozen=True, slots=True)
class NewOffsets:
    """The part of a batch that the store has not judged: its ranges in source order, and the losses before them.

    `ends` has the end of each topic partition after them, judged or lost.
    """

    ranges: tuple[OffsetRange, ...]
    losses: tuple[Loss, ...]
    ends: Ends


_GONE = "the topic is gone, and what may have followed with it"
_RECREATED = "the topic was deleted and recreated; what followed in the old one is unknown"
_AGED_OUT = "older than what the broker still keeps"
_CUT_OFF = "the broker has lost what it had acknowledged"


def after_losses(judged: Ends, held: Held) -> tuple[Ends, tuple[Loss, ...]]:
    """The offset from which each topic partition is judged next, by what the cluster holds, and the losses before it.

    Applied again to its own result it finds no more losses. A topic that was recreated begins at its earliest offsets;
    a partition that was added to a topic of `judged` begins at 0, and offsets below its earliest one are lost.
    """
    of_judged = {(place.topic, end.topic_id) for place, end in judged.items()}
    added = {
        place: End(topic_id, 0)
        for place in held.earliest.keys() - judged.keys()
        if (topic_id := held.topic_ids.get(place.topic)) is not None and (place.topic, topic_id) in of_judged
    }
    judged = {**judged, **added}
    ends = dict(judged)
    losses: list[Loss] = []
    for place, known in sorted(judged.items()):
        topic_id = held.topic_ids.get(place.topic)
        if topic_id is None:
            if not known.is_gone:
                losses.append(Loss(place, known.offset, known.offset, _GONE))
            ends[place] = replace(known, is_gone=True)
        elif topic_id != known.topic_id:
            if not known.is_gone:
                losses.append(Loss(place, known.offset, known.offset, _RECREATED))
            # The new one may have fewer partitions.
            del ends[place]
            for other, first in held.earliest.items():
                if other.topic == place.topic and (other not in ends or ends[other].topic_id != topic_id):
                    ends[other] = End(topic_id, first)
        elif place in held.earliest and place in held.latest:
            first, last = held.earliest[place], held.latest[place]
            if known.offset < first:
                losses.append(Loss(place, known.offset, first, _AGED_OUT))
            elif known.offset > last:
                losses.append(Loss(place, last, known.offset, _CUT_OFF))
            ends[place] = End(topic_id, max(first, min(known.offset, last)))
    return ends, tuple(losses)


def new_offsets(end: Offsets, judged: Ends, held: Held) -> NewOffsets:
    """The offsets up to `end` that the store has not judged.

    A partition that is not in `judged` was found after the window before, and begins at its earliest offset, whether it
    has records for this window or not. A job that may lose nothing stops when there are losses.
    """
    ends, reported = after_losses(judged, held)
    losses = list(reported)
    ranges: list[OffsetRange] = []
    for place in sorted(end):
        topic_id = held.topic_ids.get(place.topic)
        if topic_id is None or place not in held.earliest or place not in held.latest:
            if place not in ends and end[place] > 0:
                losses.append(Loss(place, 0, end[place], _GONE))
            continue
        begin = ends[place].offset if place in ends else held.earliest[place]
        # The end may be one of an earlier topic of the name, with more records.
        past = min(end[place], held.latest[place])
        if begin < past:
            ranges.append(OffsetRange(place, topic_id, begin, past))
        # A batch with nothing new moves no end back, and a loss is reported once.
        ends[place] = End(topic_id, max(begin, past))
    for place in held.earliest.keys() - ends.keys():
        # Later, a topic that is known in part would have the rest of its partitions for added ones.
        if (topic_id := held.topic_ids.get(place.topic)) is not None:
            ends[place] = End(topic_id, held.earliest[place])
    return NewOffsets(tuple(ranges), tuple(losses), ends)


def next_offsets(judged: Ends, held: Held) -> Offsets:
    """The offset from which each partition is judged next."""
    return {
        place: max(first, judged[place].offset if place in judged else first) for place, first in held.earliest.items()
    }


def limited(judged: Ends, held: Held, latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """The ends of a window of about `most` offsets at most: each partition gets its share, at least one offset."""
    begins = next_offsets(judged, held)
    waiting = {place: max(0, latest.get(place, 0) - begin) for place, begin in begins.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(latest)
    return {
        place: begins[place] + min(count, max(1, count * most // total)) for place, count in waiting.items() if count
    }


def ends_to_wire(ends: Ends) -> list[Any]:
    """The form in a commit record: [[topic, topic id, is gone, [[partition, offset]]]], in order."""
    wire: dict[tuple[str, str, bool], list[list[int]]] = {}
    for place in sorted(ends):
        end = ends[place]
        wire.setdefault((place.topic, end.topic_id, end.is_gone), []).append([place.partition, end.offset])
    return [[topic, topic_id, is_gone, partitions] for (topic, topic_id, is_gone), partitions in wire.items()]


def ends_from_wire(wire: Iterable[Any]) -> Ends:
    """The inverse of `ends_to_wire`."""
    return {
        TopicPartition(topic, partition): End(topic_id, offset, is_gone)
        for topic, topic_id, is_gone, partitions in wire
        for partition, offset in partitions
    }


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as a config's `source.starting_offsets` has them."""
    topics: dict[str, dict[str, int]] = {}
    for place in sorted(offsets):
        topics.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return topics


def judged_ends(state: LogState, reads: Callable[[str], bool] = lambda _: True) -> Ends:
    """The judged end of each partition of these topics, from the log: a topic that is no longer read keeps its own."""
    return {place: end for place, end in ends_from_wire(state.extra.get(ENDS, ())).items() if reads(place.topic)}
