"""The place of a Kafka record in its window: the ordinal of its topic partition there, and its offset from the range's
start. PURE.

Found in the reading task. In Catalyst it took a join, whose planning and broadcast were a third of a small window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.clock import POSITION_BITS
from deduper.kafka.offsets import OffsetRange, TopicPartition
from deduper.tasks.layout import ORDER, PARTITION, TOPIC
from deduper.tasks.read import FoundPartition

NOWHERE = -1


class OffsetPlaces:
    """The ranges of a window, in source order, each of another topic partition."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = {taken.place: (ordinal, taken) for ordinal, taken in enumerate(ranges)}

    def placed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """See `RecordPlaces`: ORDER holds the offsets; TOPIC and PARTITION are left out."""
        offsets = records.column(ORDER).to_numpy()
        places = self.of(records.column(TOPIC), records.column(PARTITION).to_numpy(), offsets)
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        del columns[TOPIC], columns[PARTITION]
        placed = pa.RecordBatch.from_pydict({**columns, ORDER: pa.array(places)})
        taken = places != NOWHERE
        return placed if taken.all() else placed.filter(pa.array(taken))

    def found(self) -> tuple[FoundPartition, ...]:
        """None: the window has its ranges from the plan."""
        return ()

    def of(self, topics: pa.Array, partitions: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The source order of every record, NOWHERE for those in none of the ranges: they were judged before."""
        order = np.full(offsets.size, NOWHERE, np.int64)
        for place, rows in _by_place(topics, partitions):
            ordinal, taken = self._ranges.get(place, (0, None))
            if taken is not None:
                here = offsets[rows]
                order[rows] = np.where(
                    (here >= taken.start) & (here < taken.end),
                    ordinal << POSITION_BITS | here - taken.start,
                    NOWHERE,
                )
        return order


def _by_place(topics: pa.Array, partitions: NDArray[np.int32]) -> Iterator[tuple[TopicPartition, Any]]:
    """Each topic partition with an index of its rows. Spark reads one a task, so mostly there is one."""
    encoded = topics.dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    if len(names) == 1 and (partitions == partitions[0]).all():
        yield TopicPartition(names[0], int(partitions[0])), slice(None)
        return
    for code, name in enumerate(names):
        of_topic = codes == code
        for partition in np.unique(partitions[of_topic]).tolist():
            yield TopicPartition(name, partition), of_topic & (partitions == partition)
