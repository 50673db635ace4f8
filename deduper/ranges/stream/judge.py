"""Judges a window: from the rows of both inputs and the state before, the rows of all ports and the next state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deduper.errors import IntegrityError, UsageError
from deduper.ranges.aggregate.aggregates import require_free_names, require_types
from deduper.ranges.aggregate.cells import Ids
from deduper.ranges.aggregate.points import FIRST, Ints, as_points, closed_ranges
from deduper.ranges.aggregate.range_index import Events
from deduper.ranges.aggregate.rows import Bools, event_reasons, first_reasons, range_reasons, whole
from deduper.ranges.stream import events as of_events
from deduper.ranges.stream import ranges as of_ranges
from deduper.ranges.stream.events import EventLevel
from deduper.ranges.stream.pieces import EVENTS, RANGES
from deduper.ranges.stream.ranges import (
    ENTRY,
    HI,
    KEY_HI,
    KEY_LO,
    LO,
    SIGN,
    RangeLevel,
    answers,
    merged,
    merged_from,
    own_answers,
    withdraw,
)
from deduper.ranges.stream.rows import InputRows, PortRow, digests, numbers, port_rows, port_table
from deduper.ranges.stream.settings import WINDOW, StreamJob

EVENT, RANGE = "event", "range"


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state after the committed windows: the clock, the columns of ranges, the levels."""

    clock: int | None
    schema: pa.Schema | None
    ranges: tuple[RangeLevel, ...]
    events: tuple[EventLevel, ...]

    @property
    def levels(self) -> dict[str, Sequence[RangeLevel | EventLevel]]:
        """All levels, by the kind of their pieces."""
        return {RANGES: self.ranges, EVENTS: self.events}

    def gone_through(self, period_us: int) -> int:
        """Events up to this instant are expired, and ranges that end by it are closed."""
        return FIRST if self.clock is None else max(FIRST, self.clock - period_us)


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """The rows of each port that has some, the counts of rows by outcome, and the next state."""

    ports: dict[str, pa.Table]
    counts: dict[str, int]
    state: StreamState


class StreamJudge:
    """Judges the windows of a job, in their order; keeps nothing of them."""

    def __init__(self, job: StreamJob, salt: bytes) -> None:
        self._job = job
        self._salt = salt

    def judge(
        self, window: int, state: StreamState, events: InputRows | None, ranges: InputRows | None
    ) -> JudgedWindow:
        """The window of these rows; None stands for no rows, which both have only before `state.schema` is known.

        Raises:
            UsageError: columns that do not fit the settings, each other, or the windows before.
            AnswerTooLargeError: a sum has no place in its type.
            IntegrityError: rows in and rows out differ.
        """
        work = _Window(self._job, self._salt, window, state)
        if ranges is not None:
            work.take_ranges(work.good_rows(RANGE, ranges))
        work.make_levels()
        work.correct()
        if events is not None:
            work.take_events(work.good_rows(EVENT, events))
        return work.judged()


