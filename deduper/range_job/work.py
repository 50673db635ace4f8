"""The work of Spark's Python workers: they make an index of rows in Arrow's form, and answer batches of others from it.

It travels to the workers, so it imports no session and no settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its annotations
from pyspark.util import PythonEvalType

from deduper.columns import quoted
from deduper.range_join.aggregates import AnyAggregate
from deduper.range_join.cells import Ids
from deduper.range_join.event_index import EventIndex
from deduper.range_join.range_index import Events, RangeIndex, Ranges

ID_HI, ID_LO = "__range_job_hi", "__range_job_lo"
"""Columns with the two words of an id's digest."""
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

    def index(self, tables: Iterable[pa.Table]) -> RangeIndex | EventIndex:
        """The index of these rows."""
        table = pa.concat_tables(tables)
        columns = {one.column: _whole(table[one.column]) for one in self.aggregates.values() if one.column is not None}
        points = [_whole(table[name]) for name in self.indexed_points]
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
    hi, lo = (_whole(rows[name]).to_numpy(zero_copy_only=False).astype(np.int64, copy=False) for name in (ID_HI, ID_LO))
    return Ids(hi, lo)


def _whole(column: Any) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


@dataclass(frozen=True, slots=True)
class Sent:
    """Arrives at a worker as the index itself; functions of one's own travel with it."""

    index: RangeIndex | EventIndex

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.index),)  # type: ignore[no-untyped-call]


def map_in_arrow(rows: DataFrame, function: Callable[[Batches], Batches], schema: T.StructType) -> DataFrame:
    """What a function makes of the rows; `DataFrame.mapInArrow` does the same, and asks for pandas, unused here."""
    udf: Any = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*(rows[quoted(name)] for name in rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)
