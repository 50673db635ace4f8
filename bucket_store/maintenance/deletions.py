"""Deletes the bytes of retired pieces beside the windows: no window waits for RocksDB to open, or to compact.

The judging thread requests a deletion, goes on, and takes the result at the end of a later window; until then the log
still names the pieces as retired. Meanwhile a thread waits for the process that deletes (`maintenance.worker_process`).
One deletion runs at a time. Pieces that become deletable meanwhile, that a writer held, or that an error, a crash or
the end of that process left, are requested again: a repeated request does no harm.

Nothing that is deleted may have become live again since the request:

- A retired piece never does. Its name is drawn once, and no record of any owner names it again: all owners share one
  log. So an owner that was overtaken meanwhile deletes no piece of the new owner's.
- A file does when it gets another piece. Pieces go to files of their owner's epoch, so files of lower epochs hold
  fewer live pieces from record to record, and `keep` as of the request is enough. Of the own epoch only files that get
  no further piece are deleted; of later epochs none. See `writing_epoch` of `PieceStore.delete`.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from bucket_store import failpoints
from bucket_store.log.records import RetiredPiece
from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.pieces.store import Located
from bucket_store.threads import on_a_thread

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""How long a stopping job waits for the current file: compacting 400 MB takes 1 s."""


class Deletes(Protocol):
    """Deletes pieces on request: a `PieceStore`, or `maintenance.worker_process`."""

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """As `PieceStore.delete`. Called by the owner, for pieces that no record names any more."""


class Deletions:
    """Deletions in the background. For the judging thread.

    `close` is also for the thread that ends the job, once no window runs.
    """

    def __init__(self, pieces: Deletes, in_background: InBackground = on_a_thread) -> None:
        self._pieces = pieces
        self._in_background = in_background
        self._requested: tuple[RetiredPiece, ...] = ()
        self._under_way: _DeletionRequest | None = None
        # Of the requested pieces: one stays here until the log no longer has it.
        self._gone: set[RetiredPiece] = set()
        self.seconds = 0.0
        """How long the last deletion took."""

    @property
    def is_under_way(self) -> bool:
        """Whether a deletion was begun and its result not taken."""
        return self._under_way is not None

    def begin(self, deletable: Sequence[RetiredPiece], *, keep: Collection[str], epoch: int) -> None:
        """Delete all pieces of `log.state.deletable` in the background. `keep` and `epoch` are of the same state.

        Pieces that are gone already are skipped; when none is left, no deletion is under way.
        """
        assert self._under_way is None, "a deletion is under way"
        self._requested = tuple(deletable)
        self._gone &= set(self._requested)
        left = [piece for piece in self._requested if piece not in self._gone]
        if left:
            request = _DeletionRequest(self._pieces, left, keep, epoch)
            self._in_background(request.run)
            self._under_way = request

    def result(self) -> int | None:
        """The record up to which no retired piece has bytes any more; None when there is no new result.

        Raises:
            Exception: the error of the deletion; pieces it did not reach have to be requested again.
        """
        request = self._under_way
        if request is None or not request.is_over.is_set():
            return None
        self._under_way = None
        self.seconds = request.seconds
        self._gone |= request.gone
        if request.failure is not None:
            raise request.failure
        left = [piece for piece in self._requested if piece not in self._gone]
        logger.debug(
            "%d retired pieces deleted in %.3f s beside the windows, %d left",
            len(request.gone),
            self.seconds,
            len(left),
        )
        return left[0].at_number - 1 if left else self._requested[-1].at_number

    def wait(self) -> None:
        """Wait for the deletion under way, at most for as long as a stopping job waits."""
        if self._under_way is not None:
            self._under_way.is_over.wait(_CLOSE_S)

    def close(self) -> None:
        """End the deletion under way after its current file, and log a failure not yet taken. Safe to repeat."""
        request, self._under_way = self._under_way, None
        if request is None:
            return
        request.is_stopping.set()
        if not request.is_over.wait(_CLOSE_S):
            logger.warning("retired pieces are still being deleted after %d s; the next start goes on", _CLOSE_S)
        elif request.failure is not None:
            logger.warning("retired pieces could not be deleted, the next start tries again: %s", request.failure)


class _DeletionRequest(BackgroundTask):
    """One deletion, and its pieces that are `gone`, also when it has failed or was stopped."""

    def __init__(self, pieces: Deletes, dying: Sequence[RetiredPiece], keep: Collection[str], epoch: int) -> None:
        super().__init__()
        self._pieces = pieces
        self._keep = keep
        self._epoch = epoch
        self._by_file: defaultdict[str, list[RetiredPiece]] = defaultdict(list)
        for piece in dying:
            self._by_file[piece.ref.file].append(piece)
        self.is_stopping = threading.Event()
        self.gone: set[RetiredPiece] = set()

    def act(self) -> None:
        """Delete file by file; a held one is skipped."""
        for dying in self._by_file.values():
            if self.is_stopping.is_set():
                return
            refs = [piece.ref for piece in dying]
            held = self._pieces.delete(refs, keep=self._keep, writing_epoch=self._epoch)
            self.gone |= {piece for piece in dying if piece.ref not in held}
        failpoints.hit("expire.deleted")
