"""The answers of the commands that move or fill a store, as text: the plan, or what was done and its proof."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType
from rich.text import Text

from deduper.admin.move.backup import CopyReport
from deduper.admin.move.export import ExportReport
from deduper.admin.move.forget import ForgetReport
from deduper.admin.move.reshard import ReshardReport
from deduper.admin.move.rewind import ASIDE, RewindReport
from deduper.cli.terminal import pairs
from deduper.units import approximate_size, counted

if TYPE_CHECKING:
    from deduper.seeding.run import SeedReport


class PartsShown:
    """Shows on a terminal how many parts are finished, on standard error."""

    def __init__(self, noun: str = "part") -> None:
        self._noun = noun

    def __call__(self, finished: int, parts: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{finished:,} of {counted(parts, self._noun)}", err=True, nl=finished == parts)


def render_reshard(report: ReshardReport) -> list[RenderableType]:
    """From how many shards to how many, the sums before and after, and what to do next."""
    rows: list[tuple[str, object]] = [("shards", f"{report.shards_before:,} → {report.shards_after:,}")]
    if report.is_needed:
        finished = f", {report.parts_finished:,} finished before" if report.parts_finished else ""
        size = approximate_size(report.size_bytes)
        rows.append(("keys", f"{counted(report.keys, 'key')} in {counted(report.pieces_before, 'piece')}, {size}"))
        rows.append(("parts", f"{report.parts:,}{finished}"))
    if report.before is not None and report.superseded is not None:
        rows.append(("before", report.before))
        rows.append(("superseded", report.superseded if report.superseded.count else None))
        rows.append(("after", f"{report.after} in {counted(report.pieces_after, 'piece')}"))
    return [pairs([*rows, ("verdict", _of_reshard(report))])]


def _of_reshard(report: ReshardReport) -> Text:
    if not report.is_needed:
        return Text(f"the store has {report.shards_after:,} shards; nothing to do", "green")
    if report.is_executed:
        return Text(f"every key is in its new shard; set store.shards: {report.shards_after} in the config", "green")
    room = approximate_size(report.size_bytes)
    return Text(
        f"needs {room} more on disk until the old pieces are deleted: repeat with --execute, no job running", "yellow"
    )


def render_copy(report: CopyReport) -> list[RenderableType]:
    """From where to where, the sums of both, and what to do next."""
    there = f", {report.pieces_there:,} there already" if report.pieces_there else ""
    size = approximate_size(report.size_bytes)
    rows: list[tuple[str, object]] = [
        ("store", report.source),
        ("copy", report.target),
        ("state", f"{counted(report.windows, 'window')}, up to record {report.record:,}"),
        ("keys", f"{counted(report.keys, 'key')} in {counted(report.pieces, 'piece')}, {size}{there}"),
        ("before", report.before),
        ("after", report.after),
    ]
    done = Text("the copy is whole", "green")
    return [pairs([*rows, ("verdict", done if report.is_executed else Text("repeat with --execute", "yellow"))])]


def render_export(report: ExportReport) -> list[RenderableType]:
    """Which state, how many keys, the sums of store and files, and what to do next."""
    there = f", {report.shards_there:,} there already" if report.shards_there and not report.is_executed else ""
    rows: list[tuple[str, object]] = [
        ("folder", report.directory),
        ("state", f"{counted(report.windows, 'window')}, up to record {report.record:,}"),
        ("entries", f"{report.entries:,} in {counted(report.shards, 'shard')}{there}"),
        ("store", report.store),
        ("files", report.files),
    ]
    done = Text("the files hold every live key", "green")
    return [pairs([*rows, ("verdict", done if report.is_executed else Text("repeat with --execute", "yellow"))])]


def render_forget(report: ForgetReport) -> list[RenderableType]:
    """The digest and its entries, the sums before and after, and what to do next."""
    held = f"{counted(report.entries, 'entry', 'entries')} in {counted(report.pieces, 'piece')} of shard {report.shard}"
    rows: list[tuple[str, object]] = [
        ("digest", report.digest),
        ("held", held),
        ("before", report.before),
        ("after", report.after),
        ("audit", report.audit),
    ]
    if not report.entries:
        verdict = Text("the key is not remembered; nothing to do", "green")
    elif report.is_executed:
        verdict = Text("the key is forgotten; the job deletes the old pieces ten minutes after its start", "green")
    else:
        verdict = Text(
            f"rewrites pieces of {counted(report.keys, 'key')}: repeat with --execute, no job running", "yellow"
        )
    return [pairs([*rows, ("verdict", verdict)])]


def render_rewind(report: RewindReport) -> list[RenderableType]:
    """How many windows are undone, the outputs of these, the sums, and what to do next."""
    done = report.is_executed
    answers: list[RenderableType] = [Text(f"    {file}") for file in report.outputs]
    if answers:
        answers.insert(0, Text(f"outputs {'moved' if done else 'to be moved'} into {ASIDE}/ of their folders:"))
    rows: list[tuple[str, object]] = [
        ("undone", counted(report.windows_undone, "window")),
        ("pieces", f"{report.pieces:,}, {report.pieces_copied:,} {'copied' if done else 'to be copied'}"),
        ("before", report.before if report.pieces else None),
        ("after", report.after if report.pieces else None),
    ]
    if done:
        verdict = Text(f"the store is as it was after window {report.to_window}; tell readers of the outputs", "green")
    else:
        verdict = Text("repeat with --execute, no job running", "yellow")
    return [*answers, pairs([*rows, ("verdict", verdict)])]


def render_seed(report: SeedReport) -> list[RenderableType]:
    """The input, its verdicts, the keys before and after, and the mark."""
    counts = ", ".join(f"{count:,} {port}" for port, count in report.counts.items())
    rows: list[tuple[str, object]] = [
        ("input", f"{report.input}, {_extent(report)}"),
        ("judged", f"{counts} in {counted(report.windows, 'window')}" if report.counts else None),
        ("errors", ", ".join(f"{rows:,} {name}" for name, rows in report.reasons.items()) or None),
        ("before", report.before),
        ("died since", f"{counted(report.died, 'key')}, by expiry: before + unique - after" if report.died else None),
        ("after", report.after),
        ("complete since", report.complete_since),
        ("read up to", json.dumps(report.until) if report.until is not None else None),
        ("verdict", _of_seed(report)),
    ]
    return [pairs([row for row in rows if row[1] is not None])]


def _extent(report: SeedReport) -> str:
    return counted(report.files, "file") if report.files is not None else counted(report.offsets or 0, "offset")


def _of_seed(report: SeedReport) -> Text:
    if not report.is_executed:
        again = "interrupted: repeat the command" if report.counts else "nothing was changed: repeat with --execute"
        return Text(again, "yellow")
    final = "`unique` is final" if report.is_complete else "`unique` means unique so far"
    lost = sum(report.reasons.values())
    if lost:
        return Text(f"the keys count; {final}, but for {counted(lost, 'row')} that left no key: see errors", "yellow")
    return Text(f"the keys count; {final}", "green")
