"""The answer of `range-aggregate` as text: the plan, and what was written."""

from __future__ import annotations

from rich.console import RenderableType

from deduper.cli.terminal import pairs
from deduper.range_job.report import Report, plan_text


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
