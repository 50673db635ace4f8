"""The answer of `replay` as text: the plan, or the result."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from deduper.cli.terminal import pairs, table
from deduper.replay.run import ReplayReport
from deduper.units import approximate_size, counted, span


def render_replay(report: ReplayReport) -> list[RenderableType]:
    """What is read, what it costs and where it goes; or what came of it."""
    rows: list[tuple[str, object]] = [
        ("order", "by time: (expiry key, place)" if report.order == "time" else "arrival, as `run --once`"),
        ("files", f"{counted(report.files, 'file')}, {approximate_size(report.bytes)}" if report.bytes else None),
        ("left out", _left_out(report)),
        *(_estimate(report) if not report.is_executed else ()),
        ("store", report.store),
        *((port, place) for port, place in report.outputs.items()),
        ("sorts in", report.sorts_in if report.order == "time" and not report.is_over else None),
        ("windows", f"{report.windows:,}" if report.windows else None),
        ("came since", f"{counted(report.files_since, 'file')}, not judged" if report.files_since else None),
        ("report", report.report),
        ("verdict", _verdict(report)),
    ]
    parts: list[RenderableType] = [pairs([row for row in rows if row[1] is not None])]
    total = sum(report.judged.values())
    if total:
        judged = [(port, count, f"{count / total:.1%}") for port, count in report.judged.items()]
        parts.append(table(("port", "rows", "share"), judged))
    return parts


def _left_out(report: ReplayReport) -> str | None:
    return f"{counted(report.unfinished, 'file')}, empty or not finished by the writer" if report.unfinished else None


def _estimate(report: ReplayReport) -> list[tuple[str, object]]:
    of = report.estimate
    if of is None:
        return []
    from_to = (
        None if of.first is None else f"{of.first} to {of.last}, as far as {counted(of.sampled_files, 'file')} show"
    )
    return [
        ("records", f"about {of.records:,}"),
        ("expiry keys", from_to),
        ("time", f"about {span(max(1.0, of.core_seconds))} of one core"),
        ("keys in memory", None if of.state_bytes is None else f"up to {approximate_size(of.state_bytes)}"),
        ("rows of all ports", f"about {approximate_size(of.output_bytes)} before compression"),
    ]


def _verdict(report: ReplayReport) -> Text:
    if report.is_over:
        return Text("everything is judged", "green")
    if not report.is_executed:
        begun = (
            "a replay is under way: repeat with --execute"
            if report.windows
            else "nothing was changed: repeat with --execute"
        )
        return Text(begun, "yellow")
    return Text("interrupted: repeat the command", "yellow")
