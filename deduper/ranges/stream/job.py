"""The command's work: windows until the inputs are drained, or until it is stopped."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bucket_store.places.outages import waiting
from deduper.errors import StopRequested
from deduper.ranges.stream.report import StreamReport, input_reports
from deduper.ranges.stream.runner import StreamRunner, owned_store
from deduper.ranges.stream.settings import StreamJob
from deduper.service.stop import Stop, restoring_handlers
from deduper.sinks.publish_state import OnUnknown
from deduper.window.recovery import reason_to_stop

if TYPE_CHECKING:
    from deduper.ranges.stream.metrics import StreamMetrics


def run(
    job: StreamJob,
    *,
    once: bool,
    take_over: bool,
    on_progress: Callable[[str], None],
    unpublished: OnUnknown = OnUnknown.REFUSE,
    stop: Stop | None = None,
) -> StreamReport:
    """Run windows; after the start a signal ends it after the window at hand.

    `unpublished`: see `deduper run --unpublished`.

    Raises:
        FencedError: another owner has taken the store.
        DeduperError, StoreError: as `runner`; the state is as the last commit left it.
    """
    began = time.monotonic()
    totals: Counter[str] = Counter()
    windows = 0
    listens, stop = stop is None, stop or Stop()
    with (
        restoring_handlers(),
        waiting(job.ports_deadline / 1e6, stop.event, StopRequested),
        _metrics(job) as metrics,
        owned_store(job, take_over=take_over, wall_clock_us=_now_us, unpublished=unpublished, stop=stop.event) as owned,
    ):
        log = owned.log
        try:
            runner = StreamRunner(job, owned, _now_us, drain=once)
            if listens:  # until here a signal ends the process at once, also while it waits for brokers
                stop.listen()
            if metrics is not None:
                metrics.opened(runner)
            # A wait for brokers ends: nothing of the window is committed, or the next start publishes it.
            with contextlib.suppress(StopRequested):
                while not stop.is_requested:
                    with contextlib.nullcontext() if metrics is None else metrics.window():
                        counts = runner.run()
                    if counts is not None:
                        windows += 1
                        totals.update(counts)
                        on_progress(f"window {log.state.next_window - 1}: {_text(counts)}")
                    elif once or stop.wait(job.trigger / 1e6):
                        break
        except Exception as exc:
            raise reason_to_stop(log, exc) from exc
        state = runner.state
        return StreamReport(
            windows=windows,
            counts=dict(totals),
            next_window=log.state.next_window,
            clock_us=state.clock,
            inputs=input_reports(log.state),
            open_ranges=sum(level.rows.num_rows for level in state.ranges),
            levels=len(state.ranges),
            remembered_events=sum(level.rows.num_rows for level in state.events),
            stopped_by=stop.reason,
            seconds=time.monotonic() - began,
        )


def _metrics(job: StreamJob) -> contextlib.AbstractContextManager[StreamMetrics | None]:
    if job.metrics is None:
        return contextlib.nullcontext()
    # It loads more than a stream without a page needs.
    from deduper.ranges.stream.metrics import serving_metrics

    return serving_metrics(job, job.metrics, _now_us)


def _text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _now_us() -> int:
    return time.time_ns() // 1000
