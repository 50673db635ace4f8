"""Batches of Kafka records: which offsets are new to the store, and what is lost when some are gone.

How far every topic partition was judged stands in the last commit record (`ENDS` in its `extra`), so a start reads no
more than that, however long the job has run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bucket_store.log_values import LogState
from bucket_store.sources_file import SourcePartition
from deduper.config_kafka import KafkaSource
from deduper.errors import IntegrityError
from deduper.kafka_checkpoint import offsets_of_batch
from deduper.kafka_cluster import KafkaCluster
from deduper.kafka_offsets import ENDS, Ends, Loss, OffsetRange, ends_to_wire, judged_ends, new_offsets
from deduper.kafka_source import kafka_stream, kafka_tuples
from deduper.kafka_watch import BrokerWatch
from deduper.source_batch import SourceBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """The offsets of a window in source order: topic, then partition. `frame` is Spark's batch and may hold more."""

    source: KafkaSource
    cluster_id: str
    frame: DataFrame
    ranges: tuple[OffsetRange, ...]
    ends: Ends
    watch: BrokerWatch

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(taken.digest(self.cluster_id) for taken in self.ranges)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(taken.place) for taken in self.ranges)

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(taken.start for taken in self.ranges)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(taken.place.partition for taken in self.ranges)

    def partitions(self, rows: Mapping[int, int]) -> tuple[SourcePartition, ...]:
        return tuple(
            SourcePartition(
                name=str(taken.place),
                version=taken.topic_id,
                start=taken.start,
                end=taken.end,
                rows=rows.get(ordinal, 0),
                digest=taken.digest(self.cluster_id),
            )
            for ordinal, taken in enumerate(self.ranges)
        )

    def tuples(self, session: SparkSession) -> DataFrame:
        return kafka_tuples(session, self.frame, self.source, self.ranges)

    def after_failure(self, error: Exception) -> KafkaBatch:
        self.watch.bear(error)
        return self

    def extra(self) -> dict[str, Any]:
        return {ENDS: ends_to_wire(self.ends)}


class KafkaBatches:
    """The Kafka source of a job."""

    def __init__(
        self, source: KafkaSource, checkpoint_path: Path, cluster: KafkaCluster, state: LogState, watch: BrokerWatch
    ) -> None:
        self._source = source
        self._checkpoint = checkpoint_path
        self._cluster = cluster
        self._ends = judged_ends(state)
        self._watch = watch

    def stream(self, session: SparkSession) -> DataFrame:
        return kafka_stream(session, self._source, self._cluster.starting_offsets(self._ends))

    def batch(self, batch_id: int, frame: DataFrame) -> KafkaBatch | None:
        start, end = offsets_of_batch(self._checkpoint, batch_id)
        found = new_offsets(
            start,
            end,
            self._ends,
            topic_ids=self._cluster.topic_ids(sorted({place.topic for place in end})),
            earliest=self._cluster.earliest_offsets(sorted(end)),
        )
        self._report(batch_id, found.losses)
        if not found.ranges:
            self._ends = found.ends
            return None
        return KafkaBatch(self._source, self._cluster.cluster_id, frame, found.ranges, found.ends, self._watch)

    def judged(self, batch: SourceBatch) -> None:
        assert isinstance(batch, KafkaBatch)
        self._ends = batch.ends
        self._watch.forward()
        self._cluster.commit_offsets(batch.ranges)

    def look(self) -> None:
        self._watch.look()

    def is_over(self, failure: Exception) -> bool:
        return self._watch.is_over(failure)

    def _report(self, batch_id: int, losses: tuple[Loss, ...]) -> None:
        if not losses:
            return
        what = "; ".join(map(str, losses))
        if self._source.data_loss == "fail":
            raise IntegrityError(
                f"batch {batch_id}: offsets are gone that were not judged: {what}. To go on without them, set "
                "`source.data_loss: continue`"
            )
        logger.error("batch %d: offsets are gone that were not judged, and will never be: %s", batch_id, what)
