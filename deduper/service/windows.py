"""The windows of a run, one at a time: made of batches, counted, reported; the first failure ends the run."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bucket_store import failpoints
from bucket_store.errors import FencedError, StorageAwayError
from bucket_store.log.commit_log import CommitLog
from deduper.core.verdict import TupleVerdict
from deduper.errors import StopRequested
from deduper.service.current_step import CurrentStep
from deduper.service.error_watch import ErrorWatch
from deduper.service.stop import Stop
from deduper.sources.files.batch import FileBatches
from deduper.sources.protocol import SourceBatch
from deduper.spark.allocator import FreeMemory
from deduper.spark.failures import raised_in_worker
from deduper.window.progress import BatchProgress, RemainingInput
from deduper.window.recovery import reason_to_stop
from deduper.window.runner import WindowInput, WindowRunner

if TYPE_CHECKING:
    from deduper.service.lag_watch import SourceWatch
    from deduper.service.metrics import JobMetrics

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Reports:
    """The reports of a run: metrics, `on_progress` after every window, and the totals of its summary.

    `window_ended` may be called on another thread than the rest, but for one window at a time. `watch` asks the
    brokers of a source of topics where it ends.
    """

    on_progress: Callable[[BatchProgress], None]
    metrics: JobMetrics | None = None
    watch: SourceWatch | None = None
    errors: ErrorWatch = field(default_factory=ErrorWatch)
    windows: int = 0
    totals: dict[str, int] = field(default_factory=lambda: {verdict.port: 0 for verdict in TupleVerdict})
    begun: float = math.inf
    done_before: int = 0
    files: FileBatches | None = None
    files_listed: int = 0

    def window(self) -> contextlib.AbstractContextManager[None]:
        """Around the making of a window, from its batch to its commit."""
        return contextlib.nullcontext() if self.metrics is None else self.metrics.window()

    def window_ended(self, progress: BatchProgress) -> None:
        """A window is published."""
        if self.metrics is not None:
            self.metrics.window_ended(progress)
            self._report_files()
        if self.watch is not None:
            self.watch.soon()
        self.windows += 1
        for port in self.totals:
            self.totals[port] += getattr(progress, port)
        self.errors.window_ended(progress)
        self.on_progress(replace(progress, left=self._left(progress)))

    def _left(self, progress: BatchProgress) -> RemainingInput | None:
        """What is left, and the time for it at the rate since there was something to judge."""
        now = time.monotonic()
        self.begun = min(self.begun, now - progress.seconds)
        if self.files is not None:
            noun, count, done = "file", self.files.pending, self.files_listed - self.files.pending
        elif self.watch is not None and (waiting := self.watch.waiting()) is not None:
            noun, count, done = "offset", waiting, sum(self.totals.values()) - self.done_before
        else:
            return None
        left = RemainingInput(count, noun, count * (now - self.begun) / done if done > 0 else None)
        if not count:
            self.begun, self.done_before = math.inf, sum(self.totals.values())
        return left

    def window_failed(self) -> None:
        """The work on a batch has failed."""
        if self.metrics is not None:
            self.metrics.failed("window")

    def source_away(self) -> None:
        """A source of files cannot be listed now."""
        if self.metrics is not None:
            self.metrics.source_away()

    def listed(self, source: FileBatches) -> None:
        """A source of files was listed: it has what is new now."""
        self.files, self.files_listed = source, source.pending
        self._report_files()

    def _report_files(self) -> None:
        files = self.files
        if self.metrics is not None and files is not None:
            self.metrics.source_files(pending=files.pending, since_s=files.waiting_since_s, changed=files.changed)


_FIRST = "the first one, which takes some seconds"
_FIRST_OF_EXECUTORS = (
    "the first one: the executors start their Python workers, which compile the kernels that they find in no cache: a "
    "minute or two"
)


class Windows:
    """Makes the windows of a run. For one thread at a time.

    `failure` is that of a window, or of the ownership. `by_executors`: the processes that judge are on a cluster.
    """

    def __init__(
        self,
        log: CommitLog,
        runner: WindowRunner,
        reports: Reports,
        stop: Stop,
        step: CurrentStep,
        max_windows: int | None,
        *,
        by_executors: bool = False,
    ) -> None:
        self._log = log
        self._first = _FIRST_OF_EXECUTORS if by_executors else _FIRST
        self._runner = runner
        self._reports = reports
        self._stop = stop
        self._step = step
        self._max_windows = max_windows
        self._free_memory = FreeMemory()
        self._made = 0
        self.failure: Exception | None = None

    @property
    def next_number(self) -> int:
        """The number of the next window, and of its batch."""
        return self._log.state.next_window

    @contextlib.contextmanager
    def attempted(self) -> Iterator[None]:
        """Around the work on a batch. Its failure is kept as `failure`, and raised where the run ends.

        Raises:
            StopRequested: as the work does.
        """
        try:
            yield
        except StopRequested as exc:
            logger.warning("%s", exc)
            raise
        except Exception as exc:  # noqa: BLE001  raised where the run ends
            self.failure = self.reason_to_stop(raised_in_worker(exc))
            self._reports.window_failed()

    def make(self, batch: SourceBatch, batch_id: int, judged: Callable[[SourceBatch], None]) -> None:
        """Make the window of a batch, within `attempted`.

        `judged` is given the batch that was committed, which may be less than `batch`.

        Raises:
            StopRequested: a stop was requested, and nothing of the batch is committed.
        """
        if self._stop.is_requested:
            raise StopRequested(f"batch {batch_id} came after the stop")
        first = None if self._made else self._first
        with self._step.of(f"window {self.next_number}", first), self._reports.window():
            committed = self._runner.run(WindowInput("", batch_id, batch), self._reports.window_ended)
        judged(committed)
        failpoints.hit("window.7.checkpoint")
        self._made += 1
        if self._max_windows is not None and self._made >= self._max_windows:
            # A stop that is requested earlier would shorten the waits of the publication.
            self._runner.wait_until_published()
            self._stop.request("max_windows")

    def listed(self, source: FileBatches) -> None:
        """A source of files was listed."""
        self._runner.fold_moved()
        self._reports.listed(source)

    def source_away(self) -> None:
        """A source of files cannot be listed now."""
        self._reports.source_away()

    def wait_until_published(self) -> None:
        """Wait for the end of the publication; its failure becomes the run's."""
        try:
            self._runner.wait_until_published()
        except StopRequested as exc:
            logger.warning("%s", exc)
        except Exception as exc:  # noqa: BLE001  raised where the run ends
            self._publication_failed(exc)

    def finish(self) -> None:
        """After the last window of a drained source."""
        self._runner.finish()

    def between(self) -> None:
        """Between two batches: notice a takeover, or a publication that has failed, also when there is no batch."""
        self._free_memory.return_when_due()
        try:
            self._log.check_owner()
            failure = self._runner.publication_failure
            if failure is not None and not isinstance(failure, StopRequested):
                self._publication_failed(failure)
                self._stop.request("failed")
        except StopRequested as exc:
            logger.warning("%s", exc)
        except FencedError as exc:
            self.failure = exc
            self._stop.request("fenced")
        except StorageAwayError as exc:  # for longer than the deadline
            self.failure = exc
            self._stop.request("failed")

    def _publication_failed(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = self.reason_to_stop(error)
            self._reports.window_failed()

    def reason_to_stop(self, error: Exception) -> Exception:
        """The error, or the takeover that explains it."""
        return reason_to_stop(self._log, error)
