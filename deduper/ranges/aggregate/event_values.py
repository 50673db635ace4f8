"""Values that several indexes have found for the same events, put in one order. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.aggregates import OF_ONE, Aggregate, Kind
from deduper.ranges.aggregate.points import LAST, Ints, ranks

_DESCENDING = (Kind.MAX, Kind.LAST, Kind.TOP_K)


@dataclass(frozen=True, slots=True)
class EventValues:
    """The values of each event in the order of the aggregate, without nulls, from `offsets[event]` on.

    `span` are the first and last points of their ranges, of `last` and `list`, whose order they decide.
    """

    offsets: Ints
    values: pa.Array
    span: tuple[Ints, Ints] | None = None


@kernel()
def _precedes(keys: Ints, one: int, other: int) -> bool:
    for column in range(keys.shape[0]):
        if keys[column, one] != keys[column, other]:
            return bool(keys[column, one] < keys[column, other])
    return False


@kernel()
def _merge(heads: Ints, ends: Ints, keys: Ints, most: int, distinct: bool, rows: Ints, offsets: Ints) -> None:
    """Of each event the rows of all its lists by their keys, at most so many; `heads` move to `ends` meanwhile."""
    count = 0
    for event in range(heads.shape[1]):
        begin = count
        while count - begin < most:
            least = of = -1
            for number in range(heads.shape[0]):
                row = heads[number, event]
                if row < ends[number, event] and (least < 0 or _precedes(keys, row, least)):
                    least, of = row, number
            if least < 0:
                break
            heads[of, event] += 1
            if not distinct or count == begin or _precedes(keys, rows[count - 1], least):
                rows[count] = least
                count += 1
        offsets[event + 1] = count


def merged(aggregate: Aggregate, lists: Sequence[EventValues]) -> pa.Array:
    """The answers of `min`, `max`, `last`, `top_k`, `list` or `set` from all lists together."""
    values = pa.concat_arrays([one.values for one in lists])
    keys = [ranks(values)]
    if aggregate.kind in (Kind.LAST, Kind.LIST):
        spans = [one.span for one in lists if one.span is not None]
        keys = [np.concatenate([span[at] for span in spans]) for at in (0, 1)] + keys
    order = np.stack([~key if aggregate.kind in _DESCENDING else key for key in keys])
    begins = np.cumsum([0, *(len(one.values) for one in lists[:-1])])
    heads = np.stack([one.offsets[:-1] + begin for one, begin in zip(lists, begins, strict=True)])
    ends = np.stack([one.offsets[1:] + begin for one, begin in zip(lists, begins, strict=True)])
    rows, offsets = np.zeros(len(values) + 1, np.int64), np.zeros(heads.shape[1] + 1, np.int64)
    most = LAST if aggregate.kind in (Kind.LIST, Kind.SET) else aggregate.k
    _merge(heads, ends, order, most, aggregate.kind is Kind.SET, rows, offsets)
    if aggregate.kind not in OF_ONE:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values.take(pa.array(rows[: offsets[-1]])))
    return values.take(pa.array(rows[offsets[:-1]], mask=offsets[1:] == offsets[:-1]))
