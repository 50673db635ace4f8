"""What a reading task makes of a DataFrame's rows: records, with their places where columns name them. PURE.

A place is a source, as a topic partition, and a number in it. It is a name: rows are judged in the order in which Spark
gives them, whatever their numbers are.

Without such columns a row's place is its number in its partition of the DataFrame. That is also the place of a row that
names none: one with a null, or with a number that is negative or of more than 40 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deduper.core.clock import POSITION_BITS
from deduper.tasks.found_partitions import FoundPartition, require_few
from deduper.tasks.layout import ORDER, PARTITION, SENT, TOPIC, VALUE, parsed
from deduper.tasks.readers.declared import Declared
from deduper.text.written import json_lines


class FramePlaces:
    """The places of one partition's rows. `number` is a row's number in the DataFrame's partition.

    The columns of a batch: TOPIC is the name of the source, ORDER the number in it, PARTITION the number of the
    DataFrame's partition.
    """

    def __init__(self) -> None:
        self._sources: dict[str | None, int] = {}
        self._ends: list[int] = []
        self._seen = 0
        self._partition = 0

    @property
    def sequence(self) -> int:
        """The number of the DataFrame's partition."""
        return self._partition

    def placed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """See `RecordPlaces`. TOPIC and PARTITION are left out.

        Raises:
            UsageError: the rows name too many sources.
        """
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        sources, partitions = columns.pop(TOPIC), columns.pop(PARTITION)
        if not records.num_rows:
            return pa.RecordBatch.from_pydict(columns)
        self._partition = partitions[0].as_py()
        given = columns[ORDER]
        fits = pc.and_(pc.greater_equal(given, 0), pc.less(given, 1 << POSITION_BITS)).fill_null(False)
        named = pc.if_else(fits, sources, pa.scalar(None, pa.string())).dictionary_encode()
        names: list[str | None] = [*named.dictionary.to_pylist(), None]
        codes = named.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        numbers = np.arange(self._seen, self._seen + records.num_rows, dtype=np.int64)
        self._seen += records.num_rows
        position = np.where(codes == len(names) - 1, numbers, given.fill_null(0).to_numpy(zero_copy_only=False))
        last = np.full(len(names), -1, np.int64)
        np.maximum.at(last, codes, position)
        ordinals = np.array(
            [self._met(name, end) for name, end in zip(names, (last + 1).tolist(), strict=True)], np.int64
        )
        order = ordinals[codes] << POSITION_BITS | position
        return pa.RecordBatch.from_pydict({**columns, ORDER: pa.array(order)})

    def partitions(self) -> tuple[FoundPartition, ...]:
        """See `RecordPlaces`."""
        names = [self._partition if name is None else name for name in self._sources]
        return tuple(map(FoundPartition, names, self._ends))

    def _met(self, name: str | None, end: int) -> int:
        """The ordinal of a source whose positions in a batch end there; -1 if the batch has none of it."""
        if not end:
            return -1
        ordinal = self._sources.setdefault(name, len(self._sources))
        if ordinal == len(self._ends):
            require_few(len(self._sources))
            self._ends.append(end)
        self._ends[ordinal] = max(self._ends[ordinal], end)
        return ordinal


@dataclass
class FrameRows:
    """Makes records of rows, as our readers do, of ORDER and the columns that `declared` takes; for topics of SENT too.

    SENT may lack columns: without VALUE whole rows are sent. `places` replaces ORDER where the rows name their places.
    See `RecordPlaces`.
    """

    declared: Declared
    places: FramePlaces | None = None

    @property
    def sequence(self) -> int | None:
        """That of `places`."""
        return None if self.places is None else self.places.sequence

    def placed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records of these rows."""
        layout = self.declared.layout
        if not records.num_rows:
            return pa.RecordBatch.from_pylist([], layout.schema)
        if self.places is not None:
            records = self.places.placed(records)
        # Spark's types differ in the zone that times are shown in, and in how long a text may be.
        columns = {
            number: records.column(parsed(number)).cast(column.arrow)
            for number, column in enumerate(self.declared.columns)
            if parsed(number) in records.schema.names
        }
        sent = self._sent(records, columns) if layout.are_sent else {}
        return self.declared.records(columns, records.column(ORDER).to_numpy(), sent=sent)

    def _sent(self, records: pa.RecordBatch, columns: Mapping[int, pa.Array]) -> dict[str, pa.Array]:
        given = {field.name: field.type for field in SENT}
        sent = {
            name: records.column(name) if name in records.schema.names else pa.nulls(records.num_rows, kind)
            for name, kind in given.items()
        }
        if VALUE not in records.schema.names:
            rows = pa.table({self.declared.columns[number].name: column for number, column in columns.items()})
            sent[VALUE] = json_lines(rows, self.declared.zone).combine_chunks().cast(given[VALUE])
        return sent

    def partitions(self) -> tuple[FoundPartition, ...]:
        """Those of `places`."""
        return () if self.places is None else self.places.partitions()
