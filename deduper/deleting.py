"""The bytes of retired pieces, deleted beside the windows: no window waits for RocksDB to open, or to compact.

The judging thread asks for what is deletable, goes on, and takes the result at the end of a later window; until then
the log goes on naming the pieces as retired. Meanwhile a thread waits for who deletes (`housekeeping_process`).
There is one deletion at a time. What becomes deletable meanwhile, what a writer held, and what an error, a crash or the
end of that process left, is asked for again, for asking twice does no harm.

What is deleted may not have become live again since it was asked for:

- A retired piece never does. Its name is drawn once, and no record names it again, of whatever owner: the log that said
  so is everybody's. So an owner that was overtaken meanwhile deletes nothing of the new one's.
- A file does when it gets another piece. Pieces go to files of their owner's epoch, so files of lower epochs hold
  fewer live pieces from record to record, and `keep` of the moment of asking is enough. Of the own epoch only files go
  that get no further piece; of later ones none. See `writing_epoch` of `PieceStore.delete`.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence

from bucket_store import failpoints
from bucket_store.background import on_a_thread
from bucket_store.log_values import RetiredPiece
from deduper.aside import Aside, AsideTask
from deduper.housekeeping import Deletes

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""How long a stopping job waits for the file it is at: compacting 400 MB takes 1 s."""


class Deletion:
    """Deletes pieces aside. For the thread that judges; `close` for whoever ends the job, once no window runs."""

    def __init__(self, pieces: Deletes, aside: Aside = on_a_thread) -> None:
        self._pieces = pieces
        self._aside = aside
        self._asked: tuple[RetiredPiece, ...] = ()
        self._under_way: _Request | None = None
        # Of those asked for: a piece stays here until the log no longer has it.
        self._gone: set[RetiredPiece] = set()
        self.seconds = 0.0
        """How long the last one took, beside the windows."""

    @property
    def is_under_way(self) -> bool:
        """Whether something was asked for and its result not taken."""
        return self._under_way is not None

    def begin(self, deletable: Sequence[RetiredPiece], *, keep: Collection[str], epoch: int) -> None:
        """Delete these aside: all that `log_state.deletable` gives. `keep` and `epoch` are of the same state.

        Those that are gone already are passed over; with nothing left to do, nothing is under way.
        """
        assert self._under_way is None, "a deletion is under way"
        self._asked = tuple(deletable)
        self._gone &= set(self._asked)
        left = [piece for piece in self._asked if piece not in self._gone]
        if left:
            request = _Request(self._pieces, left, keep, epoch)
            self._aside(request.run)
            self._under_way = request

    def result(self) -> int | None:
        """The record up to which no retired piece has bytes any more; None when there is nothing new to tell.

        Raises:
            Exception: whatever the deletion has met; what it did not get to is to be asked for again.
        """
        request = self._under_way
        if request is None or not request.is_over.is_set():
            return None
        self._under_way = None
        self.seconds = request.seconds
        self._gone |= request.gone
        if request.failure is not None:
            raise request.failure
        left = [piece for piece in self._asked if piece not in self._gone]
        logger.debug(
            "%d retired pieces deleted in %.3f s beside the windows, %d left",
            len(request.gone),
            self.seconds,
            len(left),
        )
        return left[0].at_number - 1 if left else self._asked[-1].at_number

    def close(self) -> None:
        """End what is under way after the file it is at. Safe to repeat. A failure nobody has taken yet is logged."""
        request, self._under_way = self._under_way, None
        if request is None:
            return
        request.is_stopping.set()
        if not request.is_over.wait(_CLOSE_S):
            logger.warning("retired pieces are still being deleted after %d s; the next start goes on", _CLOSE_S)
        elif request.failure is not None:
            logger.warning("retired pieces could not be deleted, the next start tries again: %s", request.failure)


class _Request(AsideTask):
    """One deletion, and what of it is `gone`, also when it has failed or was stopped."""

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
        """Delete file by file; one that is held is passed over."""
        for dying in self._by_file.values():
            if self.is_stopping.is_set():
                return
            refs = [piece.ref for piece in dying]
            held = self._pieces.delete(refs, keep=self._keep, writing_epoch=self._epoch)
            self.gone |= {piece for piece in dying if piece.ref not in held}
        failpoints.hit("expire.deleted")
