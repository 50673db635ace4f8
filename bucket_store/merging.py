"""Pieces of a store read, merged (see `collation`) and appended as one."""

from __future__ import annotations

from dataclasses import dataclass

from bucket_store import failpoints
from bucket_store.backend import PieceStore, append_piece
from bucket_store.collation import merge
from bucket_store.piece import PieceRef, decode_piece


@dataclass(frozen=True, slots=True)
class Merging:
    """Pieces of one shard that are to become one of this epoch, ascending by window, and what of them is dead."""

    pieces: tuple[PieceRef, ...]
    store_id: str
    epoch: int
    live_from_bucket: int | None
    expiry_point: int | float | None


def merge_pieces(store: PieceStore, task: Merging) -> PieceRef | None:
    """The new piece, durable on return; None when nothing of the others lives. Safe to repeat: another piece.

    Raises:
        CorruptionError: one of them is damaged.
        SpaceError: no room; nothing that was there before is harmed.
    """
    read = [(ref, decode_piece(store.read(ref), file=ref.file, offset=ref.offset)[1]) for ref in task.pieces]
    entries = merge(read, live_from_bucket=task.live_from_bucket, expiry_point=task.expiry_point)
    if entries is None:
        return None
    added = append_piece(
        store,
        entries,
        store_id=bytes.fromhex(task.store_id),
        shard=task.pieces[0].shard,
        first_window=task.pieces[0].first_window,
        last_window=max(ref.last_window for ref in task.pieces),
        epoch=task.epoch,
        attempt=0,
    )
    failpoints.hit("collate.merged")
    return added
