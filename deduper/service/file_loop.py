"""Follows a source of files: a window at every trigger while there are files, until a stop or the source is drained."""

from __future__ import annotations

import contextlib
import time

from deduper.errors import DeduperError, SourceAwayError, StopRequested
from deduper.kafka.retry import ThrottledLog
from deduper.service.stop import Stop
from deduper.service.windows import Windows
from deduper.sources.files.batch import FileBatches
from deduper.window.progress import PROGRESS


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
        if self._source.pending:
            PROGRESS.info("%d file%s to judge", self._source.pending, "" if self._source.pending == 1 else "s")
        elif not drain:
            PROGRESS.info("waiting for the first files in %s", self._source.place)
        while not self._stop.is_requested:
            due = time.monotonic() + (0 if drain else self._trigger_s)
            try:
                if not self._next_window(drain=drain):
                    return
            except SourceAwayError as exc:
                if drain:
                    raise
                self._source.put_off()
                self._unlisted.warn(f"no file is judged now, the next trigger looks again: {exc}")
            self._windows.wait_until(due)
            if not (drain or self._source.pending or self._stop.is_requested):
                self._list(is_needed=False)

    def _next_window(self, *, drain: bool) -> bool:
        """Make a window if there are files; False when it failed, or nothing is left to drain."""
        batch = self._source.next_batch()
        if batch is None:
            return not drain
        with contextlib.suppress(StopRequested):  # the loop ends by the flag
            return self._windows.make_next(batch)
        return True

    def _list(self, *, is_needed: bool) -> None:
        """List new files. Where more may come later, a folder that cannot be read now may be there then."""
        try:
            self._source.list_new()
        except (OSError, SourceAwayError) as exc:
            if is_needed:
                raise DeduperError(f"the source cannot be listed: {exc}") from exc
            self._unlisted.warn(f"the source cannot be listed, the next trigger tries again: {exc}")
            return
        self._windows.listed(self._source)
