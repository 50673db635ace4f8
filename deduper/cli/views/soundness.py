"""The answers of `check`, `verify` and `gc` as text: what was found, then the verdict."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.gc import Garbage, GcReport
from deduper.admin.orphans import OrphanKind
from deduper.admin.verify.run import Verification
from deduper.cli.terminal import pairs, table
from deduper.diagnostics import Severity
from deduper.errors import ExitCode
from deduper.units import approximate_size, counted, format_duration

if TYPE_CHECKING:
    from deduper.preflight.checks import Diagnosis

_ORPHANS = {
    OrphanKind.PIECE: "piece",
    OrphanKind.RETIRED_PIECE: "retired piece",
    OrphanKind.DATABASE: "database",
    OrphanKind.SOURCES: "sources file",
    OrphanKind.STAGING: "staging folder",
    OrphanKind.INTENT: "intent",
    OrphanKind.TEMPORARY: "temporary file",
}


def render_verify(report: Verification) -> list[RenderableType]:
    """The result as text."""
    lines: list[RenderableType] = [Text(str(finding), style="red") for finding in report.findings]
    lines += [
        Text(f"{check.id}: and {count:,} more of this kind", style="red") for check, count in report.unlisted.items()
    ]
    lines += [Text(f"note: {note}", style="yellow") for note in report.notes]
    lines.append(
        pairs(
            [
                ("log", counted(report.records, "record")),
                (
                    "pieces",
                    f"{report.pieces:,} with {counted(report.entries, 'key')}, {approximate_size(report.size_bytes)}",
                ),
                ("sources", counted(report.sources, "file")),
                ("outputs", _outputs_line(report)),
                ("orphans", _orphans_line(report)),
                ("checks", f"{len(report.ran)} of {len(report.checks)} run"),
                *(("not run", line) for line in _skipped_lines(report)),
                ("verdict", _of_verification(report)),
                ("next", None if report.is_sound else _ADVICE[report.exit_code]),
            ]
        )
    )
    return lines


_ADVICE = {
    ExitCode.INTEGRITY: "start nothing on this store, keep it unchanged: restore a copy, or fill a new store from the "
    "outputs with `deduper seed --outputs` (docs/recovery.md)",
    ExitCode.UNHEALTHY: "nothing is lost; correct the findings above, then verify again",
}


def _of_verification(report: Verification) -> Text:
    if report.is_sound:
        return Text("sound: every check that ran has passed", style="green")
    count = len(report.findings) + sum(report.unlisted.values())
    return Text(f"NOT sound: {counted(count, 'problem')} found", style="bold red")


def _outputs_line(report: Verification) -> str | None:
    if not report.outputs:
        return None
    return f"{counted(report.outputs, 'file')}, {approximate_size(report.output_bytes)}"


def _orphans_line(report: Verification) -> str:
    counts = Counter(orphan.kind for orphan in report.orphans)
    listed = ", ".join(counted(count, _ORPHANS[kind]) for kind, count in sorted(counts.items()))
    return f"{listed}: harmless; `deduper gc` lists what can be deleted" if listed else "none"


def _skipped_lines(report: Verification) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for check, why in report.skipped.items():
        by_reason.setdefault(why, []).append(check.id)
    return [f"{', '.join(ids)}: {why}" for why, ids in by_reason.items()]


_MOST_SHOWN = 200


def render_gc(report: GcReport) -> list[RenderableType]:
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
                ("verdict", _of_garbage(report, going)),
            ]
        )
    )
    return answers


def _state(item: Garbage) -> str:
    if item.is_deleted:
        return "deleted"
    return f"kept: {item.kept}" if item.kept else "can be deleted"


def _of_garbage(report: GcReport, going: list[Garbage]) -> Text:
    size = approximate_size(sum(item.size_bytes for item in going))
    if report.owner_lives:
        refused = "; nothing was deleted" if report.is_deleting else ""
        return Text(f"a job runs on this store: it discards its own orphans at its next start{refused}", "yellow")
    if report.is_deleting and going:
        return Text(f"{len(going):,} deleted, {size}", "green")
    if not going:
        return Text(f"nothing to delete (grace {format_duration(report.grace_us)})", "green")
    return Text(f"{len(going):,} can be deleted, {size}: repeat with --delete", "yellow")


_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def render_check(diagnosis: Diagnosis) -> list[RenderableType]:
    """Errors, warnings, notes, then the verdict."""
    order = list(_STYLES)
    shown = sorted(diagnosis.diagnostics, key=lambda diagnostic: order.index(diagnostic.severity))
    lines: list[RenderableType] = [
        Text(f"{diagnostic.severity}: {diagnostic}", style=_STYLES[diagnostic.severity]) for diagnostic in shown
    ]
    counts = {severity: sum(diagnostic.severity is severity for diagnostic in shown) for severity in order}
    errors, warnings = counts[Severity.ERROR], counts[Severity.WARNING]
    also = f", with {counted(warnings, 'warning')}" if warnings else ""
    found = f"{counted(errors, 'problem')} found{also}"
    good = "the job runs" if diagnosis.is_running else "ready to start"
    verdict = Text(f"{good}{also}", "green") if diagnosis.is_healthy else Text(found, "red")
    return [*lines, pairs([("job", diagnosis.job), ("verdict", verdict)])]
