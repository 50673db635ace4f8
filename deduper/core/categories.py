"""Expiry by category: which values are live, and from which tuple on.

A value that arrives for the first time takes the next place; of all places the newest `live_categories` are live, so
each arrival beyond that drops the value that has held its place longest. Tuples of a dropped value are expired. The
last `remember_dropped` dropped values are remembered as such; an older one counts as new when it comes again, takes a
new place, and its keys are unique again. A place is never given twice, so it serves as the bucket key.

All of this happens in source order *inside* a batch. It depends only on the first arrival of each value in the batch,
so the driver arranges the places once, between reading and judging, and every shard maps its rows by binary search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deduper.core import kernels
from deduper.core.clock import writable
from deduper.core.kernels import Int64s, UInt8s
from deduper.core.verdict import INT64_MAX, Admission


@dataclass(frozen=True, slots=True)
class CategoryState:
    """Live and dropped values, each in the order in which they became so; part of the commit record.

    The live places are the newest ones: `next_place - len(live)` up to `next_place - 1`.
    """

    next_place: int = 0
    live: tuple[tuple[str, int], ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def first_live_place(self) -> int:
        """Buckets below it are dead."""
        return self.next_place - len(self.live)

    def to_wire(self) -> list[Any]:
        """Lists, strings and ints alone, for JSON and msgpack."""
        return [self.next_place, [list(pair) for pair in self.live], list(self.dropped)]

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> CategoryState:
        """The state that `to_wire` took apart."""
        next_place, live, dropped = wire
        return cls(next_place, tuple((value, place) for value, place in live), tuple(dropped))


@dataclass(frozen=True, slots=True)
class PlaceIntervals:
    """When the values of a batch were live: those of category id c are starts[c] to starts[c + 1], ascending.

    Each says that the value holds `place` for source orders begin <= order < end; the greatest int64 stands for no end.
    """

    starts: Int64s
    begin: Int64s
    end: Int64s
    place: Int64s

    def places(self, ids: NDArray[np.integer[Any]], order: Int64s, admission: UInt8s) -> tuple[Int64s, UInt8s]:
        """(place, admission) of rows: an ADMITTED row whose value was not live when it came becomes CATEGORY_DROPPED.

        The place is -1 where the admission is not ADMITTED; only `ids` of ADMITTED rows are read. No argument changes.

        Raises:
            IndexError: an admitted row's category id is none of the batch.
        """
        admission = np.array(admission, np.uint8)
        known = ids[admission == Admission.ADMITTED]
        if known.size and not 0 <= int(known.min()) <= int(known.max()) < self.starts.size - 1:
            raise IndexError(f"category ids {known.min()} to {known.max()}, of {self.starts.size - 1} categories")
        places = kernels.place_rows(
            self.starts,
            self.begin,
            self.end,
            self.place,
            writable(ids, np.int32),
            writable(order, np.int64),
            admission,
        )
        return places, admission


Arrivals = Callable[[], tuple[NDArray[np.int32], Int64s]]
"""All admitted tuples of the batch in source order: (category id, source order) of each."""


def arrange(
    state: CategoryState,
    values: Sequence[str],
    first: Int64s,
    arrivals: Arrivals,
    live_categories: int,
    remember_dropped: int,
) -> tuple[CategoryState, PlaceIntervals]:
    """The state after a batch, and the intervals in which its values were live.

    `values` are those of the batch by category id, each once; `first` has the source order of each one's first admitted
    tuple, the greatest int64 where there is none. `arrivals` is called only when a value of the batch is forgotten
    inside it: a later tuple may then take a new place. A value without an interval is dropped throughout.

    Linear in tuples, values and the size of the state, but for the sort by source order.

    Raises:
        ValueError: live_categories < 1, or remember_dropped < 0; the message shows the value.
    """
    if live_categories < 1:
        raise ValueError(f"live_categories must be at least 1, not {live_categories}")
    if remember_dropped < 0:
        raise ValueError(f"remember_dropped must not be negative, not {remember_dropped}")
    earlier = [*(value for value, _ in state.live), *state.dropped]
    ids = dict(zip(values, range(len(values)), strict=True))
    for value in earlier:
        ids.setdefault(value, len(ids))
    known = np.array([ids[value] for value in earlier], np.int32)
    by_order = np.argsort(first, kind="stable")[: np.count_nonzero(first < INT64_MAX)]
    counts = len(state.live), len(ids), len(values), live_categories, remember_dropped
    found = kernels.arrange_places(by_order.astype(np.int32), first[by_order], known, *counts)
    if not found[-1]:
        found = kernels.arrange_places(*arrivals(), known, *counts)
    holder, begin, end, oldest, dropped, _ = found
    texts = list(ids)
    place = np.arange(holder.size) + state.first_live_place
    after = CategoryState(
        state.next_place - len(state.live) + holder.size,
        tuple((texts[holder[at]], int(place[at])) for at in range(oldest, holder.size)),
        tuple(texts[at] for at in dropped),
    )
    held = np.flatnonzero(holder < len(values))
    held = held[np.argsort(holder[held], kind="stable")]
    starts = np.searchsorted(holder[held], np.arange(len(values) + 1))
    return after, PlaceIntervals(starts, begin[held], end[held], place[held])
