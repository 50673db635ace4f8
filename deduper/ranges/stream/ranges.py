"""Ranges in levels: which are open, which are withdrawn, which cover events. PURE.

A level is never changed. It has the columns of a piece of ranges (docs/range-aggregates.md) and an index, which is made
at its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from deduper.errors import DeduperError
from deduper.ranges.aggregate.aggregates import Own
from deduper.ranges.aggregate.cells import Ids, IdTable
from deduper.ranges.aggregate.lists import Coverings
from deduper.ranges.aggregate.points import FIRST, LAST, Ints, as_points, closed_ranges
from deduper.ranges.aggregate.range_index import Events, RangeIndex, Ranges, level_answers
from deduper.ranges.aggregate.rows import whole
from deduper.ranges.stream.pieces import PieceName
from deduper.ranges.stream.rows import numbers
from deduper.ranges.stream.settings import StreamJob

HI, LO, KEY_HI, KEY_LO, ENTRY, SIGN = "__hi", "__lo", "__key_hi", "__key_lo", "__entry", "__sign"
RATIO = 4
_FRESH = -1


class RangeLevel:
    """Ranges and retractions of some windows; `piece` is their file, once there is one."""

    def __init__(self, job: StreamJob, rows: pa.Table, piece: PieceName | None = None) -> None:
        self._job = job
        self.rows = rows
        self.piece = piece

    @cached_property
    def points(self) -> tuple[Ints, Ints]:
        """The first and the last instant of each; of a range without any the first is after the last."""
        start, end = (whole(self.rows[name]) for name in (self._job.start, self._job.end))
        first, last, _ = closed_ranges(start, end, self._job.ends)
        return first, last

    @property
    def last_us(self) -> int:
        """The last instant of all."""
        return self.piece.last_us if self.piece is not None else int(self.points[1].max())

    @cached_property
    def entries(self) -> Ints:
        """The number of each range."""
        return numbers(self.rows, ENTRY)

    @cached_property
    def is_range(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Of each row whether it is a range and not a retraction."""
        return numbers(self.rows, SIGN) > 0

    @cached_property
    def withdrawn(self) -> Ints:
        """The entries of the retractions."""
        return self.entries[~self.is_range]

    @cached_property
    def indexes(self) -> list[tuple[RangeIndex, int]]:
        """The index of the ranges, and one of the retractions if there are any."""
        found = [(_index(self._job, self.rows.filter(pa.array(self.is_range))), 1)]
        if not self.is_range.all():
            found.append((_index(self._job, self.rows.filter(pa.array(~self.is_range))), -1))
        return found

    def overlapping(self, ids: Ids, first: Ints, last: Ints) -> pa.Table:
        """The rows that overlap one of these stretches of time of their ids, retractions too."""
        known, ranges = self._by_time
        group = known.find(ids)
        asked = np.flatnonzero(group >= 0)
        return self.rows.take(ranges.overlapping(group[asked], first[asked], last[asked]))

    @cached_property
    def _by_time(self) -> tuple[IdTable, Coverings]:
        known, group = IdTable.of(Ids(numbers(self.rows, HI), numbers(self.rows, LO)))
        numbered = pa.array(np.arange(self.rows.num_rows))
        return known, Coverings.of(group, len(known.hi), self.points, numbered, distinct=False)

    @cached_property
    def _by_key(self) -> tuple[Ints, Ints, Ints]:
        """The rows in the order of the first word of their keys, and both words in that order."""
        hi, lo = numbers(self.rows, KEY_HI), numbers(self.rows, KEY_LO)
        order = np.argsort(hi, kind="stable")
        return order, hi[order], lo[order]

    def of_keys(self, keys: Ids) -> list[tuple[int, int]]:
        """(number of the key, row) of every range that has one of these keys."""
        order, hi, lo = self._by_key
        begin, end = np.searchsorted(hi, keys.hi, "left"), np.searchsorted(hi, keys.hi, "right")
        found = []
        for ask in np.flatnonzero(end > begin).tolist():
            stretch = slice(begin[ask], end[ask])
            found += [(ask, row) for row in order[stretch][lo[stretch] == keys.lo[ask]].tolist() if self.is_range[row]]
        return found


