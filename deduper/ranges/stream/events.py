"""Answered events of a period, which a late range or a retraction may correct. PURE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from deduper.ranges.aggregate.cells import Ids, IdTable, Timeline, offsets_of
from deduper.ranges.aggregate.points import FIRST, Ints, as_points
from deduper.ranges.aggregate.rows import whole
from deduper.ranges.aggregate.sorting import sorted_in_groups
from deduper.ranges.stream.pieces import PieceName
from deduper.ranges.stream.ranges import HI, LO
from deduper.ranges.stream.rows import numbers
from deduper.ranges.stream.settings import StreamJob

RATIO, MOST_ROWS = 1, 1 << 20


class EventLevel:
    """Events of some windows, sorted by id and time."""

    def __init__(self, job: StreamJob, rows: pa.Table, piece: PieceName | None = None) -> None:
        """Of rows that are sorted."""
        self.rows = rows
        self.piece = piece
        times = as_points(whole(rows[job.time]))
        self._ids, group = IdTable.of(Ids(numbers(rows, HI), numbers(rows, LO)))
        self._timeline = Timeline.of(offsets_of(group, len(self._ids.hi)), np.array(times))
        self.last_us = piece.last_us if piece is not None else int(times.max())

    @classmethod
    def of(cls, job: StreamJob, rows: pa.Table) -> EventLevel:
        """Of rows in any order; one at least."""
        known, group = IdTable.of(Ids(numbers(rows, HI), numbers(rows, LO)))
        offsets = offsets_of(group, len(known.hi))
        _, order = sorted_in_groups(group, offsets, as_points(whole(rows[job.time])), np.arange(len(group)))
        return cls(job, rows.take(pa.array(order)).combine_chunks())

    def covered(self, ids: Ids, first: Ints, last: Ints, after: int) -> pa.Table:
        """The events that lie in one of these ranges and after an instant, each once."""
        group = self._ids.find(ids)
        rows = np.flatnonzero((group >= 0) & (first <= last))
        group, first, last = group[rows], first[rows], last[rows]
        begin = self._timeline.place(group, np.maximum(np.where(first == FIRST, FIRST, first - 1), after))
        end = self._timeline.place(group, last)
        return self.rows.take(pa.array(_union(begin, end)))


def _union(begin: Ints, end: Ints) -> Ints:
    """The numbers in any of these half open stretches, ascending."""
    is_some = begin < end
    order = np.argsort(begin[is_some], kind="stable")
    begin, end = begin[is_some][order], np.maximum.accumulate(end[is_some][order])
    if not len(begin):
        return np.empty(0, np.int64)
    is_new = np.concatenate(([True], begin[1:] > end[:-1]))
    firsts = begin[is_new]
    ends = end[np.concatenate((np.flatnonzero(is_new)[1:] - 1, [len(end) - 1]))]
    return np.concatenate([np.arange(*stretch) for stretch in zip(firsts, ends, strict=True)]).astype(np.int64)


def merged(job: StreamJob, levels: Sequence[EventLevel], after: int) -> EventLevel | None:
    """One level of several, without the events up to an instant; None if there are none."""
    rows = pa.concat_tables([level.rows for level in levels], promote_options="default").combine_chunks()
    kept = rows.filter(pa.array(as_points(whole(rows[job.time])) > after))
    return EventLevel.of(job, kept) if kept.num_rows else None
