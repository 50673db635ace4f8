"""The live entries of a shard, with their windows: what `export` writes and `seed` proves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bucket_store.log.records import LogState
from bucket_store.pieces.piece import BucketEntries
from bucket_store.pieces.reader import PieceReader
from bucket_store.pieces.store import PieceStore
from deduper.config.model import Config
from deduper.window.policy import entry_expiry_point, live_from_bucket


def live_entries(
    config: Config | None, state: LogState, pieces: PieceStore, store_id: str, shard: int
) -> Iterator[BucketEntries]:
    """A bucket of a piece at a time. Without a config, dead entries are not known, and are among them.

    Raises:
        CorruptionError: a piece is damaged, or was deleted meanwhile.
    """
    least = None if config is None else live_from_bucket(config, state)
    point = None if config is None else entry_expiry_point(config, state)
    reader = PieceReader(pieces, store_id)
    for part, block in reader.read_all(reader.all_parts(state.pieces.get(shard, ()))):
        if least is not None and block.bucket < least:
            continue
        window = block.window
        if window is None:
            window = np.full(len(block.digests), part.ref.first_window, np.uint32)
        whole = replace(block, window=window)
        if point is not None and block.expiry is not None:
            whole = whole.chosen(block.expiry > point)
        if len(whole.digests):
            yield whole
