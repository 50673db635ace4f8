"""The answer of `explain` as text, and the progress of a long search."""

from __future__ import annotations

import sys
import time
from collections import Counter

import typer
from rich.console import RenderableType
from rich.text import Text

from deduper.admin.keys.explain import Explanation, SeenCopy
from deduper.cli.terminal import counted, pairs
from deduper.units import approximate_size

_STYLES = {"unique": "green", "duplicate": "cyan", "expired": "yellow", "error": "red"}
_WHY = {
    "same_window": "its first copy is in the same window",
    "earlier_window": "its first copy is in an earlier window",
    "older_than_period": "it was a period or more behind the latest point",
    "category_dropped": "its category was dropped",
}
_KNOWN_BY = {
    "duplicate": "known by its duplicates; its row was not found",
    "store": "known by the store; its row was not found",
}
_EVERY_S = 5.0


def render(found: Explanation) -> list[RenderableType]:
    """The copies one after another, then what could not be read."""
    key = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in found.key.items())
    counts = Counter(copy.verdict for copy in found.copies)
    listed = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    parts: list[RenderableType] = [
        pairs(
            [
                ("key", key),
                ("copies", f"{len(found.copies):,}: {listed}" if found.copies else "none found"),
                ("searched", f"{counted(found.rows, 'row')} in {counted(found.files, 'file')}"),
            ]
        )
    ]
    for copy in found.copies:
        parts += [Text(), _headline(copy), pairs(_details(copy))]
    if found.unread:
        parts += [
            Text(),
            Text("Not read:", style="bold"),
            *(Text(f"  {line}", style="yellow") for line in found.unread),
        ]
    return parts


def _headline(copy: SeenCopy) -> Text:
    when = f", begun {copy.when}" if copy.when else ""
    return Text.assemble((copy.verdict, f"bold {_STYLES[copy.verdict]}"), f" in window {copy.window}{when}")


def _details(copy: SeenCopy) -> list[tuple[str, object]]:
    record = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in copy.record.items())
    first = None if copy.first is None else f"{copy.first['place']}, window {copy.first['window']}"
    return [
        ("  why", _why(copy)),
        ("  first copy", first),
        ("  read from", copy.place or "not kept"),
        ("  written to", copy.output),
        ("  record", record or None),
    ]


def _why(copy: SeenCopy) -> str:
    if copy.known_by != "output":
        return f"the first copy; {_KNOWN_BY[copy.known_by]}"
    return _WHY.get(copy.reason, copy.reason.replace("_", " ")) if copy.reason else "the first copy"


class ScanProgress:
    """A line on standard error every few seconds of a search; on a terminal it is replaced, and removed at the end."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1
        self._is_shown = False

    def __call__(self, read: int, everything: int) -> None:
        """That many bytes of all are read."""
        if time.monotonic() < self._next:
            return
        is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.2 if is_terminal else _EVERY_S)
        text = f"read {approximate_size(read)} of {approximate_size(everything)}, {read / max(1, everything):.0%}"
        typer.echo(f"\r\x1b[K{text}" if is_terminal else text, err=True, nl=not is_terminal)
        self._is_shown = is_terminal

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            typer.echo("\r\x1b[K", err=True, nl=False)
