"""`status --watch`: the status again and again, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from deduper.cli.terminal import answer_console, print_parts
from deduper.units import format_time
from deduper.window.progress import json_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from deduper.as_json import AsJson

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
