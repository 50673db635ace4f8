"""The mirror image: the index of events that answers ranges with aggregates of the events inside them. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.aggregates import OF_NUMBERS, Aggregate, AnyAggregate, Kind, Own
from deduper.ranges.aggregate.best import best_rows, take_best
from deduper.ranges.aggregate.cells import IdTable, Timeline, offsets_of
from deduper.ranges.aggregate.lists import take_lists
from deduper.ranges.aggregate.own import canonical, fold
from deduper.ranges.aggregate.points import FIRST, Ints, as_points, closed_ranges
from deduper.ranges.aggregate.range_index import Events, Ranges, parts_of
from deduper.ranges.aggregate.sums import Numbers, sum_answers


@kernel()
def _least_between(tree: Ints, begin: Ints, end: Ints, out: Ints) -> None:
    """The least order number of each stretch of leaves; the number of leaves for an empty one."""
    leaves = len(tree) // 2
    for row in range(len(begin)):
        best, low, high = leaves, leaves + begin[row], leaves + end[row]
        while low < high:
            if low & 1:
                best = min(best, tree[low])
                low += 1
            if high & 1:
                high -= 1
                best = min(best, tree[high])
            low >>= 1
            high >>= 1
        out[row] = best


@kernel()
def _least(numbers: Ints) -> Ints:
    """A tree in an array: node i has the lesser of 2i and 2i + 1, the leaves are the numbers."""
    leaves = len(numbers)
    tree = np.concatenate((numbers, numbers))
    for node in range(leaves - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
    return tree


@kernel()
def _greatest(order_of: Ints, begin: Ints, end: Ints, out: NDArray[np.int32]) -> None:
    """The places of the k least order numbers of each stretch, the least first, then -1."""
    k = out.shape[1]
    out[:] = -1
    for row in range(len(begin)):
        count = 0
        for place in range(begin[row], end[row]):
            if count == k and order_of[place] > order_of[out[row, k - 1]]:
                continue
            at = min(count, k - 1)
            while at > 0 and order_of[out[row, at - 1]] > order_of[place]:
                out[row, at] = out[row, at - 1]
                at -= 1
            out[row, at] = place
            count = min(count + 1, k)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The events whose value is not null, by id, point and value; and one aggregate, ready to be looked up."""

    name: str
    aggregate: AnyAggregate
    type: pa.DataType | None
    timeline: Timeline
    values: pa.Array | None
    rows: Ints
    order: Ints
    running: tuple[Numbers, Numbers | None] | None

    @classmethod
    def of(
        cls,
        name: str,
        aggregate: AnyAggregate,
        own_type: pa.DataType | None,
        events: tuple[Ints, int, Ints],
        values: pa.Array | None,
    ) -> _Sorted:
        """Of events with the numbers of their ids, the number of ids, and points."""
        group, groups, point = events
        rank = np.zeros(len(point), np.int64)
        if values is not None:
            there = np.flatnonzero(~values.is_null().to_numpy(zero_copy_only=False))
            group, point, values = group[there], point[there], values.take(pa.array(there))
            rank = canonical(values)
        by_time = np.lexsort((rank, point, group))
        values = None if values is None else values.take(pa.array(by_time))
        timeline = Timeline.of(offsets_of(group, groups), point[by_time])
        rows, order, running = np.empty(0, np.int64), rank[by_time], None
        if isinstance(aggregate, Aggregate) and aggregate.kind in (Kind.MIN, Kind.MAX, Kind.TOP_K):
            rows = best_rows(aggregate, values, timeline.times, timeline.times)
            order = np.empty(len(rows), np.int64)
            order[rows] = np.arange(len(rows))
            order = order if aggregate.kind is Kind.TOP_K else _least(order)
        elif isinstance(aggregate, Aggregate) and aggregate.kind in (Kind.COUNT, *OF_NUMBERS):
            squares = _running(values, len(point), squared=True) if aggregate.kind is Kind.VARIANCE else None
            running = _running(values, len(point), squared=False), squares
        return cls(name, aggregate, own_type, timeline, values, rows, order, running)

    @property
    def is_listed(self) -> bool:
        """Whether an answer is as long as its stretch."""
        return isinstance(self.aggregate, Aggregate) and self.aggregate.kind in (Kind.LIST, Kind.SET)

    def stretches(self, group: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """From where to where the events of each range lie."""
        if len(self.timeline.offsets) < 2:
            return (np.zeros(len(group), np.int64),) * 2
        known = np.maximum(group, 0)
        before = self.timeline.place(known, np.where(first == FIRST, FIRST, first - 1))
        begin = np.where(first == FIRST, self.timeline.offsets[known], before)
        end = np.where(group >= 0, self.timeline.place(known, last), begin)
        return begin, np.maximum(begin, end)

    def answers(self, begin: Ints, end: Ints) -> pa.Array:
        """One for each stretch."""
        if isinstance(self.aggregate, Own):
            return fold(self.aggregate, self.type, self.values, begin, end)
        if self.running is not None:
            sums, squares = (each and replace(each, table=each.table[end] - each.table[begin]) for each in self.running)
            assert sums is not None
            column = None if self.values is None else self.values.type
            return sum_answers(self.name, self.aggregate, column, sums, squares)
        assert self.values is not None
        match self.aggregate.kind:
            case Kind.LAST:
                return self.values.take(pa.array(end - 1, mask=begin == end))
            case Kind.TOP_K:
                best = np.empty((len(begin), self.aggregate.k), np.int32)
                _greatest(self.order, begin, end, best)
                return take_best(self.values, best, as_lists=True)
            case Kind.MIN | Kind.MAX:
                found = np.empty(len(begin), np.int64)
                _least_between(self.order, begin, end, found)
                rows = np.append(self.rows, -1)[found].reshape(-1, 1)
                return take_best(self.values, rows, as_lists=False)
            case _:
                offsets = np.concatenate(([0], np.cumsum(end - begin)))
                listed = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], end - begin)
                is_set = self.aggregate.kind is Kind.SET
                return take_lists(offsets, listed, self.values, self.order, distinct=is_set)


