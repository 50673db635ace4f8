"""`list` and `set`: the values of all ranges that cover an event, found in a tree of latest ends. PURE.

Ranges are sorted by id, first point, last point and value. Those that begin by the time of an event are a prefix of its
id; of these the tree gives the next one that is not over, so the work is that of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.cells import Places, Timeline, offsets_of
from deduper.ranges.aggregate.event_values import EventValues
from deduper.ranges.aggregate.points import FIRST, Ints, ranks


@kernel()
def _latest(last: Ints, leaves: int) -> Ints:
    """A tree in an array: node i has the greatest of 2i and 2i + 1, the leaves are the last points."""
    tree = np.full(2 * leaves, FIRST)
    tree[leaves : leaves + len(last)] = last
    for node in range(leaves - 1, 0, -1):
        tree[node] = max(tree[2 * node], tree[2 * node + 1])
    return tree


@kernel()
def _next(tree: Ints, leaf: int, sought: int) -> int:
    """The first leaf from this one on that is at least as great as the sought point; behind all leaves if none is."""
    leaves = len(tree) // 2
    node = leaves + leaf
    while True:
        while node & 1 == 0:
            node >>= 1
        if tree[node] >= sought:
            break
        node += 1
        if node & (node - 1) == 0:
            return leaves
    while node < leaves:
        node *= 2
        if tree[node] < sought:
            node += 1
    return node - leaves


@kernel()
def _covering(tree: Ints, begin: Ints, end: Ints, point: Ints, offsets: Ints, out: Ints, writes: bool) -> None:
    """Counts into `offsets`, or writes into `out` from there, the rows of [begin, end) that are not over."""
    for event in range(len(point)):
        found, row = 0, begin[event]
        while row < end[event]:
            row = _next(tree, row, point[event])
            if row < end[event]:
                if writes:
                    out[offsets[event] + found] = row
                found, row = found + 1, row + 1
        if not writes:
            offsets[event + 1] = found


@dataclass(frozen=True, slots=True)
class Coverings:
    """The ranges of an index whose value is not null, in their order, and the tree of their last points."""

    begins: Timeline
    tree: Ints
    values: pa.Array
    ranks: Ints
    distinct: bool

    @classmethod
    def of(cls, group: Ints, groups: int, ranges: tuple[Ints, Ints], values: pa.Array, *, distinct: bool) -> Coverings:
        """Of ranges with the number of their id, their first and last points, and their values."""
        rows = np.flatnonzero(~values.is_null().to_numpy(zero_copy_only=False))
        kept = values.take(pa.array(rows))
        group, first, last, rank = group[rows], ranges[0][rows], ranges[1][rows], ranks(kept)
        order = np.lexsort((rank, last, first, group))
        leaves = 1 << max(1, len(rows)).bit_length()
        begins = Timeline.of(offsets_of(group, groups), first[order])
        return cls(begins, _latest(last[order], leaves), kept.take(pa.array(order)), rank[order], distinct)

    def count(self, places: Places) -> Ints:
        """How many ranges cover each event."""
        return self._counted(*self._begun(places.group, places.point), places.point)

    def answers(self, places: Places) -> pa.Array:
        """A list for each event."""
        return take_lists(*self._covering(places), self.values, self.ranks, distinct=self.distinct)

    def event_values(self, places: Places) -> EventValues:
        """The values of each event, for those of several indexes."""
        offsets, rows = self._covering(places)
        if self.distinct:
            lists = take_lists(offsets, rows, self.values, self.ranks, distinct=True)
            return EventValues(lists.offsets.to_numpy().astype(np.int64), lists.values)
        last = self.tree[len(self.tree) // 2 :]
        return EventValues(offsets, self.values.take(pa.array(rows)), (self.begins.times[rows], last[rows]))

    def overlapping(self, group: Ints, first: Ints, last: Ints) -> pa.Array:
        """The values of the ranges that overlap stretches of time of known ids, stretch by stretch."""
        _, rows = self._rows(*self._begun(group, last), first)
        return self.values.take(pa.array(rows))

    def _covering(self, places: Places) -> tuple[Ints, Ints]:
        return self._rows(*self._begun(places.group, places.point), places.point)

    def _counted(self, begin: Ints, end: Ints, point: Ints) -> Ints:
        offsets = np.zeros(len(point) + 1, np.int64)
        _covering(self.tree, begin, end, point, offsets, offsets, False)
        return offsets[1:]

    def _rows(self, begin: Ints, end: Ints, point: Ints) -> tuple[Ints, Ints]:
        """Of each stretch of rows those that are not over at a point: where they begin and end, and the rows."""
        offsets = np.concatenate(([0], np.cumsum(self._counted(begin, end, point))))
        rows = np.empty(offsets[-1], np.int64)
        _covering(self.tree, begin, end, point, offsets, rows, True)
        return offsets, rows

    def _begun(self, group: Ints, point: Ints) -> tuple[Ints, Ints]:
        """From where to where the ranges lie that begin by a point; of an unknown id there are none."""
        if len(self.begins.offsets) < 2:
            return (np.zeros(len(point), np.int64),) * 2
        known = np.maximum(group, 0)
        begin = self.begins.offsets[known]
        return begin, np.where(group >= 0, self.begins.place(known, point), begin)


@kernel()
def _distinct(offsets: Ints, rows: Ints, ranks: Ints, kept: Ints) -> None:
    """Moves the rows of each list that have different ranks to its front, by rank, and counts them into `kept`."""
    for at in range(len(offsets) - 1):
        begin, end = offsets[at], offsets[at + 1]
        rows[begin:end] = rows[begin:end][np.argsort(ranks[rows[begin:end]])]
        count = 0
        for place in range(begin, end):
            if count == 0 or ranks[rows[place]] != ranks[rows[begin + count - 1]]:
                rows[begin + count] = rows[place]
                count += 1
        kept[at] = count


def take_lists(offsets: Ints, rows: Ints, values: pa.Array, ranks: Ints, *, distinct: bool) -> pa.Array:
    """A list for each event, or the different values of it, ascending."""
    if distinct:
        kept = np.empty(len(offsets) - 1, np.int64)
        _distinct(offsets, rows, ranks, kept)
        place_in_list = np.arange(len(rows)) - np.repeat(offsets[:-1], np.diff(offsets))
        rows = rows[place_in_list < np.repeat(kept, np.diff(offsets))]
        offsets = np.concatenate(([0], np.cumsum(kept)))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values.take(pa.array(rows)))
