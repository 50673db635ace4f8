"""Batches of Kafka records: the offsets that are new to the store, and the losses when some are gone.

The last commit record has the judged end of every topic partition (`ENDS` in its `extra`), so a start reads no more
than that, however long the job has run. A batch is what the brokers hold beyond it, at most `max_offsets_per_batch`.

Losses are searched twice. *When a batch is planned*: its ranges are the offsets that are still there. *After it was
judged, before its commit*: a record may vanish between the plan and the reading, which skips it without an error. A
range was read whole if each of its offsets gave a record. It was also read whole if its topic has the same id and its
earliest offset is not beyond the start of the range, because both only move forward. If neither holds, the batch is
compared with the cluster and judged again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from confluent_kafka import IsolationLevel

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import IntegrityError, SourceAwayError
from deduper.kafka.cluster import KafkaCluster
from deduper.kafka.offsets import (
    ENDS,
    HELD_BACK,
    End,
    Ends,
    Held,
    Loss,
    NewOffsets,
    OffsetRange,
    Offsets,
    TopicPartition,
    after_losses,
    ends_to_wire,
    limited,
    new_offsets,
    next_offsets,
)
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.sources.kafka.fetching import RangePart
from deduper.sources.kafka.time_order import TimeOrder
from deduper.sources.kafka.topic_reading import TopicReading
from deduper.sources.protocol import BatchPartition, Parts, SourceBatch
from deduper.tasks.readers.reading_tasks import PartRead, RoundedKeys, read_part

logger = logging.getLogger(__name__)

_CHECKS_OF_A_LOSS = 3
_BETWEEN_CHECKS_S = 0.5
_MOST_SCHEMAS = 5
"""Once so many ids of schemas are known, new ones have no warning."""
_RECORD_BYTES = 300.0
"""The size of a record until one was read."""


class RecordSizes:
    """The estimated size of a source's records, by those of the last window."""

    def __init__(self) -> None:
        self.record_bytes = _RECORD_BYTES

    def learn(self, spilled_bytes: int, rows: int) -> None:
        """Learn from a window: so many records took so many bytes."""
        if rows:
            self.record_bytes = spilled_bytes / rows


@dataclass(frozen=True)
class KafkaBatch:
    """The offsets of a window in source order: topic, then partition. `held_back`: see `TimeOrder`."""

    ranges: tuple[OffsetRange, ...]
    ends: Ends
    cluster_id: str
    reading: TopicReading | None = field(repr=False, compare=False)
    sizes: RecordSizes = field(repr=False, compare=False)
    source: KafkaBatches = field(repr=False, compare=False)
    held_back: tuple[TopicPartition, ...] = ()

    @cached_property
    def partitions(self) -> tuple[BatchPartition, ...]:
        return tuple(
            BatchPartition(
                name=str(taken.place),
                digest=taken.digest(self.cluster_id),
                version=taken.topic_id,
                end=taken.end,
                start=taken.start,
                slot=taken.place.partition,
            )
            for taken in self.ranges
        )

    @property
    def is_known_by_digests(self) -> bool:
        return False  # `extra` has the judged end of every topic partition

    def records(self) -> Parts[RangePart]:
        assert self.reading is not None, "the batch was planned only"
        return Parts(partial(read_part, self.reading), self.parts, self.reading.expect)

    def as_read(self, found: Sequence[PartRead]) -> KafkaBatch:
        """The batch itself.

        Raises:
            SourceAwayError: a range cannot be read now.
        """
        away = next((one.away for one in found if one.away is not None), None)
        if away is not None:
            raise SourceAwayError(away)
        spilled = sum(one.receipt.spilled_bytes for one in found if one.receipt is not None)
        self.sizes.learn(spilled, sum(one.rows for one in found))
        self.source.noted(found)
        return self

    @property
    def parts(self) -> list[RangePart]:
        """The ranges, as they are fetched."""
        return [
            RangePart(
                topic=taken.place.topic,
                partition=taken.place.partition,
                start=taken.start,
                end=taken.end,
                ordinal=ordinal,
                decoded_bytes=int((taken.end - taken.start) * self.sizes.record_bytes),
                silence_s=self.source.silence_s,
            )
            for ordinal, taken in enumerate(self.ranges)
        ]

    def after_failure(self, error: Exception) -> KafkaBatch:
        self.source.wait_for(error)
        return self.source.judged_again(self)

    def confirmed(self, rows: Mapping[int, int]) -> KafkaBatch:
        return self if self.source.held_all(self, rows) else self.source.judged_again(self)

    def extra(self) -> dict[str, Any]:
        held_back = {HELD_BACK: [[one.topic, one.partition] for one in self.held_back]} if self.held_back else {}
        return {ENDS: ends_to_wire(self.ends), **held_back}


