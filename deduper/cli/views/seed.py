"""The answer of `seed` as text: the plan, or what was read and its proof."""

from __future__ import annotations

import json
from collections.abc import Callable

import typer
from rich.console import RenderableType
from rich.text import Text

from deduper.cli.terminal import pairs
from deduper.seeding.run import SeedReport
from deduper.units import counted
from deduper.window.progress import BatchProgress, progress_line


def progress_printer(*, is_quiet: bool) -> Callable[[BatchProgress], None]:
    """Prints a line for each window, on standard error."""

    def shown(progress: BatchProgress) -> None:
        if not is_quiet:
            typer.echo(progress_line(progress), err=True)

    return shown


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
        ("verdict", _verdict(report)),
    ]
    return [pairs([row for row in rows if row[1] is not None])]


def _extent(report: SeedReport) -> str:
    return counted(report.files, "file") if report.files is not None else counted(report.offsets or 0, "offset")


def _verdict(report: SeedReport) -> Text:
    if not report.is_executed:
        again = "interrupted: repeat the command" if report.counts else "nothing was changed: repeat with --execute"
        return Text(again, "yellow")
    final = "`unique` is final" if report.is_complete else "`unique` means unique so far"
    lost = sum(report.reasons.values())
    if lost:
        return Text(f"the keys count; {final}, but for {counted(lost, 'row')} that left no key: see errors", "yellow")
    return Text(f"the keys count; {final}", "green")
