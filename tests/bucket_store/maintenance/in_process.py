"""Maintenance without a child process, for tests that need none."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bucket_store.maintenance.worker_process import Maintenance
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import Located, PieceStore


class InProcess(Maintenance):
    """Deletes and compacts pieces in the calling process and thread."""

    def __init__(self, store: PieceStore) -> None:
        self._store = store

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """See `PieceStore.delete`."""
        return self._store.delete(pieces, keep=keep, writing_epoch=writing_epoch)

    def merge(self, task: CompactionTask) -> PieceRef | None:
        """As `compact_pieces`."""
        return compact_pieces(self._store, task)
