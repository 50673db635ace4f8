"""`min`, `max`, `last` and `top_k` in each cell: the best of the ranges that cover it. PURE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.aggregates import Aggregate, Kind
from deduper.ranges.aggregate.cells import Cells, Places
from deduper.ranges.aggregate.event_values import EventValues
from deduper.ranges.aggregate.points import Ints, ranks


@kernel()
def _paint(order: Ints, start: Ints, stop: Ints, painted: NDArray[np.int32]) -> None:
    """Paints each cell with the k ranges that come first in the order; -1 where there are fewer.

    A full cell points at one behind it, so that whole stretches are skipped: every step paints, or shortens a path.
    """
    cells, k = painted.shape
    painted[:] = -1
    filled = np.zeros(cells, np.int32)
    open_from = np.arange(cells + 1)
    for row in order:
        cell = start[row]
        while True:
            root = cell
            while open_from[root] != root:
                root = open_from[root]
            while open_from[cell] != root:
                open_from[cell], cell = root, open_from[cell]
            cell = root
            if cell >= stop[row]:
                break
            painted[cell, filled[cell]] = row
            filled[cell] += 1
            if filled[cell] == k:
                open_from[cell] = cell + 1
            cell += 1


def best_rows(aggregate: Aggregate, values: pa.Array, first: Ints, last: Ints) -> Ints:
    """Rows that are not null, the best first; equal ones are equal in all that an answer shows."""
    rows = np.flatnonzero(~values.is_null().to_numpy(zero_copy_only=False))
    rank = ranks(values.take(pa.array(rows)))
    if aggregate.kind is Kind.LAST:
        return rows[np.lexsort((rank, last[rows], first[rows]))[::-1]]
    order = np.argsort(rank, kind="stable")
    return rows[order if aggregate.kind is Kind.MIN else order[::-1]]


@dataclass(frozen=True, slots=True)
class Best:
    """For each cell the rows of its k best values, the best first, then -1.

    `span` are the first and last points of the rows, kept where they decide between the best of several indexes.
    """

    values: pa.Array
    rows: NDArray[np.int32]
    as_lists: bool
    span: tuple[Ints, Ints] | None

    @classmethod
    def of(
        cls, aggregate: Aggregate, values: pa.Array, ranges: tuple[Ints, Ints], cells: Cells, *, keeps_span: bool
    ) -> Best:
        """Of ranges with their first and last points, their values and cells."""
        painted = np.empty((cells.count, aggregate.k), np.int32)
        _paint(best_rows(aggregate, values, *ranges), *cells.spans(), painted)
        span = ranges if keeps_span and aggregate.kind is Kind.LAST else None
        return cls(values, painted, aggregate.kind is Kind.TOP_K, span)

    def answers(self, places: Places) -> pa.Array:
        """Of the cell of each event."""
        return take_best(self.values, self.rows[places.cell], as_lists=self.as_lists)

    def event_values(self, places: Places) -> EventValues:
        """The best of each event, for those of several indexes."""
        rows = self.rows[places.cell]
        is_there = rows >= 0
        offsets = np.concatenate(([0], np.cumsum(is_there.sum(axis=1))))
        best = rows[is_there]
        span = None if self.span is None else (self.span[0][best], self.span[1][best])
        return EventValues(offsets, self.values.take(pa.array(best)), span)


def take_best(values: pa.Array, rows: NDArray[np.int32], *, as_lists: bool) -> pa.Array:
    """The values of painted rows: one each, or a list of those that are there."""
    if not as_lists:
        return values.take(pa.array(rows[:, 0], mask=rows[:, 0] < 0))
    is_there = rows >= 0
    offsets = np.concatenate(([0], np.cumsum(is_there.sum(axis=1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(rows[is_there])))
