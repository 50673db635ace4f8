"""PURE. What a task may know of the store: the log position before its batch, and its shard's live pieces then.

Tasks never list or read the log; the driver hands every task its view. It travels with each batch, so it pickles as
packed columns: numbers as arrays, file names once each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]

from bucket_store.piece import PieceRef


@dataclass(frozen=True, slots=True)
class ShardView:
    """The committed windows below `next_window`, as one shard sees them.

    `pieces` are the live ones, ascending by first window. Buckets below `live_from_bucket` are dead (None: none is).
    Entries whose expiry key is at or below `expiry_point` are dead (`lookup: all_live`; None: none is).
    """

    store_id: str
    incarnation: str
    shard: int
    next_window: int
    pieces: tuple[PieceRef, ...]
    live_from_bucket: int | None
    expiry_point: int | float | None

    def __reduce__(self) -> tuple[Any, ...]:
        files = sorted({piece.file for piece in self.pieces})
        number = {file: at for at, file in enumerate(files)}
        columns = list(zip(*(piece.to_wire() for piece in self.pieces), strict=True))
        if columns:
            columns[1] = tuple(number[file] for file in columns[1])
        fields = (
            self.store_id,
            self.incarnation,
            self.shard,
            self.next_window,
            self.live_from_bucket,
            self.expiry_point,
            files,
            columns,
        )
        return _unpack, (msgpack.packb(fields),)


def _unpack(packed: bytes) -> ShardView:
    store_id, incarnation, shard, next_window, live_from, expiry_point, files, columns = msgpack.unpackb(packed)
    pieces = []
    for wire in zip(*columns, strict=True):
        shard_of, file, *rest = wire
        pieces.append(PieceRef.from_wire([shard_of, files[file], *rest]))
    return ShardView(store_id, incarnation, shard, next_window, tuple(pieces), live_from, expiry_point)
