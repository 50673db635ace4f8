"""Small pieces compacted beside the windows (see `pieces.compaction`): no window waits for reading or writing them.

The judging thread chooses the pieces and goes on; a process reads them and makes one of them
(`maintenance.worker_process`). At the end of a later window one record puts the new piece in their place, and they are
retired like all others. One compaction runs at a time.

An owner that dies before the record leaves a piece that no record names; the next start removes it. When one of the
pieces has left the store meanwhile, the new piece is left unnamed as well: no dead entry comes back.
"""

from __future__ import annotations

import logging
from typing import Protocol

from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.piece import PieceRef
from bucket_store.threads import on_a_thread

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""How long a stopping job waits: merging 32 MB takes 1 s."""


class Merges(Protocol):
    """Compacts pieces on request, as `maintenance.worker_process` does."""

    def merge(self, task: CompactionTask) -> PieceRef | None:
        """As `compact_pieces`; None also when the request was not answered and is to be repeated."""


class Compactions:
    """Compactions in the background. For the judging thread.

    `close` is also for the thread that ends the job, once no window runs.
    """

    def __init__(self, merges: Merges, in_background: InBackground = on_a_thread) -> None:
        self._merges = merges
        self._in_background = in_background
        self._under_way: _Request | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a compaction was begun and its result not taken."""
        return self._under_way is not None

    def begin(self, task: CompactionTask) -> None:
        """Compact these pieces in the background."""
        assert self._under_way is None, "a compaction is under way"
        self._under_way = _Request(self._merges, task)
        self._in_background(self._under_way.run)

    def result(self) -> tuple[tuple[PieceRef, ...], PieceRef] | None:
        """The pieces that were merged and the one that may take their place; None when there is no new result.

        Raises:
            Exception: the error of the compaction.
        """
        request = self._under_way
        if request is None or not request.is_over.is_set():
            return None
        self._under_way = None
        if request.failure is not None:
            raise request.failure
        if request.added is None:
            return None
        logger.debug("%d pieces merged in %.3f s beside the windows", len(request.task.pieces), request.seconds)
        return request.task.pieces, request.added

    def wait(self) -> None:
        """Wait for the compaction under way, at most for as long as a stopping job waits."""
        if self._under_way is not None:
            self._under_way.is_over.wait(_CLOSE_S)

    def close(self) -> PieceRef | None:
        """Wait for the compaction under way; gives its piece, which no record will name. Safe to repeat."""
        request, self._under_way = self._under_way, None
        if request is None:
            return None
        if not request.is_over.wait(_CLOSE_S):
            logger.warning("pieces are still being merged after %d s; the next start cleans up", _CLOSE_S)
            return None
        if request.failure is not None:
            logger.warning("pieces could not be merged: %s", request.failure)
        return request.added


class _Request(BackgroundTask):
    """One compaction, and the piece it has `added` once it is over."""

    def __init__(self, merges: Merges, task: CompactionTask) -> None:
        super().__init__()
        self.task = task
        self._merges = merges
        self.added: PieceRef | None = None

    def act(self) -> None:
        self.added = self._merges.merge(self.task)