def _index(job: StreamJob, rows: pa.Table) -> RangeIndex:
    ids = Ids(numbers(rows, HI), numbers(rows, LO))
    columns = {one.column: whole(rows[one.column]) for one in job.known.values() if one.column is not None}
    ranges = Ranges(ids, whole(rows[job.start]), whole(rows[job.end]), columns)
    return RangeIndex(ranges, job.ends, job.known, {}, is_level=True)


def answers(job: StreamJob, levels: Sequence[RangeLevel], schema: pa.Schema, events: Events) -> list[pa.ChunkedArray]:
    """The known aggregates of events, a column each; `schema` has the columns of ranges."""
    if not job.known:
        return []
    indexes = [index for level in levels for index in level.indexes]
    if not any(sign > 0 for _, sign in indexes):
        words = [pa.field(name, pa.int64()) for name in (HI, LO)]
        indexes.insert(0, (_index(job, pa.schema([*schema, *words]).empty_table()), 1))
    types = {field.name: field.type for field in schema}
    return level_answers(indexes, job.known, types, events)


def own_answers(job: StreamJob, levels: Sequence[RangeLevel], schema: pa.Schema, events: Events) -> list[pa.Array]:
    """The custom aggregates of events (one event at least); `schema` has the columns of ranges.

    A state is opaque: it is not stored, and states of several levels cannot be merged. So each window makes the state
    from zero. It adds and removes, once each, the ranges that overlap the time from the first to the last event of
    their id, in the order of their entries: so levels change no answer.

    Raises:
        DeduperError: a function raises, or gives what is not of the answer's type.
    """
    own = job.own
    if not own:
        return []
    rows = _overlapping(levels, _stored(job, schema), events)
    ids, start, end = Ids(numbers(rows, HI), numbers(rows, LO)), whole(rows[job.start]), whole(rows[job.end])
    return [
        _own_answer(job, name, one, Ranges(ids, start, end, {one.column: whole(rows[one.column])}), events)
        for name, one in own.items()
    ]


def _own_answer(job: StreamJob, name: str, own: Own, ranges: Ranges, events: Events) -> pa.Array:
    try:
        index = RangeIndex(ranges, job.ends, {name: own}, {name: job.own_types[name]})
        ((_, (found,)),) = index.answers(events)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise DeduperError(
            f"aggregate `{name}`: its functions have raised {type(error).__name__}: {first_line}; nothing of the "
            "window is committed: correct them, and start again"
        ) from error
    return found


def _stored(job: StreamJob, schema: pa.Schema) -> pa.Schema:
    """The columns of levels that are needed."""
    names = dict.fromkeys((job.start, job.end, *(one.column for one in job.own.values())))
    words = [pa.field(name, pa.int64()) for name in (HI, LO, ENTRY)]
    return pa.schema([*(schema.field(name) for name in names), *words, pa.field(SIGN, pa.int8())])


