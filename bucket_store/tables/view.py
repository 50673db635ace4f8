"""PURE. A task's view of the store: the log position before its batch, and its shard's live pieces then.

Tasks never list or read the log; the driver gives every task its view. It travels with each batch, so it pickles as
packed columns: numbers as arrays, file names once each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import msgspec

from bucket_store.lineage import Lineage, history_at
from bucket_store.pieces.piece import PieceRef

_fields_of = attrgetter(*(field.name for field in fields(PieceRef)))
_FILE_AT = 1


@dataclass(frozen=True, slots=True)
class ShardView:
    """The committed windows below `next_window`, as one shard sees them.

    `pieces` are the live ones, ascending by first window. Buckets below `live_from_bucket` are dead (None: no bucket
    is). Entries whose expiry key is at or below `expiry_point` are dead (`lookup: all_live`; None: no entry is).
    `lineage` says which history of the store they belong to, its last entry which owner hands out the view. `folder` is
    the name of the store's table directories on every machine, see `generation.table_folder`.
    """

    store_id: str
    folder: str
    lineage: Lineage
    shard: int
    next_window: int
    pieces: tuple[PieceRef, ...]
    live_from_bucket: int | None
    expiry_point: int | float | None

    def history_at(self, next_window: int) -> bytes:
        """The nonce that names the history below this window; empty when unknown, or beyond the view."""
        return history_at(self.lineage, next_window) if next_window <= self.next_window else b""

    def __reduce__(self) -> tuple[Any, ...]:
        files = sorted({piece.file for piece in self.pieces})
        number = {file: at for at, file in enumerate(files)}
        columns = list(zip(*map(_fields_of, self.pieces), strict=True))
        if columns:
            columns[_FILE_AT] = tuple(number[file] for file in columns[_FILE_AT])
        packed = (
            self.store_id,
            self.folder,
            self.lineage,
            self.shard,
            self.next_window,
            self.live_from_bucket,
            self.expiry_point,
            files,
            columns,
        )
        return _unpack, (msgspec.msgpack.encode(packed),)


def _unpack(packed: bytes) -> ShardView:
    store_id, folder, lineage, shard, next_window, live_from, expiry_point, files, columns = msgspec.msgpack.decode(
        packed
    )
    if columns:
        columns[_FILE_AT] = [files[number] for number in columns[_FILE_AT]]
    pieces = tuple(PieceRef(*of_piece) for of_piece in zip(*columns, strict=True))
    known = tuple((first, nonce) for first, nonce in lineage)
    return ShardView(store_id, folder, known, shard, next_window, pieces, live_from, expiry_point)
