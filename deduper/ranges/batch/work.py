"""An index of rows in Arrow's form, and the answers from it to batches of others; the same with Spark and without.

It travels to Spark's workers, so it imports no session and no settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from deduper.ranges.aggregate.aggregates import Aggregate, AnyAggregate, Kind
from deduper.ranges.aggregate.cells import Ids
from deduper.ranges.aggregate.event_index import EventIndex
from deduper.ranges.aggregate.points import Ints
from deduper.ranges.aggregate.range_index import Events, RangeIndex, Ranges
from deduper.ranges.aggregate.rows import whole

ID_HI, ID_LO = "__range_job_hi", "__range_job_lo"
"""Columns with the two words of an id's digest; an id of one word has no second column."""
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked; `points` are the column of an event's time, or those of a range's start and end."""

    per: Literal["event", "range"]
    ends: str
    asked_points: tuple[str, ...]
    indexed_points: tuple[str, ...]
    aggregates: Mapping[str, AnyAggregate]
    own_types: Mapping[str, pa.DataType]

    @property
    def has_lists(self) -> bool:
        """Whether an answer may be as long as all ranges."""
        return any(isinstance(one, Aggregate) and one.kind in (Kind.LIST, Kind.SET) for one in self.aggregates.values())

    @property
    def aggregate_bytes(self) -> int:
        """About the memory of a mark's aggregates in an index, without texts."""
        return sum(32 + 4 * (one.k if isinstance(one, Aggregate) else 1) for one in self.aggregates.values())

    def index(self, tables: Iterable[pa.Table]) -> RangeIndex | EventIndex:
        """The index of these rows."""
        table = pa.concat_tables(tables)
        columns = {one.column: whole(table[one.column]) for one in self.aggregates.values() if one.column is not None}
        points = [whole(table[name]) for name in self.indexed_points]
        ids = _ids(table)
        if self.per == "event":
            return RangeIndex(Ranges(ids, points[0], points[1], columns), self.ends, self.aggregates, self.own_types)
        return EventIndex(Events(ids, points[0], columns), self.ends, self.aggregates, self.own_types)

    def answers(self, index: Any, batch: pa.RecordBatch, columns: Sequence[str]) -> Batches:
        """These columns of a batch and the aggregates; in several batches if lists are long."""
        if not batch.num_rows:
            return
        ids, points = _ids(batch), [batch[name] for name in self.asked_points]
        asked = Events(ids, points[0], {}) if self.per == "event" else Ranges(ids, points[0], points[1], {})
        kept = batch.select(list(columns))
        for rows, answers in index.answers(asked):
            part = kept.slice(rows.start, rows.stop - rows.start)
            yield pa.RecordBatch.from_arrays([*part.columns, *answers], [*columns, *self.aggregates])


def _ids(rows: Any) -> Ids:
    hi = _words(rows[ID_HI])
    return Ids(hi, _words(rows[ID_LO]) if ID_LO in rows.schema.names else np.zeros_like(hi))


def _words(column: Any) -> Ints:
    words: Ints = whole(column).to_numpy(zero_copy_only=False)
    return words.astype(np.int64, copy=False)
