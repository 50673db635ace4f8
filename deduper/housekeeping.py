"""Who deletes and merges pieces beside the windows: this process, or one for it (`housekeeping_process`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from bucket_store.backend import Located, PieceStore
from bucket_store.merging import Merging, merge_pieces
from bucket_store.piece import PieceRef


class Deletes(Protocol):
    """Who deletes."""

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """See `PieceStore.delete`."""


class Merges(Protocol):
    """Who merges."""

    def merge(self, task: Merging) -> PieceRef | None:
        """As `merge_pieces`; None also when it is to be asked for again."""


class Housekeeper(Deletes, Merges, Protocol):
    """Who does both."""


class InProcess:
    """Deletes and merges where it is asked to."""

    def __init__(self, store: PieceStore) -> None:
        self._store = store

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """See `Deletes`."""
        return self._store.delete(pieces, keep=keep, writing_epoch=writing_epoch)

    def merge(self, task: Merging) -> PieceRef | None:
        """See `Merges`."""
        return merge_pieces(self._store, task)
