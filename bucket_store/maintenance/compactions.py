"""Small pieces compacted beside the windows (see `pieces.compaction`): no window waits for reading or writing them.

The judging thread chooses pieces of some shards and goes on; another process reads them and makes one of those of each
shard (`maintenance.worker_process`, or tasks on the hosts of a cluster). At the end of a later window one record puts
the new pieces in their place, and they are retired like all others. Then the next ones are chosen.

An owner that dies before the record leaves pieces that no record names; the next start removes them, or on a cluster a
search of the running owner (`maintenance.unnamed_pieces`). When one of the
merged pieces has left the store meanwhile, the new piece is left unnamed as well: no dead entry comes back. A merge
that waits for long, on a suspended machine say, may find the bytes of such pieces deleted. So every merge has an error
of its own, which counts only while its pieces are live.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.piece import PieceRef
from bucket_store.threads import on_a_thread

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""How long a stopping job waits: merging 32 MB takes 1 s."""


Answer: TypeAlias = PieceRef | Exception | None
"""The new piece, or the error of its merge; None: there is neither, and the pieces may be chosen again."""


class Merges(ABC):
    """Compacts pieces on request, as `maintenance.worker_process` does."""

    @abstractmethod
    def merge(self, task: CompactionTask) -> PieceRef | None:
        """Merge pieces of a shard, as `compact_pieces`; None also when a request had no answer and is to be repeated.

        Called on a background thread. The new piece is durable, and counts only once a record names it.
        """

    def merge_each(self, tasks: Sequence[CompactionTask]) -> Iterator[Answer]:
        """The answers in the order of the tasks; an error is an answer. Here one merge after another."""
        for task in tasks:
            answer: Answer
            try:
                answer = self.merge(task)
            except Exception as error:  # noqa: BLE001  raised where the result is taken, if the pieces are still live
                answer = error
            yield answer


Merged: TypeAlias = tuple[tuple[PieceRef, ...], PieceRef | Exception]
"""Pieces of a shard, and the one that may take their place, or the error of their merge."""


class Compactions:
    """Compactions in the background. For the judging thread.

    `close` is also for the thread that ends the job, once no window runs.
    """

    def __init__(self, merges: Merges, in_background: InBackground = on_a_thread) -> None:
        self._merges = merges
        self._in_background = in_background
        self._under_way: _CompactionRequest | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a compaction was begun and its result not taken."""
        return self._under_way is not None

    def begin(self, tasks: Sequence[CompactionTask]) -> None:
        """Compact the pieces of these shards in the background."""
        assert self._under_way is None, "a compaction is under way"
        self._under_way = _CompactionRequest(self._merges, tasks)
        self._in_background(self._under_way.run)

    def result(self) -> list[Merged]:
        """What was merged, and what could not be; nothing when there is no new result.

        Raises:
            Exception: the error that ended all merges that were left; what was merged before it stays unnamed.
        """
        request = self._under_way
        if request is None or not request.is_over.is_set():
            return []
        self._under_way = None
        if request.failure is not None:
            raise request.failure
        merged = request.merged
        logger.debug("merging pieces of %d shards took %.3f s beside the windows", len(merged), request.seconds)
        return merged

    def wait(self) -> None:
        """Wait for the compaction under way, at most for as long as a stopping job waits."""
        if self._under_way is not None:
            self._under_way.is_over.wait(_CLOSE_S)

    def close(self) -> list[PieceRef]:
        """Wait for the compaction under way; gives its pieces, which no record will name. Safe to repeat."""
        request, self._under_way = self._under_way, None
        if request is None:
            return []
        if not request.is_over.wait(_CLOSE_S):
            logger.warning("pieces are still being merged after %d s; the next start cleans up", _CLOSE_S)
            return []
        added = []
        for _, merged in request.merged:
            if isinstance(merged, Exception):
                logger.warning("pieces could not be merged: %s", merged)
            else:
                added.append(merged)
        if request.failure is not None:
            logger.warning("pieces could not be merged: %s", request.failure)
        return added


class _CompactionRequest(BackgroundTask):
    """The compaction of some shards, and what it has `merged` once it is over."""

    def __init__(self, merges: Merges, tasks: Sequence[CompactionTask]) -> None:
        super().__init__()
        self._tasks = tasks
        self._merges = merges
        self.merged: list[Merged] = []

    def act(self) -> None:
        # The worker process gets one by one: a deletion waits for one of them only, and it is replaced between two.
        for task, merged in zip(self._tasks, self._merges.merge_each(self._tasks), strict=True):
            if merged is not None:
                self.merged.append((task.pieces, merged))
