"""Times in order, and places on them: against a sort by two words, and a plain binary search."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from deduper.ranges.aggregate.cells import Timeline, offsets_of, sorted_by

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


@pytest.mark.parametrize("bits", range(63))
@pytest.mark.parametrize("groups", [1, 5])
def test_rows_are_in_the_order_of_group_and_time(groups: int, bits: int) -> None:
    """Spread over any width of times, and some of them equal in all bits but the last ones."""
    draw = np.random.default_rng([SEED, bits, groups])
    spread = draw.integers(0, 1 << bits, 300, endpoint=True)
    point = np.concatenate((spread, spread[:100] ^ draw.integers(0, 16, 100), [0, 1 << bits])) - (1 << bits >> 1)
    group = draw.integers(0, groups, len(point))
    order = sorted_by(group, point)
    expected = np.lexsort((point, group))
    assert np.array_equal(np.sort(order), np.arange(len(point))), SEED
    assert np.array_equal(group[order], group[expected]), SEED
    assert np.array_equal(point[order], point[expected]), SEED
