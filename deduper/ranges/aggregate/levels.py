"""Answers from several indexes together, as if one had all their ranges; those of some are subtracted. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from deduper.ranges.aggregate.aggregates import Aggregate, Kind
from deduper.ranges.aggregate.ordering import ranks
from deduper.ranges.aggregate.range_index import Events, RangeIndex
from deduper.ranges.aggregate.sums import added, sum_answers

LEVELED = (Kind.COUNT, Kind.SUM, Kind.MEAN, Kind.VARIANCE, Kind.MIN, Kind.MAX)
"""What can be put together from parts."""
SUBTRACTED = (Kind.COUNT, Kind.SUM, Kind.MEAN, Kind.VARIANCE)
"""What can be taken back from a whole."""


def answers(
    indexes: Sequence[tuple[RangeIndex, int]],
    aggregates: Mapping[str, Aggregate],
    types: Mapping[str, pa.DataType],
    events: Events,
) -> list[pa.Array]:
    """The answers to events, a column an aggregate, of at least one index; each has the sign 1 or -1.

    `types` are those of the columns. A sign of -1 is for ranges that another index has too, and only where all
    aggregates are `SUBTRACTED`.

    Raises:
        AnswerTooLargeError: as `RangeIndex.answers`.
    """
    of_indexes = [(index.parts(events), sign) for index, sign in indexes]
    found = []
    for number, (name, aggregate) in enumerate(aggregates.items()):
        parts = [(of_index[number], sign) for of_index, sign in of_indexes]
        if aggregate.kind not in SUBTRACTED:
            found.append(_best(aggregate.kind, [part.best for part, _ in parts]))
            continue
        sums = added([(part.sums, sign) for part, sign in parts if part.sums is not None])
        squares = [(part.squares, sign) for part, sign in parts if part.squares is not None]
        found.append(
            sum_answers(
                name, aggregate, aggregate.column and types[aggregate.column], sums, added(squares) if squares else None
            )
        )
    return found


def _best(kind: Kind, columns: Sequence[pa.Array]) -> pa.Array:
    """The least or the greatest value of each row; null where all are null."""
    values = pa.concat_arrays(columns)
    is_there = values.is_valid().to_numpy(zero_copy_only=False)
    rank = np.zeros(len(values), np.int64)
    rank[is_there] = ranks(values.take(pa.array(np.flatnonzero(is_there))))
    rows = len(columns[0])
    best = np.arange(rows)
    for begin in range(rows, len(values), max(1, rows)):
        other = np.arange(begin, begin + rows)
        is_better = rank[other] < rank[best] if kind is Kind.MIN else rank[other] > rank[best]
        best = np.where(is_there[other] & (is_better | ~is_there[best]), other, best)
    return values.take(pa.array(best))