def _overlapping(levels: Sequence[RangeLevel], columns: pa.Schema, events: Events) -> pa.Table:
    """The ranges of the events' ids that overlap their times, without withdrawn ones, in the order of their entries."""
    ids, group = IdTable.of(events.ids)
    times, count = as_points(events.time), len(ids.hi)
    first, last = np.full(count, LAST), np.full(count, FIRST)
    np.minimum.at(first, group, times)
    np.maximum.at(last, group, times)
    parts = [level.overlapping(Ids(ids.hi, ids.lo), first, last).select(columns.names) for level in levels]
    rows = pa.concat_tables([columns.empty_table(), *parts])
    entries, is_range = numbers(rows, ENTRY), numbers(rows, SIGN) > 0
    kept = np.flatnonzero(is_range & ~np.isin(entries, entries[~is_range]))
    order: Ints = kept[np.argsort(entries[kept])]
    return rows.take(pa.array(order))


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The ranges that retractions withdraw: a row with sign -1 for each range of a level, and rows of the window.

    `asks` are the retractions of the rows, `levels` those of the ranges; `unknown` ones withdraw nothing.
    """

    rows: pa.Table | None
    asks: Ints
    levels: tuple[int, ...]
    fresh: tuple[int, ...]
    unknown: tuple[int, ...]


def withdraw(
    levels: Sequence[RangeLevel], fresh: RangeLevel | None, keys: Ids, places: Ints, closed_through: int
) -> Withdrawn:
    """The ranges that retractions with these keys withdraw; `places` are theirs in the rows of the window, ascending.

    `fresh` are the ranges of the window; the lower half of their entries is their place.
    """
    known: dict[int, list[tuple[int, int, int]]] = {}
    for number, level in enumerate(levels):
        found = level.of_keys(keys)
        entries = level.entries[[row for _, row in found]]
        is_open = level.points[1][[row for _, row in found]] > closed_through
        for later in levels[number:]:
            is_open &= ~np.isin(entries, later.withdrawn)
        for (ask, row), entry, is_one in zip(found, entries.tolist(), is_open.tolist(), strict=True):
            if is_one:
                known.setdefault(ask, []).append((number, row, entry))
    if fresh is not None:
        for ask, row in fresh.of_keys(keys):
            entry = int(fresh.entries[row])
            if entry & 0xFFFFFFFF < places[ask]:
                known.setdefault(ask, []).append((_FRESH, row, entry))
    gone: set[int] = set()
    rows: list[tuple[int, int, int]] = []
    dropped: list[int] = []
    unknown = []
    for ask in range(len(places)):
        left = [one for one in known.get(ask, ()) if one[2] not in gone]
        gone.update(entry for _, _, entry in left)
        rows += [(number, row, ask) for number, row, _ in left if number != _FRESH]
        dropped += [row for number, row, _ in left if number == _FRESH]
        if not left:
            unknown.append(ask)
    rows.sort()
    taken = [
        levels[number].rows.take(pa.array([row for of, row, _ in rows if of == number]))
        for number in sorted({number for number, _, _ in rows})
    ]
    withdrawn = None
    if taken:
        both = pa.concat_tables(taken)
        at = both.schema.get_field_index(SIGN)
        withdrawn = both.set_column(at, both.schema.field(at), pa.array(np.full(both.num_rows, -1, np.int8)))
    asks = np.array([ask for _, _, ask in rows], np.int64)
    return Withdrawn(withdrawn, asks, tuple(sorted({of for of, _, _ in rows})), tuple(dropped), tuple(unknown))


def merged(job: StreamJob, levels: Sequence[RangeLevel], closed_through: int) -> RangeLevel | None:
    """Several levels as one, without closed ranges and those that a retraction in them withdraws; None if empty."""
    rows = pa.concat_tables([level.rows for level in levels])
    entries = np.concatenate([level.entries for level in levels])
    is_range = np.concatenate([level.is_range for level in levels])
    both = np.intersect1d(entries[is_range], entries[~is_range])
    is_kept = np.concatenate([level.points[1] for level in levels]) > closed_through
    if len(both):
        is_kept &= ~np.isin(entries, both)
    kept = rows.filter(pa.array(is_kept)).combine_chunks()
    return RangeLevel(job, kept) if kept.num_rows else None


def merged_from(rows: Sequence[int], ratio: int, most: int | None = None) -> int:
    """The number of the first level that is merged with all later ones; `rows` are those of each level, oldest first.

    The last level is new. While it has at least 1/`ratio` of the rows of the one before, the two are merged, but not to
    more than `most` rows. So each level has more than `ratio` times the rows of the next, and moves a row a few times.
    """
    first = max(0, len(rows) - 1)
    total = sum(rows[first:])
    while first and rows[first - 1] < ratio * total and (most is None or rows[first - 1] + total <= most):
        first -= 1
        total += rows[first]
    return first
