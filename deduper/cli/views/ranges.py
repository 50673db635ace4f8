"""The answers of `range-aggregate` and `range-stream` as text."""

from __future__ import annotations

from rich.console import RenderableType

from deduper.cli.terminal import pairs
from deduper.range_job.report import Report, plan_text
from deduper.range_stream.report import StreamReport


def render(report: Report) -> list[RenderableType]:
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
                ("windows", f"{report.windows:,}"),
                *((name, f"{count:,}") for name, count in sorted(report.counts.items())),
                *((f"{side} taken up to", str(one)) for side, one in sorted(report.inputs.items())),
                ("open ranges", f"{report.open_ranges:,} in {report.levels} levels"),
                ("remembered events", f"{report.remembered_events:,}"),
                ("stopped by", report.stopped_by),
                ("seconds", report.seconds),
            ]
        )
    ]
