"""Removes pieces that no record names and none will, while their owner runs: left by tasks that were lost or ran twice.

A start removes those of lower epochs. On a cluster a long run leaves its own: of an executor that died with a piece, of
a twin, of a merge whose pieces have expired meanwhile. A record may still name a piece only if something that runs may
answer with it, so

- a search begins when no merge is under way, and no merge begins before it is over;
- it takes pieces of windows below the state's next one: the window that is judged meanwhile has others, and so have all
  later ones;
- it takes no piece of a later epoch. A later owner names none of an earlier one that its log did not name already.

A task without a waiting driver may append later; the next search finds that piece.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from bucket_store.log.state import LogState, live_files, named_pieces
from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.pieces.piece import window_of
from bucket_store.pieces.store import PieceStore, StoredPiece
from bucket_store.threads import on_a_thread

logger = logging.getLogger(__name__)

EVERY_S = 3600.0
"""Between two searches: each lists the folder of every shard."""
_CLOSE_S = 10.0


def unnamed(state: LogState, stored: Iterable[StoredPiece]) -> list[StoredPiece]:
    """The pieces that no record names and none will, while no merge is under way. PURE."""
    named = named_pieces(state)
    return [
        piece
        for piece in stored
        if piece.epoch <= state.epoch
        and (window := window_of(piece.name)) is not None
        and window < state.next_window
        and (piece.file, piece.name) not in named
    ]


class UnnamedPieces:
    """Searches beside the windows. For the judging thread."""

    def __init__(
        self,
        pieces: PieceStore,
        in_background: InBackground = on_a_thread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pieces = pieces
        self._in_background = in_background
        self._clock = clock  # not the wall clock: once far ahead, it would name a time that never comes
        self._last = clock()
        self._search: _Search | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a search is not over. A failure is logged: the next search repeats it."""
        search = self._search
        if search is not None and search.is_over.is_set():
            self._search = None
            if search.failure is not None:
                logger.warning("pieces that no record names were not removed: %s", search.failure)
            elif search.removed:
                logger.info("%d pieces that no record names are removed", search.removed)
        return self._search is not None

    def begin_if_due(self, state: LogState) -> None:
        """Begin a search an hour after the last one, or after the start. No merge may be under way."""
        now = self._clock()
        if self._search is None and now - self._last >= EVERY_S:
            self._last = now
            self._search = _Search(self._pieces, state)
            self._in_background(self._search.run)

    def close(self) -> None:
        """Wait for a search for as long as a stopping job waits. Safe to repeat."""
        if self._search is not None:
            self._search.is_over.wait(_CLOSE_S)


class _Search(BackgroundTask):
    """One search, and how many pieces it has `removed`."""

    def __init__(self, pieces: PieceStore, state: LogState) -> None:
        super().__init__()
        self._pieces = pieces
        self._state = state
        self.removed = 0

    def act(self) -> None:
        found = unnamed(self._state, self._pieces.pieces())
        self._pieces.delete(found, keep=live_files(self._state), writing_epoch=self._state.epoch)
        self.removed = len(found)
