"""Which categories are live at every point of a window, found between its reading and its judging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deduper import spool
from deduper.categories import CategoryState, PlaceIntervals, arrange
from deduper.config import CategoryExpiry
from deduper.read_task import ReadReceipt
from deduper.verdict import Fate


@dataclass(frozen=True, slots=True)
class Categories:
    """The live categories after the window, their places in it, and the window's id of each of a reading task's ids."""

    after: CategoryState
    places: PlaceIntervals
    ids: tuple[tuple[int, ...], ...]


def arrange_categories(
    directory: str, readers: Sequence[ReadReceipt], shards: int, expiry: CategoryExpiry, state: CategoryState
) -> Categories:
    """The categories of a window whose records were read: a shard sees only a slice of them and cannot know."""
    firsts: dict[str, int] = {}
    for reader in readers:
        for value, order in reader.first_arrivals.items():
            firsts[value] = min(order, firsts.get(value, order))

    def next_arrival(value: str, from_order: int) -> int | None:
        found = [
            first
            for reader in readers
            if value in reader.first_arrivals
            for first in _arrivals(directory, reader, shards, value, from_order)
        ]
        return min(found, default=None)

    after, intervals = arrange(state, firsts, next_arrival, expiry.live_categories, expiry.remember_dropped)
    values = sorted(firsts)
    number = {value: at for at, value in enumerate(values)}
    ids = tuple(tuple(number.get(value, -1) for value in reader.categories) for reader in readers)
    return Categories(after, PlaceIntervals.of(values, intervals), ids)


def _arrivals(directory: str, reader: ReadReceipt, shards: int, value: str, from_order: int) -> list[int]:
    """The first admitted row of a value from a place on, of each shard."""
    number = reader.categories.index(value)
    found = []
    file = spool.mapped(spool.keys_file(directory, reader.name))
    for shard in range(shards):
        batch = file.get_batch(shard)
        order = batch.column(spool.ORDER).to_numpy()
        wanted = (
            (batch.column(spool.CATEGORY).to_numpy() == number)
            & (batch.column(spool.FATE).to_numpy() == Fate.ADMITTED)
            & (order >= from_order)
        )
        if wanted.any():
            found.append(int(np.min(order[wanted])))
    return found
