"""Answers from several indexes together, as if one had all their ranges; those of some are subtracted. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from deduper.ranges.aggregate.aggregates import Aggregate, Kind, answer_type
from deduper.ranges.aggregate.event_values import merged
from deduper.ranges.aggregate.range_index import Events, PartialAnswer, RangeIndex, parts_of
from deduper.ranges.aggregate.sums import added, sum_answers

SUBTRACTED = (Kind.COUNT, Kind.SUM, Kind.MEAN, Kind.VARIANCE)
"""What can be taken back from a whole."""


def answers(
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
