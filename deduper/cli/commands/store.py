"""Commands of a store and its outputs: what is in it, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deduper.cli.command import (
    READING,
    ConfigArgument,
    JsonOption,
    StoreArgument,
    answer,
    app,
    command,
)
from deduper.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType


_NEWEST = 5
"""Windows that `status` shows unless --last says so."""


@command(app, "status", *READING)
def status(
    store: StoreArgument,
    last: Annotated[
        int | None, typer.Option("--last", min=0, metavar="N", help="Show the newest N windows.", show_default="5")
    ] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show the time of the newest windows by step, too.")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Show it again and again until Ctrl-C; in a pipe, a line each time.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="The time between two looks of --watch.")
    ] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Show the health, the contents and the progress of a store; safe beside a running job.

    Of a range stream's store it shows what `range-stream --status` shows; --last and --timings are for a job's.
    """
    from deduper.admin.open_store import RangeStreamError, open_store
    from deduper.admin.status import StoreStatus, store_status
    from deduper.cli.views.status import line, render

    def read() -> StoreStatus:
        return store_status(open_store(store), last=_NEWEST if last is None else last)

    def shown(report: StoreStatus) -> list[RenderableType]:
        return render(report, timings=timings)

    def show(
        read: Callable[[], Any], render: Callable[[Any], list[RenderableType]], line: Callable[[Any], str]
    ) -> None:
        if watching:
            from deduper.cli.watch import watch

            watch(read, render, line, every_s=every, as_json=as_json)
        else:
            answer(read(), render, as_json=as_json)

    try:
        show(read, shown, line)
    except RangeStreamError as error:
        if last is not None or timings:
            raise UsageError(
                f"{store}: is a range stream's; --last and --timings are for windows of a job, leave them out"
            ) from error
        from deduper.cli.views.ranges import line as line_of_stream
        from deduper.cli.views.ranges import render_status
        from deduper.ranges.stream.settings import StreamJob
        from deduper.ranges.stream.status import stream_status

        root = StreamJob.load(Path(store)).ports.store.place if error.root is None else error.root
        show(lambda: stream_status(root), render_status, line_of_stream)


@command(app, "explain", *READING, raw_values=True)
def explain(
    config: ConfigArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="One value for each column of the key.", show_default=False)
    ],
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="The text that stands for a null.")] = r"\N",
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Only windows begun at this time or later, or so long ago, as 7d."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every copy seen of a key, with its verdict, time, place and reason, from the outputs and the store."""
    from deduper.admin.keys import explain as explaining
    from deduper.admin.keys.values import parse_key
    from deduper.admin.open_store import open_store
    from deduper.cli.views.explain import ScanProgress, render

    opened = open_store(str(config))
    since_us = None if since is None else explaining.since(since)
    key = parse_key(values, opened.key_columns, null=null)
    progress = ScanProgress()
    try:
        found = explaining.explain(opened, key, since_us=since_us, on_progress=progress)
    except ValueError as error:
        raise UsageError(str(error)) from error
    finally:
        progress.end()
    answer(found, render, as_json=as_json)


@command(app, "report", *READING)
def report(
    store: StoreArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a page with plots to this file, such as report.html."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Summarise a store over time: ports, lateness, distances, missed copies, advice; safe beside a running job."""
    from deduper.admin.open_store import open_store
    from deduper.admin.report.collect import report_of
    from deduper.cli.views.report import render

    found = report_of(open_store(store))
    answer(found, render, as_json=as_json)
    if out is not None:
        from deduper.admin.report.page import page

        try:
            out.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}") from error
        typer.echo(f"{out} is written", err=True)


@command(app, "verify", *READING)
def verify(
    store: StoreArgument,
    rows: Annotated[
        bool, typer.Option("--rows", help="Check the rows of the output files too; needs the config, and takes longer.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read a whole store and its outputs, and check that they agree; safe beside a running job."""
    from deduper.admin.open_store import named_store
    from deduper.admin.verify.run import verify_target
    from deduper.cli.views.verify import render

    if rows and named_store(store)[1] is None:
        raise UsageError("--rows needs the config: it says where the outputs are")
    report = verify_target(store, rows=rows)
    answer(report, render, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(report.exit_code)


@command(app, "gc", *READING, ExitCode.FENCED)
def gc(
    store: StoreArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the listed files; refused beside a running job.")
    ] = False,
    grace: Annotated[str, typer.Option("--grace", metavar="DURATION", help="Keep younger files.")] = "1h",
    as_json: JsonOption = False,
) -> None:
    """List a store's orphans, files that no record names, or delete them; the list is safe beside a running job."""
    from deduper.admin.gc import collect
    from deduper.admin.open_store import open_store
    from deduper.cli.views.gc import render
    from deduper.units import UnitError, parse_duration

    try:
        grace_us = parse_duration(grace)
    except UnitError as error:
        raise UsageError(f"--grace {error}") from error
    opened = open_store(store)
    report = collect(opened, grace_us=grace_us, delete=delete)
    answer(report, render, as_json=as_json)
    if report.is_refused:
        raise typer.Exit(ExitCode.FENCED)
