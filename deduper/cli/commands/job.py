"""Commands of a job: a config file to begin with, a first run, the check of both, the run itself, and a replay."""

from __future__ import annotations

import os
import re
import sys
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from deduper.cli.command import (
    BASIC,
    READING,
    ConfigArgument,
    ExecuteOption,
    JsonOption,
    Panel,
    SetOption,
    UnpublishedOption,
    VerboseOption,
    answer,
    app,
    command,
    loaded_config,
)
from deduper.config.problems import ConfigError
from deduper.errors import ExitCode, UsageError
from deduper.sinks.publish_state import OnUnknown


class ReplayOrder(StrEnum):
    """The values of `replay --order`."""

    TIME = "time"
    ARRIVAL = "arrival"


@command(app, "init", *BASIC, panel=Panel.RUN)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("deduper.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a commented config file to start from."""
    from deduper.cli.terminal import say

    name = re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-._") or "deduper"
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(starter_config(str(file), name))
    except FileExistsError:
        raise UsageError(f"{file} exists; name another file, or replace it with --force") from None
    except FileNotFoundError:
        raise UsageError(f"{file.parent}: there is no such folder; make it (mkdir -p {file.parent})") from None
    say(f"{file} is written. Set `source`, `key` and `expiry`, then:\n  deduper check {file}", err=False)


def starter_config(file: str, name: str) -> str:
    """A first configuration for a job of this name, to be written to `file`; it is valid as it stands."""
    text = files("deduper.cli").joinpath("starter.yaml").read_text("utf-8")
    return text.replace("{file}", file).replace("{name}", name)


@command(app, "quickstart", *BASIC, ExitCode.UNHEALTHY, panel=Panel.RUN)
def quickstart(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for all files of the quickstart.")] = Path(
        "demo"
    ),
    records: Annotated[int, typer.Option(min=100, metavar="N", help="Records in the generated log.")] = 1_050_000,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the generated log.")] = 7,
    verbose: VerboseOption = False,
) -> None:
    """Try it: a web log with duplicates through the real job.

    The log is generated, and the result is compared with the expected one.
    """
    from deduper.cli.quickstart import quickstart as run_quickstart
    from deduper.cli.terminal import Messages, answer_console
    from deduper.service.logs import configure_logging

    configure_logging(as_json=False, verbose=verbose, handler=Messages)
    run_quickstart(directory, records=records, seed=seed, console=answer_console())