class _Window:
    """The judging of one window."""

    def __init__(self, job: StreamJob, salt: bytes, window: int, state: StreamState) -> None:
        self._job = job
        self._salt = salt
        self._window = window
        self._before = state
        self._schema = state.schema
        self._gone = state.gone_through(job.period)
        corrects = job.late_ranges == "correct"
        # Answers up to this instant lack the ranges that come now, and no correction follows. None: there are none.
        self._final = None if state.clock is None else self._gone if corrects else state.clock
        self._clock = state.clock
        self._levels = list(state.ranges)
        self._remembered = list(state.events)
        self._fresh: RangeLevel | None = None
        self._withdrawn: RangeLevel | None = None
        self._from = len(self._levels)
        self._late: list[PortRow] = []
        self._errors: list[PortRow] = []
        self._ports: dict[str, pa.Table] = {}
        self._counts: Counter[str] = Counter()

    def good_rows(self, side: str, rows: InputRows) -> pa.Table:
        """The rows of an input. Records that make no row leave as errors."""
        self._counts[f"{side}s"] += rows.count
        for reason, text in rows.bad:
            self._errors.append(PortRow(side, reason, text))
            self._counts[f"{side}s.{reason}"] += 1
        return rows.table

    # Ranges.

    def take_ranges(self, rows: pa.Table) -> None:
        """Ranges and retractions: bad and closed ones leave by their ports, the others become rows of levels."""
        job = self._job
        self._require_ranges(rows.schema)
        place = np.arange(rows.num_rows, dtype=np.int64)
        is_asking = self._is_retraction(rows)
        start, end = whole(rows[job.start]), whole(rows[job.end])
        first, last, _ = closed_ranges(start, end, job.ends)
        left = ~is_asking
        reasons = range_reasons(rows, job.on, job.start, job.end, job.longest)
        for reason, holds in first_reasons(rows.num_rows, reasons):
            left = self._leave(RANGE, reason, rows, left, holds, self._errors)
        left = self._leave(RANGE, "closed", rows, left, (last <= self._gone) & (first <= last), self._late)
        self._counts["ranges.added"] += int(left.sum())
        good = np.flatnonzero(left)
        if len(good):
            self._fresh = RangeLevel(job, self._entered(rows.take(pa.array(good)), place[good]))
        self._withdraw(rows, np.flatnonzero(is_asking))
        if self._fresh is not None:
            is_kept = np.isin(place, self._fresh.entries & 0xFFFFFFFF)
            self._tell_late("late", rows, np.flatnonzero(is_kept & self._are_late(first, last)))

    def _leave(self, side: str, reason: str, rows: pa.Table, left: Bools, holds: Bools, port: list[PortRow]) -> Bools:
        """Moves the rows for which a reason holds to a port; gives a mask of the others."""
        leaving = np.flatnonzero(left & holds)
        if len(leaving):
            port += port_rows(side, reason, rows, leaving)
            self._counts[f"{side}s.{reason}"] += len(leaving)
        return left & ~holds

    def _are_late(self, first: Ints, last: Ints) -> Bools:
        """Whether earlier answers may lack ranges of these points for good."""
        if self._final is None:
            return np.zeros(len(first), np.bool_)
        late: Bools = (first <= self._final) & (first <= last)
        return late

    def _tell_late(self, reason: str, rows: pa.Table, where: Ints) -> None:
        """Adds rows that do count to the port `late`: earlier answers lack them."""
        self._late += port_rows(RANGE, reason, rows, where)
        self._counts[f"rejected.{reason}"] += len(where)

    def _is_retraction(self, rows: pa.Table) -> Bools:
        retraction = self._job.retraction
        if retraction is None:
            return np.zeros(rows.num_rows, np.bool_)
        column = whole(rows[retraction.column])
        is_asking = pc.fill_null(pc.equal(column, retraction.value_of(column.type)), False)
        found: Bools = is_asking.to_numpy(zero_copy_only=False)
        return found

    def _entered(self, rows: pa.Table, place: Ints) -> pa.Table:
        """Ranges as rows of a level."""
        ids = digests("ranges", rows, self._job.on, self._salt)
        keys = digests("ranges", rows, self._job.key_columns, self._salt)
        entries = (self._window << 32) + place
        words = {HI: ids.hi, LO: ids.lo, KEY_HI: keys.hi, KEY_LO: keys.lo, ENTRY: entries}
        stored = [self._job.start, self._job.end, *self._job.summed_columns]
        return pa.table(
            {
                **{name: pa.array(numbers) for name, numbers in words.items()},
                SIGN: pa.array(np.ones(rows.num_rows, np.int8)),
                **{name: rows[name] for name in dict.fromkeys(stored)},
            }
        )

    def _withdraw(self, rows: pa.Table, asking: Ints) -> None:
        if not len(asking):
            return
        asks = rows.take(pa.array(asking))
        keys = digests("ranges", asks, self._job.key_columns, self._salt)
        found = withdraw(self._levels, self._fresh, keys, asking, self._gone)
        self._counts["ranges.retractions"] += len(asking) - len(found.unknown)
        unknown = np.array(found.unknown, np.int64)
        self._errors += port_rows(RANGE, "unknown_range", asks, unknown)
        self._counts["ranges.unknown_range"] += len(unknown)
        if found.fresh and self._fresh is not None:
            is_left = np.ones(self._fresh.rows.num_rows, np.bool_)
            is_left[list(found.fresh)] = False
            kept = self._fresh.rows.filter(pa.array(is_left)).combine_chunks()
            self._fresh = RangeLevel(self._job, kept) if kept.num_rows else None
        if found.rows is None:
            return
        self._withdrawn = RangeLevel(self._job, found.rows.combine_chunks())
        if not self._job.subtracts:
            self._from = min(found.levels)
        first, last = self._withdrawn.points
        self._tell_late("late_retraction", asks, np.unique(found.asks[self._are_late(first, last)]))

    def make_levels(self) -> None:
        """The levels with the rows of this window: small ones are merged, and closed ones removed."""
        new = [level.rows for level in (self._fresh, self._withdrawn) if level is not None]
        if not new:
            self._levels = [level for level in self._levels if level.last_us > self._gone]
            return
        both = [*self._levels, RangeLevel(self._job, pa.concat_tables(new).combine_chunks())]
        first = min(self._from, merged_from([level.rows.num_rows for level in both], of_ranges.RATIO))
        kept = [level for level in both[:first] if level.last_us > self._gone]
        if first == len(both) - 1:
            self._levels = [*kept, both[-1]]
        else:
            one = merged(self._job, both[first:], self._gone)
            self._levels = kept if one is None else [*kept, one]

    # Events.

    def correct(self) -> None:
        """Answers again the remembered events that a new or a withdrawn range covers."""
        changed = [level for level in (self._fresh, self._withdrawn) if level is not None]
        if self._job.late_ranges != "correct" or not changed or not self._remembered or self._before.clock is None:
            return
        found = []
        for level in changed:
            first, last = level.points
            late = np.flatnonzero(first <= self._before.clock)
            if len(late):
                ids = Ids(numbers(level.rows, HI)[late], numbers(level.rows, LO)[late])
                found.append((ids, first[late], last[late]))
        if not found:
            return
        ids = Ids(np.concatenate([one[0].hi for one in found]), np.concatenate([one[0].lo for one in found]))
        first, last = (np.concatenate([one[at] for one in found]) for at in (1, 2))
        parts = [level.covered(ids, first, last, self._gone) for level in self._remembered]
        rows = pa.concat_tables(parts, promote_options="default")
        if rows.num_rows:
            self._ports["corrections"] = self._answered(rows)
            self._counts["corrections"] += rows.num_rows

    def take_events(self, rows: pa.Table) -> None:
        """Events: bad and expired ones leave, the others are answered."""
        job = self._job
        self._require_events(rows.schema)
        times = as_points(whole(rows[job.time]))
        left = np.ones(rows.num_rows, np.bool_)
        for reason, holds in first_reasons(rows.num_rows, event_reasons(rows, job.on, job.time)):
            left = self._leave(EVENT, reason, rows, left, holds, self._errors)
        if left.any():
            self._clock = max(int(times[left].max()), FIRST if self._clock is None else self._clock)
        left = self._leave(
            EVENT, "expired", rows, left, times <= self._gone if self._before.clock is not None else ~left, self._late
        )
        good = rows if left.all() else rows.filter(pa.array(left)).combine_chunks()
        self._counts["events.answered"] += good.num_rows
        if not good.num_rows:
            return
        ids = digests("events", good, job.on, self._salt)
        with_ids = good.append_column(HI, pa.array(ids.hi)).append_column(LO, pa.array(ids.lo))
        self._ports["output"] = self._answered(with_ids)
        if job.late_ranges == "correct":
            self._remember(with_ids)

    def _answered(self, rows: pa.Table) -> pa.Table:
        """Events with their aggregates and the window."""
        assert self._schema is not None, "no window comes before the types of ranges"
        events = Events(Ids(numbers(rows, HI), numbers(rows, LO)), whole(rows[self._job.time]), {})
        asked = (self._job, self._levels, self._schema, events)
        found = dict(zip((*self._job.known, *self._job.own), (*answers(*asked), *own_answers(*asked)), strict=True))
        shown = rows.drop_columns([HI, LO])
        for name in self._job.aggregates:
            shown = shown.append_column(name, found[name])
        return shown.append_column(WINDOW, pa.array(np.full(rows.num_rows, self._window, np.int64)))

    def _remember(self, rows: pa.Table) -> None:
        """Adds a level of events: small ones are merged, and wholly expired ones removed."""
        after = replace(self._before, clock=self._clock).gone_through(self._job.period)
        both = [*(level for level in self._remembered if level.last_us > after), EventLevel.of(self._job, rows)]
        first = merged_from([level.rows.num_rows for level in both], of_events.RATIO, of_events.MOST_ROWS)
        if first < len(both) - 1:
            one = of_events.merged(self._job, both[first:], after)
            both = both[:first] if one is None else [*both[:first], one]
        self._remembered = both

    # Columns.

    def _require_ranges(self, found: pa.Schema) -> None:
        """The columns of ranges are those of the windows before, or become theirs."""
        job = self._job
        more = () if job.retraction is None else (job.retraction.column,)
        for name in (*job.range_columns, *more):
            if name not in found.names:
                raise UsageError(f"ranges have no column `{name}`; columns are {', '.join(found.names)}")
        schema = pa.schema([found.field(name) for name in job.range_columns]).remove_metadata()
        if self._schema is None:
            require_types(job.parsed, {field.name: field.type for field in schema}, "ranges")
            for name in (job.start, job.end):
                if not pa.types.is_timestamp(schema.field(name).type):
                    raise UsageError(f"`{name}` of ranges is {schema.field(name).type}; cast it to a timestamp")
            if schema.field(job.start).type != schema.field(job.end).type:
                raise UsageError(f"`{job.start}` and `{job.end}` of ranges are of different types; cast one of them")
            self._schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        for field in self._schema:
            if schema.field(field.name).type != field.type:
                raise UsageError(
                    f"`{field.name}` of ranges is {schema.field(field.name).type} now, and was {field.type} in the "
                    "windows before; cast it back, or begin with a new store and new ports"
                )

    def _require_events(self, found: pa.Schema) -> None:
        """The columns of events fit those of ranges, and those of the events that may be corrected."""
        assert self._schema is not None, "no window comes before the types of ranges"
        of_events = {field.name: field.type for field in found}
        pairs = [*((name, name) for name in self._job.on), (self._job.time, self._job.start)]
        for name, of_range in pairs:
            if name not in of_events:
                raise UsageError(f"events have no column `{name}`; columns are {', '.join(of_events)}")
            wanted = self._schema.field(of_range).type
            if of_events[name] != wanted:
                raise UsageError(
                    f"`{name}` of events is {of_events[name]}, `{of_range}` of ranges is {wanted}; cast one"
                )
        require_free_names((*self._job.aggregates, WINDOW, HI, LO), of_events)
        try:
            pa.unify_schemas([*(level.rows.schema for level in self._remembered), found], promote_options="default")
        except pa.ArrowException as error:
            raise UsageError(
                f"events have another type than the events of the windows before, which are remembered: {error}; cast "
                "it back, or begin with a new store and new ports"
            ) from error

    # The end.

    def judged(self) -> JudgedWindow:
        """The window.

        Raises:
            IntegrityError: a row has no outcome, or two.
        """
        for port, rows_of_port in (("late", self._late), ("errors", self._errors)):
            if rows_of_port:
                self._ports[port] = port_table(rows_of_port, self._window)
        self._require_counts()
        state = replace(
            self._before,
            clock=self._clock,
            schema=self._schema,
            ranges=tuple(self._levels),
            events=tuple(self._remembered),
        )
        return JudgedWindow(self._ports, {name: count for name, count in self._counts.items() if count}, state)

    def _require_counts(self) -> None:
        rows = {port: table.num_rows for port, table in self._ports.items()}
        for side in (f"{EVENT}s", f"{RANGE}s"):
            found = sum(count for name, count in self._counts.items() if name.startswith(f"{side}."))
            if found != self._counts[side]:
                raise IntegrityError(f"window {self._window}: {self._counts[side]} {side} were read, {found} judged")
        of_events = self._counts["events.answered"] + sum(one.side == EVENT for one in (*self._late, *self._errors))
        if of_events != self._counts["events"] or rows.get("output", 0) != self._counts["events.answered"]:
            raise IntegrityError(
                f"window {self._window}: {self._counts['events']} events were read, {of_events} are in the ports"
            )
