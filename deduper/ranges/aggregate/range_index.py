"""The index of ranges that answers events; and answers from several indexes, as if one had all their ranges. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from deduper.ranges.aggregate.aggregates import OF_ONE, SUBTRACTED, Aggregate, AnyAggregate, Kind, Own, answer_type
from deduper.ranges.aggregate.best import Best
from deduper.ranges.aggregate.cells import Cells, Ids, IdTable, Places, cell_of
from deduper.ranges.aggregate.event_values import EventValues, merged
from deduper.ranges.aggregate.lists import Coverings
from deduper.ranges.aggregate.own import run_cells
from deduper.ranges.aggregate.points import Ints, as_points, closed_ranges
from deduper.ranges.aggregate.sums import Numbers, added, sum_answers, sums_of_cells

MOST_LISTED = 1 << 21
"""Values in the lists of one answer, unless a single event has more."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges as columns: ids, starts and ends of one type of time, and the columns that aggregates take."""

    ids: Ids
    start: pa.Array
    end: pa.Array
    columns: Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class Events:
    """Events as columns: ids, times, and the columns that aggregates take."""

    ids: Ids
    time: pa.Array
    columns: Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """Answers from some of the ranges: sums, for the variance those of squares too, or else each event's values."""

    sums: Numbers | None = None
    squares: Numbers | None = None
    values: EventValues | None = None


@dataclass(frozen=True, slots=True)
class _Summed:
    """`count`, `sum`, `mean` or `variance` from the sums of each cell."""

    name: str
    aggregate: Aggregate
    column: pa.DataType | None
    sums: Numbers
    squares: Numbers | None

    def part(self, places: Places) -> PartialAnswer:
        return PartialAnswer(self.sums.at(places.cell), None if self.squares is None else self.squares.at(places.cell))

    def answers(self, places: Places) -> pa.Array:
        if self.squares is None and self.sums.table.shape[1] <= 2:
            return sum_answers(self.name, self.aggregate, self.column, self.sums.at(places.cell), None)
        # Large numbers are made once a cell, not once an event.
        cells, cell_of = np.unique(places.cell, return_inverse=True)
        squares = None if self.squares is None else self.squares.at(cells)
        of_cells = sum_answers(self.name, self.aggregate, self.column, self.sums.at(cells), squares)
        return of_cells.take(pa.array(cell_of))


@dataclass(frozen=True, slots=True)
class _OfCells:
    """A custom aggregate, finished for each cell."""

    finished: pa.Array

    def answers(self, places: Places) -> pa.Array:
        return self.finished.take(pa.array(places.cell))


Answers: TypeAlias = _Summed | _OfCells | Coverings | Best
"""One aggregate, ready to be looked up: `answers` gives the value of each event of a batch, by its cell."""


