"""Both indexes against a comparison of every pair, over kinds of ends, types of times and values, and merges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import njit

from deduper.ranges.aggregate import range_index
from deduper.ranges.aggregate.aggregates import AnswerTooLargeError, Own, parse_aggregate
from deduper.ranges.aggregate.cells import Ids
from deduper.ranges.aggregate.event_index import EventIndex
from deduper.ranges.aggregate.points import ENDS
from deduper.ranges.aggregate.range_index import Events, RangeIndex, Ranges
from tests.deduper.ranges.aggregate import oracle
from tests.tiers import examples

_LEAST, _MOST = -(2**63), 2**63 - 1
_EPOCH = datetime(2024, 3, 31, tzinfo=UTC)
TIMES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-3, 6) | st.sampled_from([_LEAST, _LEAST + 1, _MOST - 1, _MOST])),
    "doubles": (pa.float64(), st.sampled_from([-math.inf, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1e308, math.inf])),
    "dates": (pa.date32(), st.integers(-2, 5).map(lambda days: date(1970, 1, 1) + timedelta(days))),
    "instants": (pa.timestamp("us", "UTC"), st.integers(-2, 5).map(lambda at: _EPOCH + timedelta(microseconds=at))),
}
_INTEGERS = st.integers(-5, 5) | st.sampled_from([_LEAST, _MOST, 2**32, -(2**33) - 1])
_DECIMALS = st.decimals(-(10**19), 10**19, places=4) | st.sampled_from([Decimal("-0.0001"), Decimal(10) ** 23])
VALUES: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": ("int", pa.int64(), _INTEGERS),
    "small integers": ("int", pa.int16(), st.integers(-300, 300)),
    "decimals": ("decimal", pa.decimal128(28, 4), _DECIMALS),
    "narrow decimals": ("decimal", pa.decimal128(6, 2), st.decimals(-99, 99, places=2)),
    "doubles": ("double", pa.float64(), st.floats() | st.sampled_from([1e308, -1e308, 5e-324, 1e16, 1.0, 0.1])),
    "near doubles": ("double", pa.float64(), st.sampled_from([0.1, 0.2, -0.3, 1e5, 7.25])),
    "floats": ("double", pa.float32(), st.floats(width=32)),
    "texts": ("other", pa.string(), st.sampled_from(["", "a", "b", "ä", "ab"])),
    "instants": ("other", pa.timestamp("us", "UTC"), TIMES["instants"][1]),
    "booleans": ("other", pa.bool_(), st.booleans()),
}
ORDERED = (
    "count",
    "count(value)",
    "min(value)",
    "max(value)",
    "last(value)",
    "top_k(value, 2)",
    "list(value)",
    "set(value)",
)
SUMMED = ("sum(value)", "mean(value)", "variance(value)")


def rows(
    data: st.DataObject, times: st.SearchStrategy[Any], values: st.SearchStrategy[Any]
) -> tuple[list[Any], list[Any]]:
    """Events, and ranges that do not end before they start."""
    ids, maybe = st.integers(1, 3), st.none() | values
    events = data.draw(st.lists(st.fixed_dictionaries({"id": ids, "time": times, "value": maybe}), max_size=12))
    ends = st.none() | times
    drawn = data.draw(
        st.lists(st.fixed_dictionaries({"id": ids, "start": ends, "end": ends, "value": maybe}), max_size=12)
    )
    ranges = [row for row in drawn if row["start"] is None or row["end"] is None or row["start"] <= row["end"]]
    return events, ranges


def ids_of(found: Sequence[oracle.Row]) -> Ids:
    # Words that collide in their low halves: different ids share a slot.
    return Ids(
        np.array([row["id"] << 40 for row in found], np.int64), np.array([-row["id"] for row in found], np.int64)
    )


def as_events(events: Sequence[oracle.Row], time: pa.DataType, value: pa.DataType) -> Events:
    columns = {"value": pa.array([row["value"] for row in events], value)}
    return Events(ids_of(events), pa.array([row["time"] for row in events], time), columns)


def as_ranges(ranges: Sequence[oracle.Row], time: pa.DataType, value: pa.DataType) -> Ranges:
    start, end = (pa.array([row[name] for row in ranges], time) for name in ("start", "end"))
    return Ranges(ids_of(ranges), start, end, {"value": pa.array([row["value"] for row in ranges], value)})


def found_by(index: RangeIndex | EventIndex, asked: Any) -> list[list[Any]]:
    """The answers of an index, a list for each aggregate."""
    parts = [columns for _, columns in index.answers(asked)]
    return [[value for part in column for value in part.to_pylist()] for column in zip(*parts, strict=True)]


def same(found: Any, expected: Any) -> bool:
    """Whether two answers are equal, NaN with NaN too, but for the sign of a zero that is a sum."""
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return (math.isnan(found) and math.isnan(expected)) or found == expected
    return type(found) is type(expected) and bool(found == expected)


@pytest.mark.slow
@pytest.mark.parametrize("values", VALUES)
@settings(deadline=None, max_examples=examples(25), derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_aggregate_is_that_of_all_pairs(values: str, data: st.DataObject) -> None:
    """For events and for ranges, whatever the ends, times and values, with ties, nulls and ends open for ever."""
    (time, times), (kind, value, drawn) = TIMES[data.draw(st.sampled_from(sorted(TIMES)))], VALUES[values]
    ends = data.draw(st.sampled_from(ENDS))
    events, ranges = rows(data, times, drawn)
    texts = ORDERED + (SUMMED if kind != "other" else ())
    aggregates = {text: parse_aggregate(text) for text in texts}
    as_asked = as_events(events, time, value), as_ranges(ranges, time, value)
    for of, index, asked in (
        (oracle.of_events, RangeIndex(as_asked[1], ends, aggregates, {}), as_asked[0]),
        (oracle.of_ranges, EventIndex(as_asked[0], ends, aggregates, {}), as_asked[1]),
    ):
        expected = {text: of(events, ranges, ends, text, kind) for text in texts}
        if too_large := [one for one in expected.get("sum(value)", []) if kind == "int" and not _fits(one)]:
            with pytest.raises(AnswerTooLargeError, match=r"sum\(value\): a sum is -?\d+, which int64 cannot hold"):
                found_by(index, asked)
            assert str(too_large[0])
            continue
        found = found_by(index, asked) or [[] for _ in texts]
        for text, answers in zip(texts, found, strict=True):
            assert same(answers, expected[text]), (text, answers, expected[text])


def _fits(total: int | None) -> bool:
    return total is None or _LEAST <= total <= _MOST


def _alone(values: pa.Array, spans: Sequence[tuple[int, int | None]], **aggregates: str) -> tuple[RangeIndex, Events]:
    """An index of ranges of one id, and an event at each of the times 0 to 9."""
    ids = Ids(np.ones(len(spans), np.int64), np.ones(len(spans), np.int64))
    start, end = (pa.array([span[at] for span in spans], pa.int64()) for at in (0, 1))
    index = RangeIndex(
        Ranges(ids, start, end, {"v": values}),
        "[]",
        {name: parse_aggregate(text) for name, text in aggregates.items()},
        {},
    )
    return index, Events(Ids(np.ones(10, np.int64), np.ones(10, np.int64)), pa.array(range(10)), {})


def test_a_sum_beyond_its_type_names_itself_and_one_that_passes_through_is_exact() -> None:
    """At 2 the sum is 2^64 - 2 + 1; an event that does not see it has its exact answer."""
    values = pa.array([2**63 - 1, 2**63 - 1, 1 - 2**63, 5])
    index, events = _alone(values, [(0, None), (2, 5), (2, None), (7, 8)], total="sum(v)")
    assert found_by(index, events)[0] == [2**63 - 1] * 6 + [0, 5, 5, 0]
    index, events = _alone(values, [(0, None), (2, 5), (9, None), (9, 9)], total="sum(v)")
    with pytest.raises(
        AnswerTooLargeError, match="total: a sum is 18446744073709551614, which int64 cannot hold; cast"
    ):
        found_by(index, events)
    early = Events(Ids(events.ids.hi[:1], events.ids.lo[:1]), events.time[:1], {})
    assert found_by(index, early) == [[2**63 - 1]]


def test_floats_leave_no_trace_when_their_range_is_over() -> None:
    """Neither a huge number nor NaN nor an infinity; a variance that no double holds is infinite."""
    values = pa.array([1e300, math.nan, -math.inf, 0.1])
    index, events = _alone(values, [(1, 1), (3, 3), (5, 5), (0, None)], total="sum(v)")
    answers = found_by(index, events)[0]
    assert [answers[at] for at in (0, 2, 4, 6, 9)] == [0.1] * 5
    assert (answers[1], math.isnan(answers[3]), answers[5]) == (1e300, True, -math.inf)
    index, events = _alone(pa.array([1e308, -1e308]), [(0, 9), (0, 8)], spread="variance(v)")
    assert found_by(index, events)[0] == [math.inf] * 9 + [None]


def test_long_lists_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds about as many values as the limit says, and a single event's list is whole."""
    monkeypatch.setattr(range_index, "MOST_LISTED", 4)
    index, events = _alone(pa.array([1, 2, 3, 4]), [(0, 3), (1, 3), (1, 1), (9, 9)], all="list(v)", n="count")
    parts = list(index.answers(events))
    assert [(rows.start, rows.stop) for rows, _ in parts] == [(0, 2), (2, 9), (9, 10)]
    assert found_by(index, events)[0] == [[1], [1, 3, 2], [1, 2], [1, 2], [], [], [], [], [], [4]]


