"""The categories that are live at every point of a window, found between its reading and its judging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.config.expiry import CategoryExpiry
from deduper.core.categories import CategoryState, PlaceIntervals, arrange
from deduper.core.kernels import Int64s
from deduper.core.verdict import INT64_MAX, Admission
from deduper.tasks import exchange
from deduper.tasks.read import ReadReceipt


@dataclass(frozen=True, slots=True)
class Categories:
    """The live categories after the window, their places in it, and the window's id of each of a reading task's ids."""

    after: CategoryState
    places: PlaceIntervals
    ids: tuple[NDArray[np.int32], ...]


def arrange_categories(
    directory: str, readers: Sequence[ReadReceipt], shards: int, expiry: CategoryExpiry, state: CategoryState
) -> Categories:
    """The categories of a window whose records were read; a shard has only a slice of them."""
    encoded = pa.array([value for reader in readers for value in reader.categories], pa.string()).dictionary_encode()
    whole = encoded.indices.to_numpy()
    first = np.full(len(encoded.dictionary), INT64_MAX)
    np.minimum.at(first, whole, np.array([order for reader in readers for order in reader.first_arrivals], np.int64))
    ids = np.split(whole, np.cumsum([len(reader.categories) for reader in readers])[:-1])

    def arrivals() -> tuple[NDArray[np.int32], Int64s]:
        parts = [
            part for reader, of in zip(readers, ids, strict=True) for part in _admitted(directory, reader, shards, of)
        ]
        category, order = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        in_order = np.argsort(order)
        return category[in_order], order[in_order]

    values = encoded.dictionary.to_pylist()
    after, places = arrange(state, values, first, arrivals, expiry.live_categories, expiry.remember_dropped)
    return Categories(after, places, tuple(ids))


def _admitted(
    directory: str, reader: ReadReceipt, shards: int, ids: NDArray[np.int32]
) -> Iterator[tuple[NDArray[np.int32], Int64s]]:
    """(category id of the window, source order) of the admitted rows of a reading task, shard by shard."""
    file = exchange.mapped(exchange.keys_file(directory, reader.name))
    for shard in range(shards):
        batch = file.get_batch(shard)
        admitted = batch.column(exchange.ADMISSION).to_numpy() == Admission.ADMITTED
        category = batch.column(exchange.CATEGORY).to_numpy()[admitted]
        yield ids[category], batch.column(exchange.ORDER).to_numpy()[admitted]
