"""The answer of `gc` as text: orphans, and those that were deleted."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.gc import Garbage, GcReport
from deduper.cli.terminal import pairs, table
from deduper.units import approximate_size, format_duration

_MOST_SHOWN = 200


def render(report: GcReport) -> list[RenderableType]:
    """The orphans by kind and reason, their sum, and what to do next."""
    answers: list[RenderableType] = []
    groups: dict[tuple[str, str, str], list[Garbage]] = {}
    for item in report.garbage:
        groups.setdefault((item.kind, item.why, _state(item)), []).append(item)
    if groups:
        rows = [
            (kind, len(items), approximate_size(sum(item.size_bytes for item in items)), items[0].path, why, state)
            for (kind, why, state), items in list(groups.items())[:_MOST_SHOWN]
        ]
        answers.append(table(("kind", "files", "size", "the first one", "why", "state"), rows))
    going = [item for item in report.garbage if not item.kept]
    answers.append(
        pairs(
            [
                ("orphans", f"{len(report.garbage):,}, {approximate_size(report.size_bytes)}"),
                ("shown", f"{_MOST_SHOWN} groups of {len(groups):,}" if len(groups) > _MOST_SHOWN else None),
                ("not seen", ", ".join(report.unknown) or None),
                ("verdict", _verdict(report, going)),
            ]
        )
    )
    return answers


def _state(item: Garbage) -> str:
    if item.is_deleted:
        return "deleted"
    return f"kept: {item.kept}" if item.kept else "can be deleted"


def _verdict(report: GcReport, going: list[Garbage]) -> Text:
    size = approximate_size(sum(item.size_bytes for item in going))
    if report.owner_lives:
        refused = "; nothing was deleted" if report.is_deleting else ""
        return Text(f"a job runs on this store: it discards its own orphans at its next start{refused}", "yellow")
    if report.is_deleting and going:
        return Text(f"{len(going):,} deleted, {size}", "green")
    if not going:
        return Text(f"nothing to delete (grace {format_duration(report.grace_us)})", "green")
    return Text(f"{len(going):,} can be deleted, {size}: repeat with --delete", "yellow")