def _add_in_place(state: Any, value: Any) -> Any:
    state[0] += value
    return state


def _remove_in_place(state: Any, value: Any) -> Any:
    state[0] -= value
    return state


def _twice(state: Any) -> Any:
    return state[0] * 2


@pytest.mark.slow
def test_one_s_own_aggregate_compiled_and_plain_is_the_sum() -> None:
    """Over events and over ranges; nulls are left out. A state that is changed in place is one range's alone."""
    add, remove, finish = (lambda s, v: s + v), (lambda s, v: s - v), (lambda s: s * 2)
    ids = Ids(np.ones(4, np.int64), np.ones(4, np.int64))
    values = {"v": pa.array([1, None, 4, 2])}
    for own in (
        Own("v", 0, add, remove, finish, "bigint"),
        Own("v", 0, njit(add), njit(remove), njit(finish), "bigint"),
        Own("v", lambda: np.zeros(1, np.int64), njit(_add_in_place), njit(_remove_in_place), njit(_twice), "bigint"),
    ):
        ranges = Ranges(ids, pa.array([0, 0, 2, 3]), pa.array([4, 9, 3, None], pa.int64()), values)
        events = Events(ids, pa.array([0, 2, 3, 8]), values)
        kinds = {"own": own}, {"own": pa.int64()}
        assert found_by(RangeIndex(ranges, "[]", *kinds), events) == [[2, 10, 14, 4]]
        assert found_by(EventIndex(events, "[]", *kinds), ranges) == [[10, 14, 8, 12]]
