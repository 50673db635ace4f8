"""PURE. Source partitions that only the rows name, as reading tasks find them; numbered once more for the window.

A reading task numbers what its rows name from 0 on, and its places have these numbers. The window has each name once,
whatever tasks have found it, so its judges and writers replace the numbers in the places (`in_window`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from deduper.core.clock import POSITION_BITS
from deduper.core.kernels import Int64s
from deduper.errors import UsageError

MOST_PARTITIONS: Final = 1 << 20
_POSITION: Final = (1 << POSITION_BITS) - 1


class FoundPartition(NamedTuple):
    """A source partition that a reading task has found: its name, and the end of its positions.

    The name is the number of the DataFrame's partition for rows that name none.
    """

    name: str | int
    end: int


@dataclass(frozen=True, slots=True)
class FoundPartitions:
    """The source partitions of a window: their ends by name, in the order of their ordinals.

    `ordinals` has for each reading task those of its own partitions; it is empty if no task has found any.
    """

    ends: Mapping[str | int, int]
    ordinals: tuple[Int64s, ...]

    @classmethod
    def of(cls, tasks: Sequence[Sequence[FoundPartition]]) -> FoundPartitions:
        """Those of the reading tasks, in source order.

        Raises:
            UsageError: they are too many.
        """
        ends: dict[str | int, int] = {}
        numbers: dict[str | int, int] = {}
        ordinals = []
        for found in tasks:
            for name, end in found:
                ends[name] = max(ends.get(name, 0), end)
            ordinals.append(np.array([numbers.setdefault(one.name, len(numbers)) for one in found], np.int64))
        require_few(len(ends))
        return cls(ends, tuple(ordinals) if ends else ())


def require_few(sources: int) -> None:
    """Check the number of source partitions.

    Raises:
        UsageError: a window has no more than `MOST_PARTITIONS`.
    """
    if sources > MOST_PARTITIONS:
        raise UsageError(
            f"place: its columns name more than {MOST_PARTITIONS} sources in one window. All but the last of them say "
            "where rows come from, as topic and partition do: write none that differs from row to row"
        )


def in_window(places: Int64s, ordinals: Int64s) -> Int64s:
    """Places with the window's ordinals instead of a reading task's."""
    placed: Int64s = ordinals[places >> POSITION_BITS] << POSITION_BITS | places & _POSITION
    return placed