class RangeIndex:
    """Answers events from the ranges that cover them; made once, then only read.

    `types` are those of the answers of custom aggregates, by name. With `is_level` the index is one of several, see
    `level_answers`, and has no custom aggregates.
    """

    def __init__(
        self,
        ranges: Ranges,
        ends: str,
        aggregates: Mapping[str, AnyAggregate],
        types: Mapping[str, pa.DataType],
        *,
        is_level: bool = False,
    ) -> None:
        first, last, has_points = closed_ranges(ranges.start, ranges.end, ends)
        ids, columns = ranges.ids, ranges.columns
        if not has_points.all():
            rows = np.flatnonzero(has_points)
            first, last, ids = first[rows], last[rows], Ids(ids.hi[rows], ids.lo[rows])
            columns = {name: column.take(pa.array(rows)) for name, column in columns.items()}
        span = (first, last)
        self._ids, group = IdTable.of(ids)
        groups = len(self._ids.hi)
        cells = Cells.of(group, groups, *span)
        self._timeline = cells.timeline
        sums: dict[tuple[str | None, bool], Numbers] = {}

        def summed(column: str | None, *, squared: bool = False) -> Numbers:
            if (column, squared) not in sums:
                values = None if column is None else columns[column]
                numbers = Numbers.of(values, len(first), squared=squared)
                sums[column, squared] = sums_of_cells(numbers, cells.timeline.offsets, cells.marks)
            return sums[column, squared]

        def ready(name: str, aggregate: AnyAggregate) -> Answers:
            column = aggregate.column
            if isinstance(aggregate, Own):
                return _OfCells(run_cells(aggregate, types[name], columns[aggregate.column], cells))
            if aggregate.kind in (Kind.LIST, Kind.SET):
                is_set = aggregate.kind is Kind.SET
                return Coverings.of(group, groups, span, columns[column or ""], distinct=is_set)
            if aggregate.kind in (*OF_ONE, Kind.TOP_K):
                return Best.of(aggregate, columns[column or ""], span, cells, keeps_span=is_level)
            squares = summed(column, squared=True) if aggregate.kind is Kind.VARIANCE else None
            return _Summed(name, aggregate, column and columns[column].type, summed(column), squares)

        self._ready = [ready(name, aggregate) for name, aggregate in aggregates.items()]

    def answers(self, events: Events) -> Iterator[tuple[slice, list[pa.Array]]]:
        """The answers to events, in their order, in as many parts as long lists need: rows, and a column each."""
        places = self.places(events)
        for begin, end in parts_of(len(places.point), self.list_lengths(places)):
            part = places.part(begin, end)
            yield slice(begin, end), [ready.answers(part) for ready in self._ready]

    def places(self, events: Events) -> Places:
        """Where these events are."""
        group, point = self._ids.find(events.ids), as_points(events.time)
        return Places(group, point, cell_of(self._timeline, group, point))

    def list_lengths(self, places: Places) -> list[Ints]:
        """For each `list` and `set`: how many values each event has."""
        return [ready.count(places) for ready in self._ready if isinstance(ready, Coverings)]

    def parts(self, places: Places) -> list[PartialAnswer]:
        """The answers as parts of answers of several indexes: see `level_answers`."""
        return [self._part(ready, places) for ready in self._ready]

    @staticmethod
    def _part(ready: Answers, places: Places) -> PartialAnswer:
        if isinstance(ready, _Summed):
            return ready.part(places)
        assert isinstance(ready, Best | Coverings), "a custom aggregate has no parts"
        return PartialAnswer(values=ready.event_values(places))


def parts_of(rows: int, counts: Sequence[Ints]) -> Iterator[tuple[int, int]]:
    """Stretches of rows: each has at most `MOST_LISTED` values in its lists, or is one row."""
    listed = np.cumsum(sum(counts, np.zeros(rows, np.int64)))
    begin = 0
    while begin < rows:
        before = int(listed[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(listed, before + MOST_LISTED, side="right")))
        yield begin, end
        begin = end


def level_answers(
    indexes: Sequence[tuple[RangeIndex, int]],
    aggregates: Mapping[str, Aggregate],
    types: Mapping[str, pa.DataType],
    events: Events,
) -> list[pa.ChunkedArray]:
    """The answers to events, a column an aggregate, of at least one index; each has the sign 1 or -1.

    `types` are those of the columns. A sign of -1 is for ranges that another index has too, and only where all
    aggregates are `SUBTRACTED`. A column has as many chunks as long lists need.

    Raises:
        AnswerTooLargeError: as `RangeIndex.answers`.
    """
    columns = {name: None if one.column is None else types[one.column] for name, one in aggregates.items()}
    chunks: dict[str, list[pa.Array]] = {name: [] for name in aggregates}
    places = [(index, index.places(events), sign) for index, sign in indexes]
    lengths = [length for index, of_events, _ in places for length in index.list_lengths(of_events)]
    for begin, end in parts_of(len(events.time), lengths):
        of_indexes = [(index.parts(of_events.part(begin, end)), sign) for index, of_events, sign in places]
        for number, (name, aggregate) in enumerate(aggregates.items()):
            parts = [(of_index[number], sign) for of_index, sign in of_indexes]
            chunks[name].append(_together(name, aggregate, columns[name], parts))
    return [pa.chunked_array(chunks[name], answer_type(one, columns[name])) for name, one in aggregates.items()]


def _together(
    name: str, aggregate: Aggregate, column: pa.DataType | None, parts: Sequence[tuple[PartialAnswer, int]]
) -> pa.Array:
    if aggregate.kind not in SUBTRACTED:
        return merged(aggregate, [part.values for part, _ in parts if part.values is not None])
    sums = added([(part.sums, sign) for part, sign in parts if part.sums is not None])
    squares = [(part.squares, sign) for part, sign in parts if part.squares is not None]
    return sum_answers(name, aggregate, column, sums, added(squares) if squares else None)
