"""The categories that are live at every point of a window, found between its reading and its judging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.config.sections import CategoryExpiry
from deduper.core.categories import CategoryState, PlaceIntervals, arrange
from deduper.core.kernels import Int64s
from deduper.core.verdict import INT64_MAX
from deduper.tasks.read import Admitted, ReadReceipt


@dataclass(frozen=True, slots=True)
class Categories:
    """The live categories after the window, their places, and for each reading task the window's ids of its own ids."""

    after: CategoryState
    places: PlaceIntervals
    ids: tuple[NDArray[np.int32], ...]


def arrange_categories(
    admitted: Callable[[Sequence[ReadReceipt]], Sequence[Admitted]],
    readers: Sequence[ReadReceipt],
    expiry: CategoryExpiry,
    state: CategoryState,
) -> Categories:
    """The categories of a window whose records were read; a shard has only a slice of them.

    `admitted` gives the admitted rows of reading tasks; it is called only if the first arrivals are not enough.
    """
    encoded = pa.array([value for reader in readers for value in reader.categories], pa.string()).dictionary_encode()
    whole = encoded.indices.to_numpy()
    first = np.full(len(encoded.dictionary), INT64_MAX)
    np.minimum.at(first, whole, np.array([order for reader in readers for order in reader.first_arrivals], np.int64))
    ids = np.split(whole, np.cumsum([len(reader.categories) for reader in readers])[:-1])

    def arrivals() -> tuple[NDArray[np.int32], Int64s]:
        parts = [(of[category], order) for of, (category, order) in zip(ids, admitted(readers), strict=True)]
        category, order = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        in_order = np.argsort(order)
        return category[in_order], order[in_order]

    values = encoded.dictionary.to_pylist()
    after, places = arrange(state, values, first, arrivals, expiry.live_categories, expiry.remember_dropped)
    return Categories(after, places, tuple(ids))
