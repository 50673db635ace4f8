"""Layout of answers: tables and lines for people, JSON for programs; one answer again and again (`--watch`).

Colour and width follow the terminal; a file or a pipe gets plain text, wide enough that nothing is cut.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from deduper.units import format_time
from deduper.window.progress import BatchProgress, json_line, phases_line, progress_line

if TYPE_CHECKING:
    from deduper.as_json import AsJson


_PIPE_WIDTH = 200


def answer_console(*, err: bool = False) -> Console:
    """The console of answers, on standard output; with `err` that of lines beside an answer, on standard error."""
    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)


def print_json(value: Any) -> None:
    """One JSON document, indented, on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def say(message: Text | str, *, err: bool = True) -> None:
    """Print a message, on standard error unless told otherwise: broken between words on a terminal, else as it is."""
    text = Text(message) if isinstance(message, str) else message
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        print_parts(Console(file=stream, highlight=False), [text])
    else:
        typer.echo(text.plain, err=err)


class Messages(logging.Handler):
    """Log lines on standard error, as messages."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line; its colours stay."""
        try:
            say(Text.from_ansi(self.format(record)))
        except Exception:  # noqa: BLE001  as every handler: a line that cannot be written stops nothing
            self.handleError(record)


def print_parts(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print the parts of an answer below one another. A word wider than the terminal is left whole."""
    lines = [line for part in parts for line in (wrapped(part, console.width) if isinstance(part, Text) else [part])]
    console.print(*lines, sep="\n", overflow="ignore", crop=False)


def wrapped(text: Text, width: int) -> list[Text]:
    """The lines of a text, broken between words alone; an indented text stays indented."""
    indent = len(text.plain) - len(text.plain.lstrip(" "))
    lines, start, used = [0], 0, 0
    for word in re.finditer(r"[^ \n]+|\n", text.plain):
        if word[0] == "\n":
            start = word.end()
            lines.append(start)
        elif used and (indent if start else 0) + cell_len(text.plain[start : word.end()]) > width:
            start = word.start()
            lines.append(start)
        used = word[0] != "\n"
    parts = text.divide(lines[1:])
    for number, part in enumerate(parts):
        part.rstrip()
        if number and indent:
            part.pad_left(indent)
    return list(parts)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values in two columns. Values wrap between words, and no word is broken."""

    rows: tuple[tuple[str, Text], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((len(name) for name, _ in self.rows), default=0) + 2
        for name, value in self.rows:
            lines = wrapped(value, max(1, options.max_width - widest))
            for number, line in enumerate(lines):
                name_cell = ("" if number else name).ljust(widest)
                whole = Text.assemble((name_cell, "dim"), line, overflow="ignore", no_wrap=True)
                whole.rstrip()
                yield whole


def pairs(rows: Iterable[tuple[str, object]]) -> Pairs:
    """Names and values in two columns; rows whose value is None are left out."""
    return Pairs(
        tuple(
            (name, value if isinstance(value, Text) else Text(str(value))) for name, value in rows if value is not None
        )
    )


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table that suits its width: columns wrap between words, then `optional` ones are left out, the last one first.

    If a table still has no room, each row is a block of names and values.
    """

    head: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    title: str
    optional: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(range(len(self.head)))
        left_out = [self.head.index(name) for name in reversed(self.optional)]
        while (widths := _fitted([self._column(at) for at in shown], options.max_width)) is None and left_out:
            shown.remove(left_out.pop(0))
        yield Text()
        if self.title:
            yield Text(self.title, style="bold")
        if widths is None:
            for number, row in enumerate(self.cells):
                if number:
                    yield Text()
                yield pairs([(name or "state", cell) for name, cell in zip(self.head, row, strict=True) if cell])
            return
        is_number = [bool(self.cells) and all(_is_number(row[at]) for row in self.cells) for at in shown]
        rule = tuple("─" * width for width in widths)
        for row, style in (
            (self._of(self.head, shown), "dim"),
            (rule, "dim"),
            *((row, "") for row in self._rows(shown)),
        ):
            columns = [wrapped(Text(cell), width) for cell, width in zip(row, widths, strict=True)]
            for line in zip_longest(*columns, fillvalue=Text()):
                aligned = []
                for part, width, to_right in zip(line, widths, is_number, strict=True):
                    room = " " * (width - part.cell_len)
                    aligned.append(room + part.plain if to_right else part.plain + room)
                yield Text((" " * _GAP).join(aligned).rstrip(), style=style, overflow="ignore", no_wrap=True)

    def _rows(self, shown: Sequence[int]) -> list[tuple[str, ...]]:
        return [self._of(row, shown) for row in self.cells]

    @staticmethod
    def _of(row: Sequence[str], shown: Sequence[int]) -> tuple[str, ...]:
        return tuple(row[at] for at in shown)

    def _column(self, at: int) -> list[str]:
        return [self.head[at], *(row[at] for row in self.cells)]


_GAP = 2


def _fitted(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of columns that fit into `room`, none less than its longest word; None when there are none."""
    widths = [max(map(cell_len, column)) for column in columns]
    least = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    excess = sum(widths) + _GAP * (len(columns) - 1) - room
    while excess > 0:
        at = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        if widths[at] == least[at]:
            return None
        widths[at] -= 1
        excess -= 1
    return widths


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", optional: Sequence[str] = ()
) -> TextTable:
    """A table without frames; columns of numbers are aligned to the right. `optional`: see `TextTable`."""
    cells = tuple(tuple(_cell(value) for value in row) for row in rows)
    return TextTable(tuple(head), cells, title, tuple(optional))


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: str) -> bool:
    return cell == "–" or cell.rstrip("%").replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


