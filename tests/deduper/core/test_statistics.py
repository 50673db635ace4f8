"""Lateness, duplicate distance and the age of first copies, in buckets of seconds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.core import kernels, statistics
from deduper.core.statistics import BOUNDS_S, NO_SPANS, SpanCounts, Statistics
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission

SECOND_US = 1_000_000


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def at(bound_s: float) -> int:
    """The bucket that ends at these seconds."""
    return BOUNDS_S.index(bound_s)


def counts(spans: SpanCounts) -> dict[int, int]:
    """Buckets that have something."""
    return {slot: count for slot, count in enumerate(spans.counts) if count}


@pytest.mark.parametrize("bound_s", BOUNDS_S)
def test_a_bound_belongs_to_the_bucket_that_it_ends(bound_s: int) -> None:
    """A µs more is of the next one."""
    spans = statistics.lateness(
        ints(0, -1), ints(bound_s * SECOND_US, bound_s * SECOND_US), np.ones(2, np.bool_), np.zeros(2, np.uint8)
    )
    assert counts(spans) == {at(bound_s): 1, at(bound_s) + 1: 1}
    assert counts(SpanCounts.of([(bound_s * 1e6, 1), (bound_s * 1e6 + 1, 1)])) == counts(spans)


def test_lateness_is_measured_from_the_clock_before_a_tuple() -> None:
    """0 for one that moves the clock, and for the first of all; expired ones count, errors do not."""
    admission = np.array([0, 0, 0, Admission.OLDER_THAN_PERIOD, Admission.JUMP_TOO_FAR, Admission.NULL_KEY], np.uint8)
    expiry = ints(100, 90, 50, 10, 900, 50) * SECOND_US
    latest = ints(0, 100, 100, 100, 100, 100) * SECOND_US
    has_latest = np.array([False, *[True] * 5])
    spans = statistics.lateness(expiry, latest, has_latest, admission)
    assert counts(spans) == {at(0): 1, at(15): 1, at(60): 1, at(300): 1}
    assert spans.total_s == 10 + 50 + 90


def test_lateness_against_one_clock_for_all() -> None:
    """That of `clock: batch`; while it is unset nothing is late."""
    expiry, admitted = ints(40, 99, 120) * SECOND_US, np.zeros(3, np.uint8)
    assert counts(statistics.lateness(expiry, 100 * SECOND_US, None, admitted)) == {at(60): 1, at(1): 1, at(0): 1}
    assert counts(statistics.lateness(expiry, None, None, admitted)) == {at(0): 3}


def test_the_ends_of_the_domain_are_far_apart() -> None:
    """Their difference is no int64."""
    far = statistics.lateness(ints(INT64_MIN), ints(INT64_MAX), np.ones(1, np.bool_), np.zeros(1, np.uint8))
    assert counts(far) == {len(BOUNDS_S): 1}
    far = statistics.distances(ints(-1, 0), ints(INT64_MIN, INT64_MAX), ints(), keeps_expiry=True)
    assert counts(far) == {len(BOUNDS_S): 1}


def test_distances_either_way_from_the_first_copy() -> None:
    """In this window, and in earlier ones if their expiry keys are kept; unique rows have none."""
    first_copy = ints(-1, 0, -3, 0)
    expiry, match = ints(100, 130, 100, 98) * SECOND_US, ints(0, 500) * SECOND_US
    both = statistics.distances(first_copy, expiry, match, keeps_expiry=True)
    assert counts(both) == {at(60): 1, at(5): 1, at(900): 1}
    assert both.total_s == 30 + 2 + 400
    assert counts(statistics.distances(first_copy, expiry, match, keeps_expiry=False)) == {at(60): 1, at(5): 1}


def test_a_counting_that_fails_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches no task."""
    monkeypatch.setattr(kernels, "count_lateness", lambda *_: 1 // 0)
    assert statistics.lateness(ints(0), 0, None, np.zeros(1, np.uint8)) == NO_SPANS


@given(st.lists(st.tuples(st.floats(0, 1e15), st.integers(0, 9)), max_size=20))
def test_spans_add_up(spans: list[tuple[float, int]]) -> None:
    """Parts give the whole, and a difference the part; the last cumulative count has all."""
    half = len(spans) // 2
    first, second = SpanCounts.of(spans[:half]), SpanCounts.of(spans[half:])
    whole = first + second
    assert whole.counts == SpanCounts.of(spans).counts
    assert (whole - first).counts == second.counts
    assert whole.cumulative()[-1] == (float("inf"), sum(often for _, often in spans))


def test_quantiles_are_ends_of_buckets() -> None:
    """None of nothing."""
    assert NO_SPANS.quantile_s(0.5) is None
    spans = SpanCounts.of([(0, 50), (20e6, 49), (90e6, 1)])
    assert [spans.quantile_s(share) for share in (0.5, 0.51, 0.99, 1.0)] == [0, 60, 60, 300]


def grown(windows: int, **given: Any) -> Statistics:
    """Windows a second apart, the last of them with some duplicates."""
    made = Statistics()
    for window in range(windows):
        last = given if window == windows - 1 else {}
        every = {"lateness": NO_SPANS, "distance": NO_SPANS, "duplicates": {}, "exact_us": {}, "first_live": 0}
        made = made.with_window(window, window * SECOND_US, **{**every, **last})
    return made


def test_the_age_of_first_copies() -> None:
    """0 in the same window; exact where a window's clock is known, else between the marks."""
    age = grown(101, duplicates={100: 5, 95: 1, 40: 2}, exact_us={40: 0}).age
    assert counts(age) == {at(0): 5, at(5): 1, at(300): 2}


@pytest.mark.parametrize("windows", [1, 32, 33, 1000])
def test_marks_are_few_and_even(windows: int) -> None:
    """The oldest and the newest window are among them, and no gap is more than a few times the mean."""
    marks = grown(windows).marks
    assert len(marks) == min(windows, 32)
    assert (marks[0][0], marks[-1][0]) == (0, windows - 1)
    gaps = [after[0] - before[0] for before, after in pairwise(marks)]
    assert max(gaps, default=0) <= max(1, 4 * windows // 32)


def test_marks_of_dead_windows_leave() -> None:
    """No duplicate has its first copy there."""
    assert [window for window, _ in grown(10, first_live=7).marks] == [7, 8, 9]


def test_the_wire_form() -> None:
    """Comes back whole, and as lists; an unknown or damaged one counts as none."""
    whole = grown(3, lateness=SpanCounts.of([(2e6, 3)]), distance=SpanCounts.of([(0, 1)]), duplicates={1: 2})
    wire = whole.to_wire()
    assert Statistics.from_wire(wire) == whole
    assert whole.since(grown(2)).lateness == SpanCounts.of([(2e6, 3)])
    for bad in (None, [], [2, *wire[1:]], wire[:4], [1, [[1], 0.0], *wire[2:]], [1, "x", *wire[2:]]):
        assert Statistics.from_wire(bad) == Statistics()
