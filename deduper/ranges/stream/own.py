"""Answers of custom aggregates, by an index of the ranges that overlap the events of a window. PURE.

Only the four functions know a state: it is not stored, and states of several levels cannot be merged. So each window
makes the state from zero, of the ranges that overlap the time between the first and the last event of their id, each
added and removed once. They are in the order of their entries, so levels change no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from deduper.errors import DeduperError
from deduper.ranges.aggregate.aggregates import Own
from deduper.ranges.aggregate.cells import Ids, IdTable
from deduper.ranges.aggregate.points import FIRST, LAST, Ints, as_points
from deduper.ranges.aggregate.range_index import Events, RangeIndex, Ranges
from deduper.ranges.aggregate.rows import whole
from deduper.ranges.stream.ranges import ENTRY, HI, LO, SIGN, RangeLevel
from deduper.ranges.stream.rows import numbers
from deduper.ranges.stream.settings import StreamJob


def own_answers(job: StreamJob, levels: Sequence[RangeLevel], schema: pa.Schema, events: Events) -> list[pa.Array]:
    """The custom aggregates of events, of which there is one at least; `schema` has the columns of ranges.

    Raises:
        DeduperError: a function raises, or gives what is not of the answer's type.
    """
    own = job.own
    if not own:
        return []
    rows = _overlapping(levels, _stored(job, schema), events)
    ids, start, end = Ids(numbers(rows, HI), numbers(rows, LO)), whole(rows[job.start]), whole(rows[job.end])
    return [
        _answered(job, name, one, Ranges(ids, start, end, {one.column: whole(rows[one.column])}), events)
        for name, one in own.items()
    ]


def _answered(job: StreamJob, name: str, own: Own, ranges: Ranges, events: Events) -> pa.Array:
    try:
        index = RangeIndex(ranges, job.ends, {name: own}, {name: job.own_types[name]})
        ((_, (found,)),) = index.answers(events)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise DeduperError(
            f"aggregate `{name}`: its functions have raised {type(error).__name__}: {first_line}; nothing of the "
            "window is committed: correct them, and start again"
        ) from error
    return found


def _stored(job: StreamJob, schema: pa.Schema) -> pa.Schema:
    """The columns of levels that are needed."""
    names = dict.fromkeys((job.start, job.end, *(one.column for one in job.own.values())))
    words = [pa.field(name, pa.int64()) for name in (HI, LO, ENTRY)]
    return pa.schema([*(schema.field(name) for name in names), *words, pa.field(SIGN, pa.int8())])


def _overlapping(levels: Sequence[RangeLevel], columns: pa.Schema, events: Events) -> pa.Table:
    """The ranges of the events' ids that overlap their times, without withdrawn ones, in the order of their entries."""
    ids, group = IdTable.of(events.ids)
    times, count = as_points(events.time), len(ids.hi)
    first, last = np.full(count, LAST), np.full(count, FIRST)
    np.minimum.at(first, group, times)
    np.maximum.at(last, group, times)
    parts = [level.overlapping(Ids(ids.hi, ids.lo), first, last).select(columns.names) for level in levels]
    rows = pa.concat_tables([columns.empty_table(), *parts])
    entries, is_range = numbers(rows, ENTRY), numbers(rows, SIGN) > 0
    kept = np.flatnonzero(is_range & ~np.isin(entries, entries[~is_range]))
    order: Ints = kept[np.argsort(entries[kept])]
    return rows.take(pa.array(order))