class KafkaBatches:
    """The Kafka source of a job. For one thread at a time."""

    def __init__(
        self,
        source: KafkaSource,
        cluster: KafkaCluster,
        stored: Ends | None,
        watch: BrokerWatch,
        reading: TopicReading | None = None,
        until: Offsets | None = None,
        name: str = "source",
    ) -> None:
        """`stored`: the ends of the last commit, None before the first. `reading`: how records are read; None
        for batches that are only planned here.

        `until`: the ends to drain to, if they are not those of the beginning.
        `name`: of the source's section, for messages.
        """
        self._name = name
        self._source = source
        self._watch = watch
        self._cluster = cluster
        self._is_new = stored is None
        self._ends = {place: end for place, end in (stored or {}).items() if source.reads(place.topic)}
        # Ends of topics that the configuration no longer names stay recorded: it may name them again.
        self._parked = {place: end for place, end in (stored or {}).items() if place not in self._ends}
        self._topics: set[str] = set()
        self._ends_at = until
        self._until: Offsets | None = None
        self._is_recorded = True
        self._told: set[Loss] = set()
        self._latest: Mapping[TopicPartition, int] = {}
        self._reading = reading
        self._sizes = RecordSizes()
        self._schema_ids: set[int] = set()
        self._rounded = RoundedKeys()
        self._order = None if source.slack is None else TimeOrder(source.slack, cluster.offsets_since, name=name)

    @property
    def place(self) -> str:
        """The source of the records, for messages."""
        return self._source.place

    @property
    def waiting(self) -> int:
        """The offsets that no committed window has, by the last look for a batch."""
        known = ((end, self._ends[place].offset) for place, end in self._latest.items() if place in self._ends)
        return sum(max(0, end - judged) for end, judged in known)

    def begin(self, *, drain: bool) -> None:
        """Find the topics, and where a new store begins in them. With `drain`, they end at their present ends.

        Raises:
            TopicMissingError: one that was named is not there, and never was.
            IntegrityError: offsets are gone since the last commit, and `data_loss` is `fail`.
        """
        self._topics = {place.topic for place in self._ends} | set(self._cluster.topics(self._ends))
        held, losses = self._held_and_lost(self._topics)
        self._report(losses)
        self._ends, _ = after_losses(self._ends, held)
        begun = self._cluster.configured_start(held) if self._is_new else held.earliest
        # Only the end moves meanwhile. A loss that no commit has is forgotten by the next start: what is written to
        # offsets that were cut off would count as judged.
        self._is_recorded = not losses and not (self._is_new and self._source.may_begin_at_ends)
        # From here on a recreated topic is recognized, also before the first window.
        for place in held.earliest:
            if place not in self._ends and place in begun:
                self._ends[place] = End(held.topic_ids[place.topic], begun[place])
        self._until = self._ends_at if self._ends_at is not None or not drain else dict(held.latest)

    def next_batch(self) -> KafkaBatch | None:
        """The oldest offsets that were not judged; None when there are none.

        Raises:
            IntegrityError: input is missing between the last judged offsets and these.
        """
        if self._source.topic_pattern is not None:
            self._topics |= set(self._cluster.topics(self._ends))
        held, _ = self._held_and_lost(self._topics | {place.topic for place in self._ends})
        self._latest = held.latest
        latest = dict(held.latest)
        if self._until is not None:
            latest = {place: min(end, self._until.get(place, 0)) for place, end in latest.items()}
        found, batch = self._batch(self._next_ends(held, latest), held)
        # A window without records, if need be: a loss is reported once, and a job that begins at the end does not
        # begin at another end after a restart.
        if found.ranges or found.losses or not self._is_recorded:
            return batch
        self._ends = found.ends
        if self._until is not None:  # drained
            self._cluster.settle_offsets()
        return None

    def newest(self, batch: SourceBatch) -> SourceBatch:
        """See `PlannedSource`. In the order of time bounds are looked up, which takes longer than it would save."""
        return batch if self._order is not None else self.next_batch() or batch

    def judged(self, batch: SourceBatch) -> None:
        assert isinstance(batch, KafkaBatch)
        self._ends = {place: end for place, end in batch.ends.items() if place not in self._parked}
        self._is_new, self._is_recorded = False, True
        self._told.clear()
        self._watch.progressed()
        self._cluster.commit_offsets(batch.ranges)

    def put_off(self, reason: SourceAwayError) -> None:
        """Does nothing: each question to the brokers waits for them itself."""
        raise reason

    def judged_again(self, batch: KafkaBatch) -> KafkaBatch:
        end = {taken.place: taken.end for taken in batch.ranges}
        held, _ = self._held_and_lost({place.topic for place in end} | {place.topic for place in self._ends})
        return self._batch(end, held)[1]

    def wait_for(self, error: Exception) -> None:
        self._watch.wait_for(error)

    def noted(self, parts: Sequence[PartRead]) -> None:
        if self._reading is not None:
            columns = self._reading.declared.columns
            self._rounded.warn(columns[number] for part in parts for number in part.noted.rounded)
        self._warn_of_schemas({number for one in parts for number in one.noted.schema_ids})

    def _warn_of_schemas(self, ids: Set[int]) -> None:
        """Warn about new ids of schemas in the headers of values, all of which are read by one schema."""
        if len(self._schema_ids) < _MOST_SCHEMAS and len(self._schema_ids | ids) > max(1, len(self._schema_ids)):
            numbers = sorted(self._schema_ids | ids)
            logger.warning(
                "%s: values name the schemas %s, and all are read by one: fields that another schema has elsewhere are "
                "taken for one another; write `%s.value.schema_ids: [...]` with the numbers of avro_schema",
                self._name,
                ", ".join(map(str, numbers)),
                self._name,
            )
        self._schema_ids |= ids

    @property
    def silence_s(self) -> float:
        return self._watch.silence_s

    def held_all(self, batch: KafkaBatch, rows: Mapping[int, int]) -> bool:
        ids = self._cluster.topic_ids({taken.place.topic for taken in batch.ranges})
        if any(ids.get(taken.place.topic) != taken.topic_id for taken in batch.ranges):
            return False
        doubtful = [
            taken for ordinal, taken in enumerate(batch.ranges) if rows.get(ordinal, 0) < taken.end - taken.start
        ]
        earliest = self._cluster.earliest_offsets([taken.place for taken in doubtful])
        latest = self._cluster.latest_offsets([taken.place for taken in doubtful])
        return all(
            earliest.get(taken.place, taken.end) <= taken.start and latest.get(taken.place, 0) >= taken.end
            for taken in doubtful
        )

    def _batch(self, end: Offsets, held: Held) -> tuple[NewOffsets, KafkaBatch]:
        found = new_offsets(end, self._ends, held)
        self._report(found.losses)
        batch = KafkaBatch(
            ranges=found.ranges,
            ends={**self._parked, **found.ends},
            cluster_id=self._cluster.cluster_id,
            reading=self._reading,
            sizes=self._sizes,
            source=self,
            held_back=() if self._order is None else self._order.held_back,
        )
        return found, batch

    def _next_ends(self, held: Held, latest: Offsets) -> Offsets:
        """The ends of the next window."""
        most = self._source.max_offsets_per_batch
        if self._order is None:
            return limited(self._ends, held, latest, most)
        begins = next_offsets(self._ends, held)
        waiting = {place: max(0, latest.get(place, 0) - begin) for place, begin in begins.items()}
        if sum(waiting.values()) <= most:
            self._order.rest(latest)
            return latest
        # All of these add half a window at most. One without records is waited for if it may have some soon.
        small = [place for place, count in waiting.items() if count and 2 * count * len(waiting) <= most]
        if self._until is None:
            small += [p for p, count in waiting.items() if not count and held.latest[p] > held.earliest[p]]
        bounds = self._order.bounded(begins, latest, small)
        return limited(self._ends, held, bounds, most) | {place: bounds[place] for place in small if waiting[place]}

    def _held_and_lost(self, topics: set[str]) -> tuple[Held, tuple[Loss, ...]]:
        """The offsets that the cluster holds, and the losses by them. A loss counts when several checks show it.

        A broker that has just started may not know all its topics yet.
        """
        for check in range(_CHECKS_OF_A_LOSS):
            if check:
                time.sleep(_BETWEEN_CHECKS_S)
            held = self._held(topics)
            losses = after_losses(self._ends, held)[1]
            if not losses:
                break
        return held, losses

    def _held(self, topics: set[str]) -> Held:
        held = self._cluster.held(topics)
        # Judged while records of open transactions were read too: they exist, and cannot be read now.
        ahead = [place for place, known in self._ends.items() if known.offset > held.latest.get(place, known.offset)]
        if not ahead:
            return held
        latest = self._cluster.latest_offsets(ahead, isolation=IsolationLevel.READ_UNCOMMITTED)
        there = {place: min(end, self._ends[place].offset) for place, end in latest.items()}
        return Held(held.topic_ids, held.earliest, {**held.latest, **there})

    def _report(self, losses: tuple[Loss, ...]) -> None:
        """Report losses.

        Raises:
            IntegrityError: there are some, and `data_loss` is `fail`.
        """
        if not losses:
            return
        if self._source.data_loss == "fail":
            raise IntegrityError(
                f"{self._name}: offsets are gone that were not judged: {'; '.join(map(str, losses))}. Find out why "
                "(the topic's retention.ms and retention.bytes, who deletes topics); to continue with what is left, "
                f"set `{self._name}.data_loss: continue`"
            )
        for loss in losses:
            if loss not in self._told:  # by an earlier plan of this window
                self._told.add(loss)
                logger.error("%s: lost, and the job continues: %s", self._name, loss)
