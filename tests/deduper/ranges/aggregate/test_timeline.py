"""Times in order, and places on them: against a sort by two words, and a plain binary search."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from deduper.ranges.aggregate.cells import Timeline, offsets_of
from deduper.ranges.aggregate.sorting import sorted_in_groups

SEED = 20_261_126
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
DRAW = np.random.default_rng(SEED)
TIMES: dict[str, NDArray[np.int64]] = {
    "even": DRAW.integers(0, 10**6, 5000),
    "few values": DRAW.integers(0, 7, 5000),
    "one value": np.full(700, 3),
    "all of int64": DRAW.integers(LEAST, MOST, 5000, endpoint=True),
    "far tails": np.concatenate((np.full(40, LEAST), DRAW.integers(0, 1000, 5000), np.full(40, MOST))),
    "dense in one place": np.concatenate((DRAW.integers(0, 50, 4000), DRAW.integers(0, 10**15, 1000))),
    "powers": np.int64(1) << DRAW.integers(0, 63, 3000),
    "one": np.array([5]),
    "two": np.array([LEAST, MOST]),
    "none": np.empty(0, np.int64),
    "as many as a tail begins with": np.arange(64),
    "one less": np.arange(63),
}


@pytest.mark.parametrize("names", [*((name,) for name in TIMES), tuple(TIMES)], ids=lambda names: names[-1])
def test_a_place_is_behind_all_times_up_to_the_point(names: tuple[str, ...]) -> None:
    """For each time, both its neighbours, random points and the ends of int64; in groups of their own."""
    columns = [np.sort(TIMES[name].astype(np.int64)) for name in names]
    sizes = [len(column) for column in columns]
    offsets = offsets_of(np.repeat(np.arange(len(names)), sizes), len(names))
    timeline = Timeline.of(offsets, np.concatenate(columns))
    for number, column in enumerate(columns):
        near = [column, column - (column > LEAST), column + (column < MOST)]
        points = np.concatenate((*near, DRAW.integers(LEAST, MOST, 200), [LEAST, -1, 0, 1, MOST])).astype(np.int64)
        found = timeline.place(np.full(len(points), number), points)
        assert np.array_equal(found, offsets[number] + np.searchsorted(column, points, side="right")), SEED


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(64))
@pytest.mark.parametrize(("groups", "rows"), [(1, 300), (5, 300), (50, 300), (2, 20_000)])
def test_rows_are_in_the_order_of_group_and_time(groups: int, rows: int, bits: int) -> None:
    """Spread over any width of times, some of them equal in all bits but the last ones; equal ones in their order."""
    draw = np.random.default_rng([SEED, bits, groups])
    half = (1 << bits) >> 1
    spread = draw.integers(-half, max(half, 1), rows)
    point = np.concatenate((spread, spread[:100] ^ draw.integers(0, 16, 100), spread[:9], [-half, max(half, 1) - 1]))
    group = draw.integers(0, groups, len(point))
    times, order = sorted_in_groups(group, offsets_of(group, groups), point, np.arange(len(point)))
    assert np.array_equal(order, np.lexsort((point, group))), SEED
    assert np.array_equal(times, point[order]), SEED


def test_times_far_from_the_others_and_groups_without_rows_are_sorted_too() -> None:
    """Both ends of int64, as of ranges that are open for ever, among times of a day, and of every list above."""
    columns = [column.astype(np.int64) for column in TIMES.values()]
    group = np.repeat(np.arange(len(columns)) * 2, [len(column) for column in columns])
    point = np.concatenate(columns)
    mixed = DRAW.permutation(len(point))
    group, point = group[mixed], point[mixed]
    times, order = sorted_in_groups(group, offsets_of(group, 2 * len(columns)), point, np.arange(len(point)))
    assert np.array_equal(order, np.lexsort((point, group))), SEED
    assert np.array_equal(times, point[order]), SEED
