"""Batches of Kafka records: the offsets that are new to the store, and the losses when some are gone.

The last commit record has the judged end of every topic partition (`ENDS` in its `extra`), so a start reads no more
than that, however long the job has run. Spark only gives the end of the new offsets.

Losses are searched three times. *At the start*: since the last commit, so that Spark starts where the records are.
*When a batch comes*: its ranges are the offsets that are still there. *After it was judged, before its commit*: a
record may have vanished between the check and the reading, and Spark skips it in silence. A topic whose id is still the
same and whose earliest offset has not passed a range's beginning has held the whole range all the time, because both
only ever move on; and a range that gave a record for each of its offsets was read whole, whatever came after. If
neither holds, the batch is compared with the cluster and judged again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel
from pyspark.sql import DataFrame, SparkSession

from bucket_store.log.records import LogState
from bucket_store.log.sources_file import SourcePartition
from deduper.config.kafka import KafkaSource
from deduper.errors import IntegrityError
from deduper.kafka.cluster import KafkaCluster
from deduper.kafka.offsets import (
    ENDS,
    End,
    Ends,
    Held,
    Loss,
    NewOffsets,
    OffsetRange,
    after_losses,
    ends_to_wire,
    judged_ends,
    new_offsets,
    write_offsets,
)
from deduper.sources import checkpoint
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.sources.kafka.checkpoint import beyond, initial_offsets, offsets_of_batch
from deduper.sources.kafka.places import OffsetPlaces
from deduper.sources.kafka.stream import kafka_parsing, kafka_range_frame, kafka_stream
from deduper.sources.parsing import Steps
from deduper.sources.protocol import SourceBatch
from deduper.spark.failures import whole_text

logger = logging.getLogger(__name__)

_CHECKS_OF_A_LOSS = 3
_BETWEEN_CHECKS_S = 0.5


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """The offsets of a window in source order: topic, then partition.

    `frame` is Spark's batch, which may hold more; None when it does not hold all of the ranges.
    """

    batches: KafkaBatches = field(repr=False)
    batch_id: int
    spark_frame: DataFrame = field(repr=False)
    frame: DataFrame | None = field(repr=False)
    ranges: tuple[OffsetRange, ...]
    ends: Ends

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(taken.digest(self.batches.cluster_id) for taken in self.ranges)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(taken.place) for taken in self.ranges)

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(taken.start for taken in self.ranges)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(taken.place.partition for taken in self.ranges)

    @property
    def is_known_by_digests(self) -> bool:
        return False  # `extra` has the judged end of every topic partition

    def partitions(self, rows: Mapping[int, int]) -> tuple[SourcePartition, ...]:
        return tuple(
            SourcePartition(
                name=str(taken.place),
                version=taken.topic_id,
                start=taken.start,
                end=taken.end,
                rows=rows.get(ordinal, 0),
                digest=taken.digest(self.batches.cluster_id),
            )
            for ordinal, taken in enumerate(self.ranges)
        )

    @property
    def places(self) -> OffsetPlaces:
        return OffsetPlaces(self.ranges)

    def tuples(self, session: SparkSession) -> DataFrame:
        if not self.ranges:
            frame = self.spark_frame.filter("false")
        elif self.frame is None:
            frame = kafka_range_frame(session, self.batches.source, self.ranges)
        else:
            frame = self.frame
        return self.batches.parsing(session).of(frame)

    def after_failure(self, error: Exception) -> KafkaBatch:
        self.batches.watch.wait_for(error)
        return self.batches.judged_again(self)

    def confirmed(self, rows: Mapping[int, int]) -> KafkaBatch:
        if self.batches.held_all(self, rows):
            return self
        return self.batches.judged_again(self)

    def extra(self) -> dict[str, Any]:
        return {ENDS: ends_to_wire(self.ends)}


class KafkaBatches:
    """The Kafka source of a job. For one thread at a time."""

    def __init__(
        self,
        source: KafkaSource,
        checkpoint_path: Path,
        cluster: KafkaCluster,
        state: LogState,
        watch: BrokerWatch,
    ) -> None:
        self.source = source
        self.watch = watch
        self._checkpoint = checkpoint_path
        self._cluster = cluster
        self._ends = judged_ends(state)
        self._parsing: tuple[SparkSession, Steps] | None = None

    def parsing(self, session: SparkSession) -> Steps:
        """The parsing of the records of every window; made once for a session."""
        if self._parsing is None or self._parsing[0] is not session:
            self._parsing = session, kafka_parsing(session, self.source)
        return self._parsing[1]

    @property
    def cluster_id(self) -> str:
        """The id of the offsets' cluster."""
        return self._cluster.cluster_id

    def stream(self, session: SparkSession) -> DataFrame:
        is_new = not self._ends
        topics = {place.topic for place in self._ends} | set(self._cluster.topics(self._ends))
        held, losses = self._held_and_lost(topics)
        self._report(losses)
        self._ends, _ = after_losses(self._ends, held)
        why = beyond(self._checkpoint, self._ends)
        if why is not None:
            moved = checkpoint.move_away(self._checkpoint)
            logger.warning("checkpoint %s: %s; it was moved to %s, and a new one begins", self._checkpoint, why, moved)
        begun = initial_offsets(self._checkpoint)
        if begun is None:
            begun = self._cluster.configured_start(held) if is_new else dict(held.earliest)
        # From here on a recreated topic is recognized, also before the first window.
        for place in held.earliest:
            if place not in self._ends and place in begun:
                self._ends[place] = End(held.topic_ids[place.topic], begun[place])
        start = {place: self._ends[place].offset for place in held.earliest if place in self._ends}
        return kafka_stream(session, self.source, write_offsets(start))

    def batch(self, batch_id: int, frame: DataFrame) -> KafkaBatch | None:
        found, batch = self._batch(batch_id, frame)
        if not found.ranges and not found.losses:
            self._ends = found.ends
            return None
        # A window without records, if need be: a loss is reported once.
        return batch

    def judged(self, batch: SourceBatch) -> None:
        assert isinstance(batch, KafkaBatch)
        self._ends = batch.ends
        self.watch.progressed()
        self._cluster.commit_offsets(batch.ranges)

    def look(self) -> None:
        self.watch.check()

    def is_over(self, failure: Exception) -> bool:
        try:
            if not self.watch.is_over(failure):
                return False
        except Exception as exc:
            # Spark's own message for a topic that is gone, or was recreated, is about its inner state.
            if exc is not failure or "kafka" not in whole_text(failure).lower() or not self._losses_now():
                raise
        else:
            self._losses_now()
        return True

    def judged_again(self, batch: KafkaBatch) -> KafkaBatch:
        """The part of a batch of Spark's that can be judged now.

        Raises:
            IntegrityError: offsets of it were lost since, and `data_loss` is `fail`.
        """
        return self._batch(batch.batch_id, batch.spark_frame)[1]

    def _losses_now(self) -> tuple[Loss, ...]:
        """Report the losses of this moment.

        Raises:
            IntegrityError: there are some, and `data_loss` is `fail`.
        """
        held, losses = self._held_and_lost({place.topic for place in self._ends})
        self._report(losses)
        self._ends, _ = after_losses(self._ends, held)
        return losses

    def held_all(self, batch: KafkaBatch, rows: Mapping[int, int]) -> bool:
        """Whether the brokers held all of a batch until it was read; `rows` by ordinal are the rows it has given."""
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

    def _batch(self, batch_id: int, frame: DataFrame) -> tuple[NewOffsets, KafkaBatch]:
        start, end = offsets_of_batch(self._checkpoint, batch_id)
        held, _ = self._held_and_lost({place.topic for place in end} | {place.topic for place in self._ends})
        found = new_offsets(start, end, self._ends, held)
        self._report(found.losses)
        spark_has_all = all(
            start.get(taken.place, taken.end) <= taken.start and taken.end <= end[taken.place] for taken in found.ranges
        )
        return found, KafkaBatch(self, batch_id, frame, frame if spark_has_all else None, found.ranges, found.ends)

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
        # Judged when records of open transactions were read too: they are there, though they cannot be read now.
        ahead = [place for place, known in self._ends.items() if known.offset > held.latest.get(place, known.offset)]
        if not ahead:
            return held
        latest = self._cluster.latest_offsets(ahead, isolation=IsolationLevel.READ_UNCOMMITTED)
        return Held(held.topic_ids, held.earliest, {**held.latest, **latest})

    def _report(self, losses: tuple[Loss, ...]) -> None:
        """Report losses.

        Raises:
            IntegrityError: there are some, and `data_loss` is `fail`.
        """
        if not losses:
            return
        if self.source.data_loss == "fail":
            raise IntegrityError(
                f"source: offsets are gone that were not judged: {'; '.join(map(str, losses))}. Find out why (the "
                "topic's retention.ms and retention.bytes, who deletes topics); to continue with what is left, set "
                "`source.data_loss: continue`"
            )
        for loss in losses:
            logger.error("source: lost, and the job continues: %s", loss)