def _running(values: pa.Array | None, rows: int, *, squared: bool) -> Numbers:
    """The sums before each row, and of all."""
    numbers = Numbers.of(values, rows, squared=squared)
    nothing = np.zeros((1, numbers.table.shape[1]), np.int64)
    return replace(numbers, table=np.concatenate((nothing, np.cumsum(numbers.table, axis=0))))


class EventIndex:
    """Answers ranges from the events inside them; made once, then only read.

    `types` are those of the answers of custom aggregates, by name.
    """

    def __init__(
        self, events: Events, ends: str, aggregates: Mapping[str, AnyAggregate], types: Mapping[str, pa.DataType]
    ) -> None:
        self._ends = ends
        self._ids, group = IdTable.of(events.ids)
        placed = group, len(self._ids.hi), as_points(events.time)
        self._ready = [
            _Sorted.of(name, aggregate, types.get(name), placed, events.columns.get(aggregate.column or ""))
            for name, aggregate in aggregates.items()
        ]

    def answers(self, ranges: Ranges) -> Iterator[tuple[slice, list[pa.Array]]]:
        """The answers to ranges, in their order, in as many parts as long lists need: rows, and a column each."""
        first, last, has_points = closed_ranges(ranges.start, ranges.end, self._ends)
        group = np.where(has_points, self._ids.find(ranges.ids), -1)
        found = [ready.stretches(group, first, last) for ready in self._ready]
        counts = [end - begin for ready, (begin, end) in zip(self._ready, found, strict=True) if ready.is_listed]
        for low, high in parts_of(len(first), counts):
            part = slice(low, high)
            answered = zip(self._ready, found, strict=True)
            yield part, [ready.answers(begin[part], end[part]) for ready, (begin, end) in answered]
