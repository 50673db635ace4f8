"""Follows a source of files: a window at every trigger while there are files, until a stop or the source is drained."""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from deduper.errors import DeduperError, SourceAwayError, StopRequested
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
            SourceAwayError: its files cannot be looked at now, and nothing of the batch is committed.
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
        """Run until a stop or a failure; to drain the source, until all files that it has at the start are judged.

        Raises:
            DeduperError: the source cannot be looked at, and is to be drained.
        """
        self._list(is_needed=drain)
        while not self._stop.is_asked_for:
            due = time.monotonic() + (0 if drain else self._trigger_s)
            try:
                if not self._next_window(drain=drain):
                    return
            except SourceAwayError as exc:
                if drain:
                    raise
                self._source.put_off()
                self._unlisted.say(f"no file is judged now, the next trigger looks again: {exc}")
            self._wait_until(due)
            if not (drain or self._source.pending or self._stop.is_asked_for):
                self._list(is_needed=False)

    def _next_window(self, *, drain: bool) -> bool:
        """Make a window if there are files; False when it failed, or nothing is left to drain."""
        batch = self._source.next_batch()
        if batch is None:
            return not drain
        with contextlib.suppress(StopRequested):  # the loop ends by the flag
            return self._windows.make(batch)
        return True

    def _wait_until(self, due: float) -> None:
        """Wait for the next trigger or a stop. The owner is checked however short the trigger is."""
        self._windows.look_at_owner()
        while (left := due - time.monotonic()) > 0 and not self._stop.wait(min(LOOK_SECONDS, left)):
            self._windows.look_at_owner()

    def _list(self, *, is_needed: bool) -> None:
        """List new files. Where more may come later, a folder that cannot be read now may be there then."""
        try:
            self._source.list_new()
        except (OSError, SourceAwayError) as exc:
            if is_needed:
                raise DeduperError(f"the source cannot be listed: {exc}") from exc
            self._unlisted.say(f"the source cannot be listed, the next trigger tries again: {exc}")
            return
        self._windows.listed(self._source)
