"""Ids as numbers, and the time axis of each id cut into cells by the starts and ends of its ranges. PURE.

Cell 0 is empty: before the first mark, or an id without ranges. Cell i + 1 reaches from mark i to the next one of the
same id. Of marks at one time only the last has a cell in which an event can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.ranges.aggregate.points import LAST, Ints
from deduper.ranges.aggregate.sorting import sorted_in_groups

_ODD = -0x61C8864680B583EB
"""2^64 over the golden ratio: numbers of any step are spread over the slots."""
_TAIL = 64
_TIMES_A_SLOT = 2


@dataclass(frozen=True, slots=True)
class Ids:
    """Two words that stand for the id of each row: its digest, or a number and 0."""

    hi: Ints
    lo: Ints


@kernel()
def _number(slots: Ints, known_hi: Ints, known_lo: Ints, count: int, hi: Ints, lo: Ints, out: Ints, adds: bool) -> int:
    """Numbers the ids, and returns how many are known; without `adds` an unknown one is -1."""
    mask = len(slots) - 1
    for row in range(len(hi)):
        mixed = (hi[row] ^ lo[row]) * _ODD
        slot = (mixed ^ (mixed >> 32)) & mask
        while True:
            number = slots[slot]
            if number < 0:
                if adds:
                    number = slots[slot] = count
                    known_hi[count], known_lo[count] = hi[row], lo[row]
                    count += 1
                break
            if known_hi[number] == hi[row] and known_lo[number] == lo[row]:
                break
            slot = (slot + 1) & mask
        out[row] = number
    return count


@dataclass(frozen=True, slots=True)
class IdTable:
    """The ids of an index, numbered from 0."""

    slots: Ints
    hi: Ints
    lo: Ints

    @classmethod
    def of(cls, ids: Ids) -> tuple[IdTable, Ints]:
        """The table of these ids, and the number of each."""
        numbers, hi, lo = (np.empty(len(ids.hi), np.int64) for _ in range(3))
        count = _number(_slots(len(numbers)), hi, lo, 0, ids.hi, ids.lo, numbers, True)
        table = cls(_slots(count), hi[:count].copy(), lo[:count].copy())
        _number(table.slots, table.hi, table.lo, 0, table.hi.copy(), table.lo.copy(), np.empty(count, np.int64), True)
        return table, numbers

    def find(self, ids: Ids) -> Ints:
        """The number of each id, -1 for an unknown one."""
        numbers = np.empty(len(ids.hi), np.int64)
        _number(self.slots, self.hi, self.lo, 0, ids.hi, ids.lo, numbers, False)
        return numbers


def _slots(count: int) -> Ints:
    return np.full(1 << (2 * count + 1).bit_length(), -1, np.int64)


def offsets_of(group: Ints, groups: int) -> Ints:
    """Where each group begins and ends in rows sorted by group: groups + 1 numbers."""
    return np.concatenate(([0], np.cumsum(np.bincount(group, minlength=groups)))).astype(np.int64)


@kernel()
def _ruled(offsets: Ints, times: Ints, base: Ints, shift: Ints, rule: Ints, marks: NDArray[Any]) -> None:
    """See `Timeline`."""
    for group in range(len(offsets) - 1):
        begin, end, slots = offsets[group], offsets[group + 1], rule[group + 1] - rule[group] - 1
        tail = (end - begin) // _TAIL
        if begin == end:
            continue
        base[group] = times[begin + tail]
        span = np.uint64(times[end - 1 - tail]) - np.uint64(base[group])
        while span >> np.uint64(shift[group]) >= np.uint64(slots):
            shift[group] += 1
        at = begin + tail
        for slot in range(slots):
            while at < end - tail and (np.uint64(times[at]) - np.uint64(base[group])) >> np.uint64(
                shift[group]
            ) < np.uint64(slot):
                at += 1
            marks[rule[group] + slot] = at
        marks[rule[group + 1] - 1] = end - tail


@kernel()
def _places(
    offsets: Ints,
    times: Ints,
    base: Ints,
    shift: Ints,
    rule: Ints,
    marks: NDArray[Any],
    group: Ints,
    point: Ints,
    out: Ints,
) -> None:
    """How many times, of all groups before and of its own group, are at or before each point."""
    # Two loops: a wrong guess of the second one's branches throws away no load that the first one has begun.
    until = np.empty_like(out)
    for row in range(len(point)):
        number, sought = group[row], point[row]
        low, high = offsets[number], offsets[number + 1]
        tail = (high - low) // _TAIL
        if low < high:
            if sought < base[number]:
                high = low + tail
            elif sought >= times[high - 1 - tail]:
                low = high - 1 - tail
            else:
                slot = np.int64((np.uint64(sought) - np.uint64(base[number])) >> np.uint64(shift[number]))
                low, high = np.int64(marks[rule[number] + slot]), np.int64(marks[rule[number] + slot + 1])
        out[row], until[row] = low, high
    for row in range(len(point)):
        sought, low, high = point[row], out[row], until[row]
        while low < high:
            middle = (low + high) >> 1
            if times[middle] <= sought:
                low = middle + 1
            else:
                high = middle
        out[row] = low


@dataclass(frozen=True, slots=True)
class Timeline:
    """Sorted times of each group, and a rule over them, so that most of a binary search is one step.

    The rule cuts the time from `base`, the group's first time behind a tail, to its last one before a tail into slots
    of 2^`shift`, one for two times: `marks[rule[group] + slot]` is the first time of the slot. Tails are searched
    without it, so that a few times far away do not widen the slots.
    """

    offsets: Ints
    times: Ints
    base: Ints
    shift: Ints
    rule: Ints
    marks: NDArray[Any]

    @classmethod
    def of(cls, offsets: Ints, times: Ints) -> Timeline:
        """Of each group's times, which are sorted."""
        counts = np.diff(offsets)
        rule = np.concatenate(([0], np.cumsum(counts // _TIMES_A_SLOT + 2)))
        base, shift = np.zeros_like(counts), np.zeros_like(counts)
        marks = np.zeros(rule[-1], np.int32 if len(times) < 1 << 31 else np.int64)
        _ruled(offsets, times, base, shift, rule, marks)
        return cls(offsets, times, base, shift, rule, marks)

    def place(self, group: Ints, point: Ints) -> Ints:
        """Index of the first time of the group after the point. Every group is known."""
        places = np.empty(len(point), np.int64)
        _places(
            *(self.offsets, self.times, self.base, self.shift, self.rule, self.marks),
            *(group, point, places),
        )
        return places


@dataclass(frozen=True, slots=True)
class Places:
    """Where events are: the number of their id, -1 for an unknown one; their points; their cells."""

    group: Ints
    point: Ints
    cell: Ints

    def part(self, begin: int, end: int) -> Places:
        """Those of some events."""
        return Places(self.group[begin:end], self.point[begin:end], self.cell[begin:end])


@kernel()
def _spans(offsets: Ints, marks: Ints, start: Ints, stop: Ints) -> None:
    """A range that has no end reaches to the last cell of its id."""
    for group in range(len(offsets) - 1):
        for at in range(offsets[group], offsets[group + 1]):
            if marks[at] >= 0:
                start[marks[at]], stop[marks[at]] = at + 1, offsets[group + 1] + 1
            else:
                stop[~marks[at]] = at + 1


@dataclass(frozen=True, slots=True)
class Cells:
    """The marks of all ranges, sorted.

    `marks` has for each mark the row of its range, r if it begins there and ~r if it has ended. Marks
    of one time are in no certain order.
    """

    timeline: Timeline
    marks: Ints
    ranges: int

    @classmethod
    def of(cls, group: Ints, groups: int, first: Ints, last: Ints) -> Cells:
        """Cells of ranges, each with the number of its id and its first and last point."""
        ends = np.flatnonzero(last != LAST)
        marked = np.concatenate((group, group[ends]))
        offsets = offsets_of(marked, groups)
        marked_rows = np.concatenate((np.arange(len(group)), ~ends))
        times, marks = sorted_in_groups(marked, offsets, np.concatenate((first, last[ends] + 1)), marked_rows)
        return cls(Timeline.of(offsets, times), marks, len(group))

    def spans(self) -> tuple[Ints, Ints]:
        """The cells of each range: the first, and the one behind the last."""
        start, stop = np.empty(self.ranges, np.int64), np.empty(self.ranges, np.int64)
        _spans(self.timeline.offsets, self.marks, start, stop)
        return start, stop

    @property
    def count(self) -> int:
        """Cells, the empty one included."""
        return len(self.timeline.times) + 1

    def last_of_time(self) -> NDArray[np.bool_]:
        """Whether an event can be in the cell: its mark is the last of its time."""
        times, offsets = self.timeline.times, self.timeline.offsets
        is_last = np.ones(self.count, np.bool_)
        is_last[1:-1] = times[1:] != times[:-1]
        is_last[offsets[1:]] = True
        return is_last


def cell_of(timeline: Timeline, group: Ints, point: Ints) -> Ints:
    """The cell of each event; `group` is -1 for an unknown id."""
    if len(timeline.offsets) < 2:
        return np.zeros(len(point), np.int64)
    known = np.maximum(group, 0)
    place = timeline.place(known, point)
    return np.where((group >= 0) & (place > timeline.offsets[known]), place, 0)
