"""Expiry by category: which values are live, and from which tuple on.

A value that arrives for the first time takes the next place; of all places the newest `live_categories` are live, so
each arrival beyond that drops the value that has held its place longest. Tuples of a dropped value are expired. The
last `remember_dropped` dropped values are remembered as such; an older one counts as new when it comes again, takes a
new place, and its keys are unique again. A place is never given twice, so it serves as the bucket key.

All of this happens in source order *inside* a batch. What matters of a batch is only where its values first arrive,
so the driver arranges the places once, between reading and judging, and every shard maps its rows by binary search.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deduper import kernels
from deduper.clock import writable
from deduper.kernels import Int64s, UInt8s
from deduper.verdict import INT64_MAX, Fate


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
class Interval:
    """A value holds `place` for source orders `begin` <= order < `end`; None: to the end of the batch and beyond."""

    begin: int
    end: int | None
    place: int


NextArrival = Callable[[str, int], int | None]
"""(value, order) -> source order of the value's first admitted tuple of the batch at or after `order`; None: none."""


def arrange(
    state: CategoryState,
    first_arrivals: Mapping[str, int],
    next_arrival: NextArrival,
    live_categories: int,
    remember_dropped: int,
) -> tuple[CategoryState, dict[str, list[Interval]]]:
    """The state after a batch, and the intervals in which its values were live, ascending, for every value it has.

    `first_arrivals`: source order of each value's first admitted tuple of the batch. `next_arrival` is asked only for
    a value that is forgotten inside the batch, and so may be slow. A value without an interval is dropped throughout.

    Raises:
        ValueError: live_categories < 1, or remember_dropped < 0; the message shows the value.
    """
    if live_categories < 1:
        raise ValueError(f"live_categories must be at least 1, not {live_categories}")
    if remember_dropped < 0:
        raise ValueError(f"remember_dropped must not be negative, not {remember_dropped}")
    # Dicts as ordered sets: oldest first, and membership without a scan.
    live = dict(state.live)
    dropped = dict.fromkeys(state.dropped)
    next_place = state.next_place
    begins = {value: 0 for value in live if value in first_arrivals}
    intervals: dict[str, list[Interval]] = {value: [] for value in first_arrivals}
    arrivals = [(order, value) for value, order in first_arrivals.items() if value not in live and value not in dropped]
    heapq.heapify(arrivals)

    def drop_oldest(order: int) -> None:
        value = next(iter(live))
        place = live.pop(value)
        begin = begins.pop(value, None)
        if begin is not None:
            intervals[value].append(Interval(begin, order, place))
        dropped[value] = None

    def forget_oldest(order: int) -> None:
        value = next(iter(dropped))
        del dropped[value]
        again = next_arrival(value, order + 1) if value in first_arrivals else None
        if again is not None:
            heapq.heappush(arrivals, (again, value))

    # A configuration that shrank drops values before the first tuple.
    while len(live) > live_categories:
        drop_oldest(0)
    while len(dropped) > remember_dropped:
        forget_oldest(-1)
    while arrivals:
        order, value = heapq.heappop(arrivals)
        live[value] = next_place
        begins[value] = order
        next_place += 1
        if len(live) > live_categories:
            drop_oldest(order)
            if len(dropped) > remember_dropped:
                forget_oldest(order)
    for value, begin in begins.items():
        intervals[value].append(Interval(begin, None, live[value]))
    return CategoryState(next_place, tuple(live.items()), tuple(dropped)), intervals


@dataclass(frozen=True, slots=True)
class PlaceIntervals:
    """The intervals of all values of a batch as arrays: those of category id c are starts[c] to starts[c + 1]."""

    starts: Int64s
    begin: Int64s
    end: Int64s
    place: Int64s

    @classmethod
    def of(cls, values: Sequence[str], intervals: Mapping[str, Sequence[Interval]]) -> PlaceIntervals:
        """The intervals by category id, which is the position in `values`."""
        lists = [intervals.get(value, ()) for value in values]
        flat = [interval for each in lists for interval in each]
        return cls(
            starts=np.cumsum([0, *map(len, lists)], dtype=np.int64),
            begin=np.array([interval.begin for interval in flat], np.int64),
            end=np.array([INT64_MAX if interval.end is None else interval.end for interval in flat], np.int64),
            place=np.array([interval.place for interval in flat], np.int64),
        )

    def places(self, ids: NDArray[np.integer[Any]], order: Int64s, fate: UInt8s) -> tuple[Int64s, UInt8s]:
        """(place, fate) of rows: an ADMITTED row whose value was not live when it came becomes CATEGORY_DROPPED.

        The place is -1 where the fate is not ADMITTED; `ids` is read elsewhere only. The arguments are not changed.

        Raises:
            IndexError: an admitted row's category id is none of the batch.
        """
        fate = np.array(fate, np.uint8)
        known = ids[fate == Fate.ADMITTED]
        if known.size and not 0 <= int(known.min()) <= int(known.max()) < self.starts.size - 1:
            raise IndexError(f"category ids {known.min()} to {known.max()}, of {self.starts.size - 1} categories")
        places = kernels.place_rows(
            self.starts,
            self.begin,
            self.end,
            self.place,
            writable(ids, np.int32),
            writable(order, np.int64),
            fate,
        )
        return places, fate
