"""The answers of `range-aggregate`, and of commands on a range stream, as text."""

from __future__ import annotations

from rich.console import RenderableType

from deduper.cli.terminal import pairs
from deduper.ranges.batch.job import RangeReport
from deduper.ranges.stream.status import StreamRun, StreamStatus
from deduper.units import counted, format_time
from deduper.window.progress import STOPPED


def render(report: RangeReport) -> list[RenderableType]:
    """Rows, and bad rows by side and reason."""
    return [
        pairs(
            [
                (f"{'range' if report.per == 'event' else 'event'}s indexed", f"{report.indexed_rows:,}"),
                ("rows written", f"{report.rows:,}"),
                *((f"bad: {reason}", f"{count:,}") for reason, count in report.errors.items()),
                ("seconds", report.seconds),
            ]
        )
    ]


def counts_line(run: StreamRun) -> str:
    """The rows of some windows by outcome, and the seconds, on one line."""
    counts = [f"{count:,} {name}" for name, count in sorted(run.counts.items())]
    return f"{', '.join(counts) or 'no rows'}; {run.seconds:,.1f} s"


def summary_line(run: StreamRun) -> str:
    """A run on one line."""
    end = STOPPED.get(run.stopped_by or "", run.stopped_by)
    return f"{counted(run.windows, 'window')}, {counts_line(run)}; {end}"


def render_status(status: StreamStatus) -> list[RenderableType]:
    """The store, then its windows and rows, then the state."""
    owner = _running(status) if status.owner is None else f"{status.owner}, {_running(status)}"
    return [
        pairs(
            [
                ("store", status.store_id[:8]),
                ("owner", owner),
                ("published", "nothing" if status.published is None else f"window {status.published}"),
                ("last commit", _time(status.last_commit_us)),
                ("clock", _time(status.clock_us)),
                ("windows", f"{status.windows:,}"),
                *((name, f"{count:,}") for name, count in sorted(status.counts.items())),
                *((f"{side} taken up to", str(one)) for side, one in sorted(status.inputs.items())),
                ("open ranges", f"{status.open_ranges:,} in {counted(status.levels, 'level')}"),
                ("remembered events", f"{status.remembered_events:,}"),
            ]
        )
    ]


def line(status: StreamStatus) -> str:
    """The status on one line."""
    counts = (f"{count:,} {name}" for name, count in sorted(status.counts.items()))
    return ", ".join((f"{_running(status)}; {counted(status.windows, 'window')}", *counts))


def _running(status: StreamStatus) -> str:
    end = status.last_end
    how = "" if end is None else " since {at}: exit {exit_code}, {message}".format_map(end)
    return "running" if status.is_running else f"not running{how}"


def _time(us: int | None) -> str:
    return "none" if us is None else format_time(us)
