"""Follows a source of files: a window at every trigger while there are files, until a stop or the source is drained."""

from __future__ import annotations

import contextlib
import time

from deduper.errors import DeduperError, StopRequested
from deduper.kafka.retry import ThrottledLog
from deduper.service.stop import Stop
from deduper.service.windows import OWNER_CHECK_S, Windows
from deduper.sources.files.batch import FileBatches


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
        while not self._stop.is_requested:
            due = time.monotonic() + (0 if drain else self._trigger_s)
            batch = self._source.next_batch()
            if batch is None and drain:
                return
            if batch is not None:
                with contextlib.suppress(StopRequested):  # the loop ends by the flag
                    if not self._windows.make_next(batch):
                        return
            self._wait_until(due)
            if not (drain or self._source.pending or self._stop.is_requested):
                self._list(is_needed=False)

    def _wait_until(self, due: float) -> None:
        """Wait for the next trigger or a stop. The owner is checked however short the trigger is."""
        self._windows.check_owner()
        while (left := due - time.monotonic()) > 0 and not self._stop.wait(min(OWNER_CHECK_S, left)):
            self._windows.check_owner()

    def _list(self, *, is_needed: bool) -> None:
        """List new files. Where more may come later, a folder that cannot be read now may be there then."""
        try:
            self._source.list_new()
        except OSError as exc:
            if is_needed:
                raise DeduperError(f"the source cannot be listed: {exc}") from exc
            self._unlisted.warn(f"the source cannot be listed, the next trigger tries again: {exc}")
            return
        self._windows.listed(self._source)
