"""Small pieces merged beside the windows (see `bucket_store.collation`): no window waits for reading or writing them.

The judging thread looks for what is worth merging and goes on; a process reads the pieces and makes one of them
(`housekeeping_process`). At the end of a later window the new piece takes their place by one record, and they are
retired like all others. There is one merging at a time.

Whoever dies before the record leaves a piece that no record names, for the next start to remove. When one of the
pieces has left the store meanwhile, the new one is left for it too: nothing that died comes back.
"""

from __future__ import annotations

import logging

from bucket_store import collation
from bucket_store.background import on_a_thread
from bucket_store.log_state import LogState
from bucket_store.merging import Merging
from bucket_store.piece import PieceRef
from deduper import judging
from deduper.aside import Aside, AsideTask
from deduper.config import Config
from deduper.housekeeping import Merges

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""How long a stopping job waits: merging 32 MB takes 1 s."""


def next_merging(config: Config, store_id: str, state: LogState) -> Merging | None:
    """What of the live pieces is worth merging now; the shard with the most of them first."""
    dead = set(judging.dead_pieces(config, state))
    chosen: tuple[PieceRef, ...] = ()
    for pieces in state.pieces.values():
        live = [piece for piece in pieces if piece not in dead]
        chosen = max(chosen, collation.choose(live, lambda piece: judging.time_bucket(config, piece)), key=len)
    if not chosen:
        return None
    return Merging(
        pieces=chosen,
        store_id=store_id,
        epoch=state.epoch,
        live_from_bucket=judging.live_from_bucket(config, state),
        expiry_point=judging.entry_expiry_point(config, state),
    )


class Collation:
    """Merges aside. For the thread that judges; `close` for whoever ends the job, once no window runs."""

    def __init__(self, merges: Merges, aside: Aside = on_a_thread) -> None:
        self._merges = merges
        self._aside = aside
        self._under_way: _Request | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether something was begun and its result not taken."""
        return self._under_way is not None

    def begin(self, task: Merging) -> None:
        """Merge these pieces aside."""
        assert self._under_way is None, "a merging is under way"
        self._under_way = _Request(self._merges, task)
        self._aside(self._under_way.run)

    def result(self) -> tuple[tuple[PieceRef, ...], PieceRef] | None:
        """The pieces that were merged and the one that may take their place; None when there is nothing new to tell.

        Raises:
            Exception: whatever merging has met.
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

    def close(self) -> PieceRef | None:
        """Wait for what is under way, and give what came of it: a piece that no record will name. Safe to repeat."""
        request, self._under_way = self._under_way, None
        if request is None:
            return None
        if not request.is_over.wait(_CLOSE_S):
            logger.warning("pieces are still being merged after %d s; the next start cleans up", _CLOSE_S)
            return None
        if request.failure is not None:
            logger.warning("pieces could not be merged: %s", request.failure)
        return request.added


class _Request(AsideTask):
    """One merging, and the piece it has `added` once it is over."""

    def __init__(self, merges: Merges, task: Merging) -> None:
        super().__init__()
        self.task = task
        self._merges = merges
        self.added: PieceRef | None = None

    def act(self) -> None:
        self.added = self._merges.merge(self.task)
