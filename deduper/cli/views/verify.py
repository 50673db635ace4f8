"""The answer of `verify` as text: findings, then counts and the verdict."""

from __future__ import annotations

from collections import Counter

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.orphans import OrphanKind
from deduper.admin.verify.run import FOR_TESTS, Verification
from deduper.cli.terminal import pairs
from deduper.errors import ExitCode
from deduper.units import approximate_size, counted

_ORPHANS = {
    OrphanKind.PIECE: "piece",
    OrphanKind.RETIRED_PIECE: "retired piece",
    OrphanKind.DATABASE: "database",
    OrphanKind.SOURCES: "sources file",
    OrphanKind.STAGING: "staging folder",
    OrphanKind.INTENT: "intent",
    OrphanKind.TEMPORARY: "temporary file",
}


def render(report: Verification) -> list[RenderableType]:
    """The result as text."""
    lines: list[RenderableType] = [Text(str(finding), style="red") for finding in report.findings]
    lines += [
        Text(f"{check.id}: and {count:,} more of this kind", style="red") for check, count in report.unlisted.items()
    ]
    lines += [Text(f"note: {note.text}", style="yellow") for note in report.notes]
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
                ("verdict", _verdict(report)),
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


def _verdict(report: Verification) -> Text:
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
        if check not in FOR_TESTS:
            by_reason.setdefault(why, []).append(check.id)
    return [f"{', '.join(ids)}: {why}" for why, ids in by_reason.items()]