@command(app, "check", *BASIC, ExitCode.UNHEALTHY, panel=Panel.RUN)
def check(
    config: ConfigArgument,
    config_only: Annotated[
        bool, typer.Option("--config-only", help="Check the file alone: no store, broker, folder or Java.")
    ] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a config file, and whether its job can start.

    Every mistake in the file is shown at once, each with its place and what to write. The checks of the start are those
    of `run` itself, and safe beside a running job.
    """
    from deduper.cli.terminal import print_json

    try:
        loaded = loaded_config(config, overrides).config
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": [problem.to_json() for problem in error.problems]})
        raise typer.Exit(error.exit_code) from error
    valid = {"valid": True, "problems": []}
    if config_only:
        if as_json:
            print_json(valid)
        else:
            typer.echo(f"{config} is valid: job {loaded.name}, key {', '.join(loaded.key)}")
        return
    from deduper.cli.views.soundness import render_check
    from deduper.preflight.checks import diagnose

    diagnosis = diagnose(loaded)
    if as_json:
        print_json({**valid, **diagnosis.to_json()})
    else:
        answer(diagnosis, render_check, as_json=False)
    if not diagnosis.is_healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)


@command(app, "show", *BASIC, panel=Panel.RUN)
def show(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="The config file.", show_default=False)
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a config file, for editors and checkers.")
    ] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the effective settings, and where each comes from.

    Secrets are masked.
    """
    from deduper.cli.terminal import answer_console, print_json, print_parts, table

    if (config is None) != schema:
        raise UsageError("name a config file, or give --schema, which describes every setting")
    if config is None:
        from deduper.config.schema import json_schema

        print_json(json_schema())
        return
    settings = loaded_config(config, overrides).settings
    if as_json:
        print_json({setting.setting: {"value": setting.value, "from": setting.source} for setting in settings})
        return
    rows = [(setting.setting, _setting_text(setting.value), setting.source) for setting in settings]
    print_parts(answer_console(), [table(("setting", "value", "from"), rows, optional=("from",))])


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@command(app, "run", *READING, ExitCode.FENCED, ExitCode.BUG, ExitCode.INTERRUPTED, panel=Panel.RUN)
def run(
    config: ConfigArgument,
    once: Annotated[bool, typer.Option("--once", help="Stop when the source is drained.")] = False,
    max_windows: Annotated[
        int | None, typer.Option("--max-windows", min=1, metavar="N", help="Stop after N windows.")
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
    """Run the job, or the range stream, and print a line for every window.

    SIGTERM and Ctrl-C finish the current window first.
    """
    from deduper.spark.allocator import keep_few_arenas

    keep_few_arenas()

    from deduper.config.load import is_of_stream, load_config, read_settings

    if is_of_stream(read_settings(config, overrides=overrides or ())):
        _run_stream(
            config,
            overrides,
            once=once,
            max_windows=max_windows,
            take_over=take_over,
            unpublished=unpublished,
            as_json=as_json,
            verbose=verbose,
        )
        return
    loaded = load_config(config, overrides=overrides or ())

    from deduper.cli.terminal import Messages, WindowLines, answer_console, say
    from deduper.service.job import run as run_job
    from deduper.service.logs import configure_logging
    from deduper.window.progress import json_line, summary_line

    configure_logging(as_json=as_json, verbose=verbose, handler=Messages)
    if not as_json:
        say(f"{loaded.name}: {loaded.source.place} into {loaded.store.url}")
    summary = run_job(
        loaded,
        once=once,
        max_windows=max_windows,
        take_over=take_over,
        unpublished=unpublished,
        on_progress=WindowLines(answer_console(), as_json=as_json, verbose=verbose),
    )
    if as_json:
        typer.echo(json_line(summary.to_json()))
    else:
        say(summary_line(summary), err=False)


@command(app, "replay", *READING, ExitCode.FENCED, ExitCode.BUG, ExitCode.INTERRUPTED, panel=Panel.RUN)
def replay(
    config: ConfigArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="T", help="Expiry keys from here on, as 2024-01-06T00:00:00Z.", show_default=False
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="T", help="And before this one.", show_default=False)
    ] = None,
    order: Annotated[
        ReplayOrder | None,
        typer.Option(
            "--order",
            metavar="ORDER",
            help="time: by (expiry key, place), the default where keys have a time; arrival: as `run --once`.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for a store and outputs of its own; by default NAME-replay beside the config file.",
            show_default=False,
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Into the job's own store, which must be new, and its own outputs.")
    ] = False,
    then_follow: Annotated[
        bool, typer.Option("--then-follow", help="With --in-place: go on as `run` with what comes since.")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            help="A what-if: judge by the rules of another config file too, and count records by both ports.",
            show_default=False,
        ),
    ] = None,
    execute: ExecuteOption = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Judge what the source has in the order of time, whatever its files or partitions are.

    Interrupted, it continues when it is repeated.
    """
    from deduper.spark.allocator import keep_few_arenas

    keep_few_arenas()

    from deduper.cli.terminal import Messages, WindowLines, answer_console
    from deduper.cli.views.replay import render_replay
    from deduper.replay.run import plan_replay
    from deduper.replay.run import replay as run_replay
    from deduper.replay.settings import Asked
    from deduper.service.logs import configure_logging

    loaded = loaded_config(config, overrides).config
    if in_place and out is not None:
        raise UsageError("--in-place has the job's own store and outputs: leave out --out")
    if then_follow and not in_place:
        raise UsageError("--then-follow goes on in the job's own store: add --in-place")
    folder = f"{loaded.name}-replay" if compare is None else f"{loaded.name}-compare"
    own = None if in_place else (out or config.parent / folder).absolute()
    asked = Asked(own, start, end, None if order is None else order.value)
    configure_logging(as_json=as_json, verbose=verbose, handler=Messages)
    on_progress = (lambda _: None) if as_json else WindowLines(answer_console(), verbose=verbose)
    if compare is not None:
        from deduper.cli.views.replay import render_comparison
        from deduper.replay.compare import compare as run_comparison
        from deduper.replay.compare import plan_comparison

        other = loaded_config(compare, None).config
        found = (
            run_comparison(loaded, other, asked, on_progress=on_progress)
            if execute
            else plan_comparison(loaded, other, asked)
        )
        answer(found, render_comparison, as_json=as_json)
        return
    if not execute:
        answer(plan_replay(loaded, asked), render_replay, as_json=as_json)
        return
    report = run_replay(loaded, asked, on_progress=on_progress)
    answer(report, render_replay, as_json=as_json)
    if then_follow and report.is_over:
        sets = [word for text in overrides or () for word in ("--set", text)]
        flags = [flag for flag, is_on in (("--json", as_json), ("--verbose", verbose)) if is_on]
        sys.stdout.flush()
        # The same process, so that a supervisor's signals reach the job, with new memory.
        os.execv(sys.executable, [sys.executable, "-m", "deduper", "run", str(config), *sets, *flags])


def _run_stream(
    config: Path,
    overrides: list[str] | None,
    *,
    once: bool,
    max_windows: int | None,
    take_over: bool,
    unpublished: OnUnknown,
    as_json: bool,
    verbose: bool,
) -> None:
    from deduper.ranges.stream.settings import StreamJob

    job = StreamJob.load(config, overrides=overrides or ())

    from deduper.cli.terminal import Messages, say
    from deduper.cli.views.ranges import counts_line, summary_line
    from deduper.ranges.stream.job import run as run_stream
    from deduper.ranges.stream.status import StreamRun
    from deduper.service.logs import configure_logging
    from deduper.window.progress import json_line

    configure_logging(as_json=as_json, verbose=verbose, handler=Messages)

    def progress(window: int, one: StreamRun) -> None:
        values = {"event": "window", "window": window, "counts": one.counts, "seconds": round(one.seconds, 3)}
        typer.echo(json_line(values) if as_json else f"window {window}: {counts_line(one)}")
        sys.stdout.flush()

    summary = run_stream(
        job,
        once=once,
        max_windows=max_windows,
        take_over=take_over,
        unpublished=unpublished,
        on_progress=progress,
    )
    if as_json:
        typer.echo(json_line({"event": "summary", **summary.to_json(), "seconds": round(summary.seconds, 3)}))
    else:
        say(summary_line(summary), err=False)
