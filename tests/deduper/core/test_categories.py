"""Which categories are live, from which tuple on."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from deduper.core.categories import CategoryState, PlaceIntervals, arrange
from deduper.core.verdict import INT64_MAX, Admission


@dataclass(frozen=True)
class Interval:
    """A value holds `place` for source orders `begin` <= order < `end`; None: to the end of the batch and beyond."""

    begin: int
    end: int | None
    place: int


def placed(
    arrivals: str, state: CategoryState | None = None, *, live: int = 2, remember: int = 10
) -> tuple[CategoryState, list[str], PlaceIntervals]:
    """The batch is a text: a letter a tuple, its position the source order."""
    values = sorted(set(arrivals))
    ids = np.array([values.index(value) for value in arrivals], np.int32)
    first = np.array([arrivals.index(value) for value in values], np.int64)
    orders = np.arange(len(arrivals))
    after, places = arrange(state or CategoryState(), values, first, lambda: (ids, orders), live, remember)
    return after, values, places


def arranged(
    arrivals: str, state: CategoryState | None = None, *, live: int = 2, remember: int = 10
) -> tuple[CategoryState, dict[str, list[Interval]]]:
    """The state after a batch, and the intervals of its values."""
    after, values, places = placed(arrivals, state, live=live, remember=remember)
    columns = (places.begin.tolist(), places.end.tolist(), places.place.tolist())
    flat = [
        Interval(begin, None if end == INT64_MAX else end, place) for begin, end, place in zip(*columns, strict=True)
    ]
    starts = places.starts.tolist()
    return after, {value: flat[starts[number] : starts[number + 1]] for number, value in enumerate(values)}


def test_the_newest_are_live() -> None:
    """Two live: the third value drops the first one, from its own tuple on; seeing a value again renews nothing."""
    state, intervals = arranged("abacab")
    assert state == CategoryState(3, (("b", 1), ("c", 2)), ("a",))
    assert intervals == {"a": [Interval(0, 3, 0)], "b": [Interval(1, None, 1)], "c": [Interval(3, None, 2)]}


def test_over_windows() -> None:
    """The state of one batch is the beginning of the next; committed values are live from its first tuple."""
    state, _ = arranged("ab")
    state, intervals = arranged("acb", state)
    assert state == CategoryState(3, (("b", 1), ("c", 2)), ("a",))
    assert intervals == {"a": [Interval(0, 1, 0)], "b": [Interval(0, None, 1)], "c": [Interval(1, None, 2)]}
    state, intervals = arranged("a", state)
    assert intervals == {"a": []}
    assert state.dropped == ("a",)


def test_a_forgotten_value_is_new() -> None:
    """One dropped value remembered: a is forgotten when b is dropped, and takes a new place with its next tuple."""
    state, intervals = arranged("abacada", live=1, remember=1)
    # a takes place 0; b drops it; it is remembered (tuple 2); c drops b, a is forgotten, and is new at tuple 4.
    assert intervals["a"] == [Interval(0, 1, 0), Interval(4, 5, 3)]
    assert intervals["b"] == [Interval(1, 3, 1)]
    assert state == CategoryState(5, (("d", 4),), ("a",))


@pytest.mark.parametrize(("batch", "remember", "dropped"), [("b", 1, ("a",)), ("bc", 1, ("b",)), ("cd", 2, ("b", "c"))])
def test_the_first_tuples_are_enough_while_no_value_of_the_batch_is_forgotten(
    batch: str, remember: int, dropped: tuple[str, ...]
) -> None:
    """Nothing of it can take a second place then, so its other tuples are not asked for."""
    state, _ = arranged("ab", live=1, remember=1)
    assert state == CategoryState(2, (("b", 1),), ("a",))

    def arrivals() -> Any:
        pytest.fail("is not needed")

    state, _ = arrange(state, list(batch), np.arange(len(batch)), arrivals, 1, remember)
    assert state.dropped == dropped


def test_nothing_dropped_is_remembered() -> None:
    """remember_dropped 0: every value that is not live is new, again and again."""
    state, intervals = arranged("abab", live=1, remember=0)
    assert intervals == {"a": [Interval(0, 1, 0), Interval(2, 3, 2)], "b": [Interval(1, 2, 1), Interval(3, None, 3)]}
    assert state == CategoryState(4, (("b", 3),), ())


def test_fewer_live_than_before() -> None:
    """A lower live_categories drops the oldest before the first tuple."""
    state, _ = arranged("abc", live=3)
    _, intervals = arranged("abc", state, live=1)
    state, _, held = placed("abc", state, live=1)
    assert state == CategoryState(3, (("c", 2),), ("a", "b"))
    assert intervals["c"] == [Interval(0, None, 2)]
    places, admission = held.places(np.arange(3), np.arange(3), np.zeros(3, np.uint8))
    assert places.tolist() == [-1, -1, 2]
    assert admission.tolist() == [Admission.CATEGORY_DROPPED, Admission.CATEGORY_DROPPED, Admission.ADMITTED]


def test_rows_that_are_not_admitted() -> None:
    """They keep their admission and have no place; their category id is not read."""
    places, admission = PlaceIntervals(np.array([0, 1]), np.array([0]), np.array([INT64_MAX]), np.array([7])).places(
        np.array([0, 99]), np.arange(2), np.array([Admission.ADMITTED, Admission.NULL_EXPIRY], np.uint8)
    )
    assert places.tolist() == [7, -1]
    assert admission.tolist() == [Admission.ADMITTED, Admission.NULL_EXPIRY]


def test_unknown_ids() -> None:
    """An admitted row of no known category is a bug upstream, never a read beyond the array."""
    places = PlaceIntervals(np.array([0, 1]), np.array([0]), np.array([INT64_MAX]), np.array([0]))
    with pytest.raises(IndexError, match="category ids 0 to 1, of 1"):
        places.places(np.array([0, 1]), np.arange(2), np.zeros(2, np.uint8))


@pytest.mark.parametrize(("live", "remember"), [(0, 1), (1, -1)])
def test_impossible_rules(live: int, remember: int) -> None:
    """At least one value must be live, and a count is not negative."""
    with pytest.raises(ValueError, match=r"at least 1|negative"):
        arrange(CategoryState(), [], np.empty(0, np.int64), lambda: pytest.fail("is not asked"), live, remember)


def test_wire() -> None:
    """The state survives the commit record."""
    state, _ = arranged("abcabd")
    assert CategoryState.from_wire(json.loads(json.dumps(state.to_wire()))) == state
    assert state.first_live_place == min(place for _, place in state.live)
    assert CategoryState().first_live_place == 0


def test_against_a_list() -> None:
    """Random streams, cut into batches anywhere, against the rule applied tuple by tuple."""
    for seed in range(300):
        draw = random.Random(seed)
        live_count, remember = draw.randint(1, 4), draw.choice((0, 1, 2, 50))
        state = CategoryState()
        live: list[tuple[str, int]] = []
        dropped: list[str] = []
        next_place = 0
        for _ in range(3):
            batch = "".join(draw.choice("abcdefgh"[: draw.randint(1, 8)]) for _ in range(draw.choice((0, 5, 60))))
            expected = []
            for value in batch:
                if value not in dict(live) and value not in dropped:
                    live.append((value, next_place))
                    next_place += 1
                    if len(live) > live_count:
                        dropped.append(live.pop(0)[0])
                        dropped = dropped[max(0, len(dropped) - remember) :]
                expected.append(dict(live).get(value, -1))
            state, values, held = placed(batch, state, live=live_count, remember=remember)
            ids = np.array([values.index(value) for value in batch], np.int32)
            places, _ = held.places(ids, np.arange(len(batch)), np.zeros(len(batch), np.uint8))
            assert places.tolist() == expected, seed
            assert state == CategoryState(next_place, tuple(live), tuple(dropped)), seed
