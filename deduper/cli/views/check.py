"""The answer of `check` as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from deduper.admin.diagnosis import Diagnosis
from deduper.cli.terminal import pairs
from deduper.diagnostics import Severity
from deduper.units import counted

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def render(diagnosis: Diagnosis) -> list[RenderableType]:
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
