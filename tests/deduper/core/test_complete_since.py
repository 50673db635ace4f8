"""*Complete since*: when a verdict `unique` becomes final."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deduper.core.complete_since import CompleteSince


def test_it_covers_the_period_once_the_expiry_point_is_there() -> None:
    """Both sides of the edge, and the edge: a key at the expiry point is not remembered."""
    mark = CompleteSince(100, 10)
    assert [mark.covers(latest, 10) for latest in (None, 109, 110, 111)] == [False, False, True, True]
    assert CompleteSince(None, 10).covers(None, 10)
    assert CompleteSince(None, None).covers(None, None)
    assert not CompleteSince(100, None).covers(1000, None)


def test_a_longer_period_asks_for_keys_that_have_expired() -> None:
    """Period 10 until the latest point was 200: keys up to 190 are gone, so 50 is covered from 240 on."""
    mark = CompleteSince(100, 10)
    assert mark.covers(200, 10)
    assert not mark.covers(200, 50)
    longer = mark.after(200, 50)
    assert longer == CompleteSince(190, 50)
    assert [longer.covers(latest, 50) for latest in (239, 240)] == [False, True]
    assert CompleteSince(None, 10).after(200, 50) == longer
    assert mark.after(200, 5) == CompleteSince(100, 5)


def test_another_version_is_no_mark() -> None:
    """And neither is a value that is none; a mark comes back as it was."""
    for mark in (CompleteSince(None, None), CompleteSince(7, 3), CompleteSince(0.5, 1.0)):
        assert CompleteSince.from_wire(mark.to_wire()) == mark
    assert [CompleteSince.from_wire(wire) for wire in (None, [2, 7, 3], [1, 7], 7, {})] == [None] * 5


@given(steps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=20))
def test_it_never_says_final_while_a_lost_key_could_be_remembered(steps: list[tuple[int, int]]) -> None:
    """Against a model that keeps the set of points of which the store lacks keys; `steps`: (clock moves by, period)."""
    latest, mark, lacking = 100, CompleteSince(100, steps[0][1]), set(range(-200, 100))
    for moves, period in steps:
        if mark.covers(latest, period):
            assert not any(latest - period < point for point in lacking)
        assert mark.period is not None
        if period > mark.period:
            # From here on `period` counts; what the shorter one let expire is lacking.
            lacking |= set(range(-200, int(latest - mark.period) + 1)) - {int(latest - mark.period)}
        mark = mark.after(latest, period)
        latest += moves
