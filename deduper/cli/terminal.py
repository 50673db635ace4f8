"""Layout of answers: tables and lines for people, JSON for programs.

Colour and width follow the terminal; a file or a pipe gets plain text, wide enough that nothing is cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deduper.window.progress import BatchProgress, progress_line

_PIPE_WIDTH = 200


def answer_console() -> Console:
    """The console of answers, on standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_json(value: Any) -> None:
    """One JSON document, indented, on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def counted(count: int, noun: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def pairs(rows: Iterable[tuple[str, object]]) -> Table:
    """Names and values in two columns; rows whose value is None are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return grid


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """A table without frames; columns of numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    result = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for position, name in enumerate(head):
        is_number = bool(cells) and all(_is_number(row[position]) for row in cells)
        result.add_column(name, justify="right" if is_number else "left", overflow="fold", header_style="dim")
    for row in cells:
        result.add_row(*(Text(cell) for cell in row))
    return result


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: str) -> bool:
    return cell == "–" or cell.rstrip("%").replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def progress_text(progress: BatchProgress) -> Text:
    """The line of a window, its errors in red when there are any."""
    text = Text(progress_line(progress))
    if progress.error:
        text.highlight_regex(r"error +[\d,]+", "red")
    text.highlight_regex(r"latest .*$", "dim")
    return text
