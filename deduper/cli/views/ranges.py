"""The answers of `range-aggregate` and `range-stream` as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from deduper.cli.terminal import pairs
from deduper.ranges.batch.report import RangeReport, plan_text
from deduper.ranges.stream.report import StreamReport, StreamStatus
from deduper.units import counted, format_time

_ENDS = {"drained": "inputs drained", "signal": "stopped by a signal"}


def render(report: RangeReport) -> list[RenderableType]:
    """Rows, and bad rows by side and reason."""
    return [
        pairs(
            [
                ("plan", plan_text(report.per, report.indexed_rows, report.parts, report.sliced_ids)),
                ("rows written", None if report.rows is None else f"{report.rows:,}"),
                *((f"bad: {reason}", f"{count:,}") for reason, count in report.errors.items()),
                ("seconds", report.seconds),
            ]
        )
    ]


def render_stream(report: StreamReport) -> list[RenderableType]:
    """Windows and rows of the run, then the state."""
    return [
        pairs(
            [
                *_state(report),
                ("end", _ENDS.get(report.stopped_by, report.stopped_by)),
                ("seconds", f"{report.seconds:.3f}"),
            ]
        )
    ]


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
                *_state(status),
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


def _state(report: StreamReport | StreamStatus) -> Iterator[tuple[str, str]]:
    yield "windows", f"{report.windows:,}"
    yield from ((name, f"{count:,}") for name, count in sorted(report.counts.items()))
    yield from ((f"{side} taken up to", str(one)) for side, one in sorted(report.inputs.items()))
    yield "open ranges", f"{report.open_ranges:,} in {counted(report.levels, 'level')}"
    yield "remembered events", f"{report.remembered_events:,}"


def _time(us: int | None) -> str:
    return "none" if us is None else format_time(us)
