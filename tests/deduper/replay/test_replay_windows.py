"""Which parts of a plan a window takes: some bytes of records, and enough parts for the cores."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bucket_store.places.open import open_place
from deduper.replay.keys import KeyRange
from deduper.replay.plan import Plan, PlannedSlice
from deduper.replay.source import ReplaySource


def windows_of(sizes: list[int], window_bytes: int, cores: int) -> list[int]:
    """How many parts each window takes."""
    parts = tuple(PlannedSlice(f"{number}", 1, size, 1, 0, number, (0,)) for number, size in enumerate(sizes))
    plan = Plan("", (), parts)
    place = open_place("file:/nowhere")
    twin = cast("Any", _Twin())
    source = ReplaySource(
        "in", lambda: (plan, "p", 0), place, cast("Any", None), KeyRange(), {}, window_bytes, twin, cores
    )
    source.begin(drain=True)
    taken = []
    while (batch := source.next_batch()) is not None:
        taken.append(len(batch.parts))
        source.judged(batch)
    return taken


class _Twin:
    """Of a comparison: its slices stay."""

    first = None


@pytest.mark.parametrize(
    ("sizes", "cores", "expected"),
    [
        ([30, 30, 30, 30], 1, [3, 1]),  # up to 100 bytes
        ([300, 300], 1, [1, 1]),  # at least one part
        ([90, 90, 90], 1, [1, 1, 1]),
        ([90, 90, 90, 90], 2, [2, 2]),  # a part for each core
        ([90, 90, 90, 90, 90], 8, [4, 1]),  # of four times as many bytes at most
        ([300, 300], 2, [1, 1]),
        ([30] * 7, 2, [3, 3, 1]),  # cores that have a part need no more bytes
    ],
)
def test_a_window_takes_a_part_for_each_core(sizes: list[int], cores: int, expected: list[int]) -> None:
    """A day's file is one part: with one a window all cores but one would have nothing to read."""
    assert windows_of(sizes, 100, cores) == expected
