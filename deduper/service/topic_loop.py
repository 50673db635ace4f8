"""Follows a source of topics: a window at every trigger while there are new offsets, until a stop or it is drained.

The job plans the offsets of a window itself: from the judged ends of the store to what the brokers hold.
"""

from __future__ import annotations

import contextlib
import time

from deduper.errors import StopRequested
from deduper.service.stop import Stop
from deduper.service.windows import Windows
from deduper.sources.protocol import PlannedSource
from deduper.window.progress import PROGRESS


class TopicLoop:
    """One run over a source of topics; a window begins every `trigger_s` at the soonest."""

    def __init__(self, source: PlannedSource, windows: Windows, stop: Stop, trigger_s: float) -> None:
        self._source = source
        self._windows = windows
        self._stop = stop
        self._trigger_s = trigger_s

    def run(self, *, drain: bool) -> None:
        """Run until a stop or a failure; to drain the source, until all offsets that it has at the start are judged."""
        if not drain:
            PROGRESS.info("waiting for records on %s", self._source.place)
        with contextlib.suppress(StopRequested):  # the loop ends by the flag
            is_begun = False
            while not self._stop.is_requested:
                due = time.monotonic() + (0 if drain else self._trigger_s)
                number = self._windows.next_number
                with self._windows.attempted(number):
                    if not is_begun:
                        self._source.begin(drain=drain)
                        is_begun = True
                    batch = self._source.next_batch()
                    if batch is not None:
                        self._windows.make(batch, number, judged=self._source.judged)
                if self._windows.failure is not None or (batch is None and drain):
                    return
                self._windows.wait_until(due)
