"""The answer of `repair` as text: damage, and its repair."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.repair.plan import QUARANTINE
from deduper.admin.repair.report import PieceRepair, RepairReport, Way
from deduper.cli.terminal import counted, pairs

_COLOURS = {Way.REBUILD: "green", Way.DROP: "green", Way.FORGET: "yellow", Way.NONE: "red"}


def render(report: RepairReport) -> list[RenderableType]:
    """Every damaged piece with its repair, the consequence, and what to do next."""
    answers: list[RenderableType] = []
    for repair in report.repairs:
        answers.append(Text(_headline(repair), style="bold"))
        damage = repair.damage
        answers.append(
            Text(
                f"    {repair.piece.file}: at byte {damage.offset}: {damage.what}: expected {damage.expected}, "
                f"found {damage.found}"
            )
        )
        state = "" if repair not in report.waiting or repair.way is Way.NONE else " (waits for the others of its file)"
        answers.append(
            Text(
                f"    {_verb(repair.way, done=_is_done(report, repair))}{state}: {repair.why}",
                style=_COLOURS[repair.way],
            )
        )
    for item in report.sources:
        answers.append(Text(f"window {item.window}: {item.name}: the list of its source files", style="bold"))
        answers.append(Text(f"    {item.error}"))
        verb = _verb(item.way, done=report.is_applied and item.way is Way.REBUILD)
        answers.append(Text(f"    {verb}: {item.why}", style=_COLOURS[item.way]))
    rows: list[tuple[str, object]] = [("pieces", f"{report.pieces_read:,} read, {len(report.repairs):,} damaged")]
    if report.left_files:
        moved = "moved to" if report.is_applied else "would move to"
        rows.append(
            (
                "files",
                f"{', '.join(report.left_files)}: {moved} {QUARANTINE}/, "
                f"{counted(report.copied, 'sound piece')} copied",
            )
        )
    if report.unfinished:
        rows.append(("unfinished", f"{', '.join(report.unfinished)}: of an interrupted repair"))
    if report.consequence:
        rows.append(("lost", Text(report.consequence, style="red")))
    rows.append(("verdict", _verdict(report)))
    answers.append(pairs(rows))
    return answers


def _is_done(report: RepairReport, repair: PieceRepair) -> bool:
    return report.is_applied and repair not in report.waiting


def _headline(repair: PieceRepair) -> str:
    piece = repair.piece
    return (
        f"window {piece.first_window}, shard {piece.shard}: {counted(piece.entries, 'key')} in buckets "
        f"{piece.min_bucket} to {piece.max_bucket}"
    )


def _verb(way: Way, *, done: bool) -> str:
    match way:
        case Way.REBUILD:
            return "rebuilt, byte for byte" if done else "can be rebuilt, byte for byte"
        case Way.DROP:
            return "dropped" if done else "can be dropped"
        case Way.FORGET:
            return "forgotten" if done else "would be forgotten"
        case Way.NONE:
            return "cannot be rebuilt"


def _verdict(report: RepairReport) -> Text:
    if report.is_sound:
        return Text("every piece is as the log says", style="green")
    stuck = [repair for repair in report.repairs if repair.way is Way.NONE]
    lists = sum(item.way is Way.NONE for item in report.sources)
    if lists and not stuck:
        return Text(
            f"{counted(lists, 'list')} of source files cannot be rebuilt: restore from a copy, or start a new store "
            "from the source (docs/recovery.md)",
            style="bold red",
        )
    if not stuck:
        return Text("repeat with --apply while no job runs", style="yellow")
    labels = " ".join(f"--forget {repair.label}" for repair in stuck[:3]) + (" …" if len(stuck) > 3 else "")
    count = "1 piece needs" if len(stuck) == 1 else f"{len(stuck):,} pieces need"
    return Text(
        f"{count} a decision: give the outputs with --from DIR, remove it with {labels}, or start a "
        "new store from the source (docs/recovery.md)",
        style="bold red",
    )
