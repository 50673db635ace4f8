"""A store held by a command that changes it: no job runs on it, an epoch is claimed, the heartbeat moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bucket_store import failpoints
from bucket_store.log.copies import warn_of_original
from bucket_store.log.records import LogState, RebaseRecord
from bucket_store.pieces.piece import PieceRef
from deduper.admin.open_store import OpenStore
from deduper.errors import OwnerAliveError
from deduper.units import format_time
from deduper.window import owner_alive
from deduper.window.completeness import OUTPUTS_THROUGH, outputs_through
from deduper.window.owner_alive import own_name, owner_lives
from deduper.window.present_clock import present_wall_us


@dataclass(frozen=True, slots=True)
class OwnedStore:
    """A store, the epoch that this process has claimed, and the wall clock of its record."""

    store: OpenStore
    epoch: int
    wall_us: int

    def rebase(self, state: LogState, **note: Any) -> None:
        """Places the record after which `state` counts, with a note of what was done.

        Raises:
            FencedError, NotCommittedError, MaybeCommittedError: as `CommitLog.place`.
        """
        through = outputs_through(state)
        if through >= 0:  # of a seed whose own note may be dropped by this one
            note = {OUTPUTS_THROUGH: through, **note}
        whole = {**note, "at": format_time(self.wall_us), "by": own_name(), "epoch": self.epoch}
        base = replace(state, retired=(), notes=(*state.notes, whole))
        self.store.log.place(RebaseRecord(base, self.wall_us))
        failpoints.hit("move.recorded")


@contextmanager
def owning(store: OpenStore, now_us: int | None = None) -> Iterator[OwnedStore]:
    """Claims the store, and holds it while the `with` block runs.

    Raises:
        OwnerAliveError: a job runs on the store.
        FencedError: another process has claimed it at the same moment.
    """
    if owner_lives(store.log.root):
        raise OwnerAliveError(f"{store.root}: a job runs on this store; stop it first")
    owner = own_name()
    wall_us = present_wall_us(store.log, time.time_ns() // 1000 if now_us is None else now_us)
    warn_of_original(store.log)
    epoch = store.log.claim_epoch(owner, wall_us)
    failpoints.hit("move.claimed")
    with owner_alive.owning(store.log.root, owner, epoch):
        yield OwnedStore(store, epoch, wall_us)


def with_pieces(state: LogState, pieces: dict[int, tuple[PieceRef, ...]]) -> LogState:
    """The state with other live pieces, and the windows of which one alone is left."""
    spans = {shard: tuple(sorted(refs, key=_span)) for shard, refs in sorted(pieces.items()) if refs}
    alone = {ref.first_window for refs in spans.values() for ref in refs if ref.first_window == ref.last_window}
    windows = {window: info for window, info in state.windows.items() if window in alone}
    return replace(state, pieces=spans, windows=windows)


def _span(ref: PieceRef) -> tuple[int, int]:
    return ref.first_window, ref.last_window
