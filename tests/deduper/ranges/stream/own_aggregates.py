"""Aggregates of one's own that tests name in settings: a state changed in place, one with a list, and mistakes."""

from __future__ import annotations

from collections import Counter

from deduper.ranges.aggregate.aggregates import Own


def _add(state: dict[float, int], value: float) -> dict[float, int]:
    state[value] = state.get(value, 0) + 1
    return state


def _remove(state: dict[float, int], value: float) -> dict[float, int]:
    state[value] -= 1
    if not state[value]:
        del state[value]
    return state


different = Own("weight", dict, _add, _remove, len, "int")
sizes = Own("points", Counter, _add, _remove, lambda state: sorted(state.values()), "array<int>")
text = Own("campaign", "", lambda state, _: state, lambda state, _: state, lambda state: state, "bigint")
nested = Own("points", dict, _add, _remove, len, "array<struct<a:int>>")
mistyped = Own("points", dict, _add, _remove, len, "int64")
