"""Follows a source of files: a window at every trigger while there are files, until a stop or the source is drained."""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from deduper.errors import DeduperError, StopRequested
from deduper.kafka.retry import ThrottledLog
from deduper.service.stop import Stop
from deduper.sources.files.batch import FileBatches
from deduper.sources.protocol import SourceBatch

LOOK_SECONDS = 1.0
"""Between two checks of the store's owner."""


class Windows(Protocol):
    """The job, as the loop needs it. All methods are called from the loop's thread."""

    def listed(self, source: FileBatches) -> None:
        """The source was listed."""

    def make(self, batch: SourceBatch) -> bool:
        """Make a window of a batch; False when it failed, which ends the loop.

        Raises:
            StopRequested: a stop was asked for, and nothing of the batch is committed.
        """

    def look_at_owner(self) -> None:
        """Between two batches: check that no other owner has taken over."""


class FileLoop:
    """One run over a source of files; a window begins every `trigger_s` at the soonest."""

    def __init__(self, source: FileBatches, windows: Windows, stop: Stop, trigger_s: float) -> None:
        self._source = source
        self._windows = windows
        self._stop = stop
        self._trigger_s = trigger_s
        self._unlisted = ThrottledLog(time.monotonic)

    def run(self, *, drain: bool) -> None:
        """Run until a stop or a failure; to drain the source, until all files that it has at the start are judged."""
        self._list(is_needed=drain)
        while not self._stop.is_asked_for:
            due = time.monotonic() + (0 if drain else self._trigger_s)
            batch = self._source.next_batch()
            if batch is None and drain:
                return
            if batch is not None:
                with contextlib.suppress(StopRequested):  # the loop ends by the flag
                    if not self._windows.make(batch):
                        return
            self._wait_until(due)
            if not (drain or self._source.pending or self._stop.is_asked_for):
                self._list(is_needed=False)

    def _wait_until(self, due: float) -> None:
        """Wait for the next trigger or a stop. The owner is checked however short the trigger is."""
        self._windows.look_at_owner()
        while (left := due - time.monotonic()) > 0 and not self._stop.wait(min(LOOK_SECONDS, left)):
            self._windows.look_at_owner()

    def _list(self, *, is_needed: bool) -> None:
        """List new files. Where more may come later, a folder that cannot be read now may be there then."""
        try:
            self._source.list_new()
        except OSError as exc:
            if is_needed:
                raise DeduperError(f"the source cannot be listed: {exc}") from exc
            self._unlisted.say(f"the source cannot be listed, the next trigger tries again: {exc}")
            return
        self._windows.listed(self._source)
