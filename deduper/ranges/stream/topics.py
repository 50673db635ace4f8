"""Events or ranges from topics: the offsets between the committed ends and what the brokers hold, read here.

`sources.kafka.batch` plans them and finds losses, as for a job. The position is the end of each topic partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from deduper.config.kafka.sections import KafkaSource
from deduper.errors import SourceAwayError
from deduper.kafka.client import consumer_options
from deduper.kafka.cluster import KafkaCluster
from deduper.kafka.offsets import ends_from_wire, ends_to_wire
from deduper.ranges.stream.folders import UNPARSABLE, ZONE, scalars, schema_of
from deduper.ranges.stream.rows import InputRows
from deduper.sources.kafka.batch import KafkaBatch, KafkaBatches
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.sources.kafka.fetching import RangePart, fetched
from deduper.sources.kafka.reading import record_format

TOMBSTONE = "tombstone"


class TopicInput:
    """The records of a side's topics, as many at a time as its settings say."""

    kind: ClassVar[str] = "topics"

    def __init__(
        self, side: str, source: KafkaSource, position: Sequence[Any] | None, stop: Event, *, drain: bool
    ) -> None:
        """Finds the topics. With `drain`, they end at their present ends.

        Raises:
            TopicMissingError, IntegrityError: as `KafkaBatches.begin`.
            KafkaOptionsError: an option of the source only Java's client has.
        """
        self._source = source
        self._columns = scalars(source.parsed_columns)
        self._format = record_format(source, self._columns, ZONE)
        self._client = consumer_options(source)
        self.declared = schema_of(self._columns)
        self.position = None if position is None else list(position)
        ends = None if position is None else ends_from_wire(position)
        self._batches = KafkaBatches(
            source, KafkaCluster(source, stop, side), ends, BrokerWatch(source, stop, name=side), name=side
        )
        self._batches.begin(drain=drain)
        self._batch: KafkaBatch | None = None

    @property
    def waiting(self) -> int:
        """See `Input`: offsets."""
        return self._batches.waiting

    def plan(self) -> bool:
        """See `Input`.

        Raises:
            IntegrityError: offsets are gone that were not taken, and `data_loss` is `fail`.
        """
        self._batch = self._batches.next_batch()
        return self._batch is not None

    def take(self) -> InputRows:
        """See `Input`: the records of the planned offsets, which the brokers have held until they were read.

        Raises:
            IntegrityError: as `plan`, and as `fetched`.
            KafkaDeniedError: as `fetched`.
            BrokerUnavailableError: the brokers are away for longer than the deadline.
            StopRequested: a stop was requested meanwhile.
        """
        assert self._batch is not None, "nothing was planned"
        while True:
            try:
                rows, counts = self._read(self._batch.parts)
            except SourceAwayError as error:
                self._batch = self._batch.after_failure(error)
                continue
            confirmed = self._batch.confirmed(counts)
            if confirmed is self._batch:
                self.position = ends_to_wire(confirmed.ends)
                return rows
            self._batch = confirmed

    def _read(self, parts: Sequence[RangePart]) -> tuple[InputRows, dict[int, int]]:
        """The rows of offset ranges, and the number of records of each."""
        assert self.declared is not None
        tables, bad, counts = [self.declared.empty_table()], list[tuple[str, str | None]](), dict[int, int]()
        for part in parts:
            counts[part.ordinal] = 0
            for given in fetched(self._client, part, self._format.has_headers):
                counts[part.ordinal] += given.num_rows
                table, wrong = self._rows(part, given)
                tables.append(table)
                bad += wrong
        return InputRows(pa.concat_tables(tables).combine_chunks(), bad), counts

    def _rows(self, part: RangePart, given: pa.RecordBatch) -> tuple[pa.Table, list[tuple[str, str | None]]]:
        """The rows of some records, and those records that make no row, in their order."""
        read = self._format.read(part, given, range(len(self._columns)))
        table = pa.table([read.columns[number] for number in range(len(self._columns))], self.declared)
        is_tombstone = read.absent & (self._source.tombstones == "error")
        wrong = read.malformed | read.invalid | read.invalid_parts | is_tombstone
        if not wrong.any():
            return table, []
        texts = read.texts(wrong)
        bad = [
            (TOMBSTONE if is_tombstone[row] else UNPARSABLE, texts[row].as_py())
            for row in np.flatnonzero(wrong).tolist()
        ]
        return table.filter(pa.array(~wrong)), bad

    def committed(self) -> None:
        """See `Input`."""
        assert self._batch is not None, "nothing was planned"
        self._batches.judged(self._batch)