_HEAD_EVERY = 20
_COLUMNS = (("window", 6), ("rows", 9), ("unique", 9), ("duplicate", 9), ("expired", 7), ("error", 6), ("rows/s", 9))
"""Columns of a window on a terminal, and their widths; what is left stands behind them."""
_WIDE = 120
"""A narrower terminal has no room for the rows, which the ports add up to."""


class WindowLines:
    """One line a window: columns under a head on a terminal, the whole sentence in a file or a pipe.

    `as_json`: one object a line instead, on standard output. `verbose` adds the phases of each window.
    """

    def __init__(self, console: Console, *, as_json: bool = False, verbose: bool = False) -> None:
        self._console = console
        self._as_json = as_json
        self._verbose = verbose
        self._count = 0

    def __call__(self, progress: BatchProgress) -> None:
        """Print the line of a window, which is readable at once through a pipe too."""
        if self._as_json:
            typer.echo(json_line(progress.to_json()))
        else:
            self._add(progress)
            if self._verbose and progress.phases:
                self._console.print("    " + phases_line(progress), style="dim", soft_wrap=True)
        self._console.file.flush()

    def _add(self, progress: BatchProgress) -> None:
        if not self._console.is_terminal:
            self._console.print(progress_line(progress), soft_wrap=True, markup=False)
            return
        is_wide = self._console.width >= _WIDE
        columns = [column for column in _COLUMNS if is_wide or column[0] != "rows"]
        if self._count % _HEAD_EVERY == 0:
            self._print(Text("  ".join(name.rjust(width) for name, width in columns), style="dim"))
        self._count += 1
        text = Text()
        for name, width in columns:
            value = round(progress.rows_per_second) if name == "rows/s" else getattr(progress, name)
            cell = f"{value:,}".rjust(width)
            text.append("  " if text else "").append(cell, style="red" if name == "error" and value else None)
        if progress.left is not None:
            text.append(f"  {progress.left if is_wide else progress.left.short}")
        if is_wide and progress.latest_point is not None:
            text.append(f"  latest {progress.latest_point}", style="dim")
        self._print(text)

    def _print(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)


_Status = TypeVar("_Status", bound="AsJson")


def watch(
    read: Callable[[], _Status],
    render: Callable[[_Status], Sequence[RenderableType]],
    line: Callable[[_Status], str],
    *,
    every_s: float,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show what `read` gives every `every_s` seconds: on a terminal in place, else a line each time. Ctrl-C ends it."""
    console = answer_console()
    try:
        while True:
            status = read()
            if as_json:
                typer.echo(json_line(status.to_json()))
            elif console.is_terminal:
                console.clear()
                for text in top(console, render(status)):
                    console.out(text, highlight=False)
                console.print(f"every {every_s:g} s; Ctrl-C ends", style="dim", end="")
            else:
                now_us = time.time_ns() // 1000
                typer.echo(f"{format_time(now_us - now_us % 1_000_000)}  {line(status)}")
            sys.stdout.flush()
            sleep(every_s)
    except KeyboardInterrupt:
        if console.is_terminal:
            console.print()


def top(console: Console, parts: Sequence[RenderableType]) -> list[str]:
    """The first lines of an answer, as many as the screen has room for: what is above it would be lost."""
    with console.capture() as captured:
        print_parts(console, parts)
    return captured.get().splitlines()[: max(1, console.height - 1)]
