"""A run of a range stream: windows until the inputs are drained, or until it is stopped."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bucket_store.places.outages import waiting
from deduper.errors import StopRequested
from deduper.ranges.stream.runner import StreamRunner, owned_store
from deduper.ranges.stream.settings import StreamJob
from deduper.ranges.stream.status import StreamRun
from deduper.service.stop import Stop, restoring_handlers
from deduper.sinks.publish_state import OnUnknown
from deduper.window.present_clock import wall_clock_us
from deduper.window.recovery import telling_takeover

if TYPE_CHECKING:
    from deduper.ranges.stream.metrics import StreamMetrics


def run(
    job: StreamJob,
    *,
    once: bool,
    take_over: bool,
    on_progress: Callable[[int, StreamRun], None],
    max_windows: int | None = None,
    unpublished: OnUnknown = OnUnknown.REFUSE,
    stop: Stop | None = None,
) -> StreamRun:
    """Run windows as `service.job.run` does; `on_progress` gets the number of each, and its rows.

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
        owned_store(
            job, take_over=take_over, wall_clock_us=wall_clock_us, unpublished=unpublished, stop=stop.event
        ) as owned,
        telling_takeover(owned.log),
    ):
        runner = StreamRunner(job, owned, wall_clock_us, drain=once)
        if listens:  # until here a signal ends the process at once, also while it waits for brokers
            stop.listen()
        if metrics is not None:
            metrics.follow(runner)
        # A wait for brokers ends: nothing of the window is committed, or the next start publishes it.
        with contextlib.suppress(StopRequested):
            while not stop.is_requested:
                is_planned = runner.plan()
                if metrics is not None:
                    metrics.looked()
                if not is_planned:
                    if once or stop.wait(job.trigger / 1e6):
                        break
                    continue
                begun = time.monotonic()
                with contextlib.nullcontext() if metrics is None else metrics.window():
                    window, counts = runner.run()
                made = StreamRun(1, counts, time.monotonic() - begun)
                if metrics is not None:
                    metrics.published(window, made.seconds)
                windows += 1
                totals.update(counts)
                on_progress(window, made)
                if windows == max_windows:
                    stop.request("max_windows")
    return StreamRun(windows, dict(totals), time.monotonic() - began, stop.reason)


def _metrics(job: StreamJob) -> contextlib.AbstractContextManager[StreamMetrics | None]:
    if job.metrics is None:
        return contextlib.nullcontext()
    # It loads more than a stream without a page needs.
    from deduper.ranges.stream.metrics import StreamMetrics
    from deduper.service.window_metrics import serving_metrics

    return serving_metrics(job, job.metrics, wall_clock_us, StreamMetrics)
