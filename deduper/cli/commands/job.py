"""Commands of a job: a config file to begin with, a first run, the run itself, and what it needs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deduper.cli.command import (
    BASIC,
    READING,
    ConfigArgument,
    JsonOption,
    SetOption,
    UnpublishedOption,
    VerboseOption,
    answer,
    app,
    command,
)
from deduper.errors import ExitCode, UsageError
from deduper.sinks.publish_state import OnUnknown

if TYPE_CHECKING:
    from deduper.window.progress import BatchProgress


@command(app, "init", *BASIC)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("deduper.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a commented config file to start from."""
    from deduper.cli.starter import starter_config
    from deduper.cli.terminal import say

    name = re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-._") or "deduper"
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(starter_config(str(file), name))
    except FileExistsError:
        raise UsageError(f"{file} exists; name another file, or replace it with --force") from None
    except FileNotFoundError:
        raise UsageError(f"{file.parent}: there is no such folder; make it (mkdir -p {file.parent})") from None
    say(f"{file} is written. Set `source`, `key` and `expiry`, then:\n  deduper config validate {file}", err=False)


@command(app, "quickstart", *BASIC, ExitCode.UNHEALTHY)
def quickstart(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for all files of the quickstart.")] = Path(
        "demo"
    ),
    records: Annotated[int, typer.Option(min=100, metavar="N", help="Records in the generated log.")] = 1_050_000,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the generated log.")] = 7,
    verbose: VerboseOption = False,
) -> None:
    """Generate a web log with known duplicates, run the real job on it, and compare the result."""
    from deduper.cli.quickstart.guide import quickstart as run_quickstart
    from deduper.cli.terminal import Messages, answer_console
    from deduper.service.logs import configure_logging

    configure_logging(as_json=False, verbose=verbose, handler=Messages)
    run_quickstart(directory, records=records, seed=seed, console=answer_console())


@command(app, "run", *READING, ExitCode.FENCED, ExitCode.BUG, ExitCode.INTERRUPTED)
def run(
    config: ConfigArgument,
    once: Annotated[bool, typer.Option("--once", help="Stop when the source is drained.")] = False,
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", min=1, metavar="N", help="Stop after N windows.")
    ] = None,
    overrides: SetOption = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take the store over from another owner, even a running one, which is then fenced."
        ),
    ] = False,
    unpublished: UnpublishedOption = OnUnknown.REFUSE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for every window.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the job and print a line for every window. SIGTERM and Ctrl-C finish the current window first."""
    from deduper.spark.allocator import keep_few_arenas

    keep_few_arenas()

    from deduper.config.load import load_config

    loaded = load_config(config, overrides=overrides or ())

    from deduper.cli.terminal import Messages, say
    from deduper.service.job import run as run_job
    from deduper.service.logs import configure_logging
    from deduper.window.progress import json_line, summary_line

    configure_logging(as_json=as_json, verbose=verbose, waits=not as_json, handler=Messages)
    if not as_json:
        say(f"{loaded.name}: {loaded.source.place} into {loaded.store.url}")
    summary = run_job(
        loaded,
        once=once,
        max_batches=max_batches,
        take_over=take_over,
        unpublished=unpublished,
        on_progress=_progress_printer(as_json=as_json, verbose=verbose),
    )
    if as_json:
        typer.echo(json_line(summary.to_json()))
    else:
        say(summary_line(summary), err=False)


def _progress_printer(*, as_json: bool, verbose: bool) -> Callable[[BatchProgress], None]:
    from deduper.cli.terminal import WindowLines, answer_console
    from deduper.window.progress import json_line, phases_line

    console = answer_console()
    lines = WindowLines(console)

    def print_progress(progress: BatchProgress) -> None:
        if as_json:
            typer.echo(json_line(progress.to_json()))
        else:
            lines.add(progress)
            if verbose and progress.phases:
                console.print("    " + phases_line(progress), style="dim", soft_wrap=True)
        # Through a pipe too, a window's line is readable as soon as the window is done.
        sys.stdout.flush()

    return print_progress


@command(app, "doctor", *BASIC, ExitCode.UNHEALTHY)
def doctor(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check whether a job can start, by the checks of `run` itself; safe beside a running job."""
    from deduper.admin.doctor import diagnose
    from deduper.cli.views.doctor import render
    from deduper.config.load import load_config

    diagnosis = diagnose(load_config(config, overrides=overrides or ()))
    answer(diagnosis, render, as_json=as_json)
    if not diagnosis.is_healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)
