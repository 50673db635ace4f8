"""The answer of `replay-errors` as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.errors.replay import ReplayReport
from deduper.cli.terminal import counted, table

_MOST_FILES = 20
_MOST_ROWS = 10


def render(report: ReplayReport) -> list[RenderableType]:
    """A replay as text."""
    parts: list[RenderableType] = []
    if report.completed:
        parts.append(Text(f"completed an interrupted replay: {counted(len(report.completed), 'file')} got their names"))
    rows = counted(sum(report.rows.values()), "error row")
    if not report.rows:
        parts.append(Text("no error rows to send again"))
    elif not report.is_done:
        parts.append(Text(f"{rows} would be sent again"))
    elif report.number is None:
        parts.append(Text(f"{rows} sent again, each to the topic and partition that it was read from"))
    else:
        parts.append(Text(f"replay {report.number}: {rows} in {counted(len(report.files), 'new file')} of the source"))
    if report.rows:
        parts.append(table(("reason", "rows"), report.rows.items()))
    if report.files:
        parts.append(table(("file",), [(file,) for file in report.files[:_MOST_FILES]]))
    if report.left_out:
        parts.append(table(("left out", "rows"), report.left_out.items()))
    for lost in report.not_found[:_MOST_FILES]:
        numbers = ", ".join(map(str, lost.rows[:_MOST_ROWS])) + (", …" if len(lost.rows) > _MOST_ROWS else "")
        rows = f"row {numbers}" if len(lost.rows) == 1 else f"rows {numbers}"
        parts.append(Text(f"not sent: {lost.source}, {rows} (window {lost.window}): {lost.why}"))
    more = len(report.not_found) - _MOST_FILES
    if more > 0:
        parts.append(Text(f"not sent: rows of {counted(more, 'more file')}; `--json` has all"))
    return parts
