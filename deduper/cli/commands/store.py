"""Commands of a store and its outputs: what is in it, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deduper.cli.command import (
    READING,
    JsonOption,
    Panel,
    StoreArgument,
    answer,
    app,
    command,
    windows_of,
)
from deduper.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType


_NEWEST = 5
"""Windows that `status` shows unless --last says so."""


@command(app, "status", *READING, panel=Panel.LOOK)
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
    window: Annotated[
        int | None, typer.Option("--window", min=0, metavar="N", help="Show the commit record of this window in full.")
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket",
            metavar="B",
            help="Show which pieces hold a bucket: its key, or a time in it, such as 2024-12-31T23:00Z.",
        ),
    ] = None,
    over_time: Annotated[
        bool,
        typer.Option("--over-time", help="Show ports, lateness, distances, missed copies, over the store's history."),
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", help="The same as --over-time, and a page with plots, as status.html."),
    ] = None,
    conflicts: Annotated[
        bool,
        typer.Option(
            "--conflicts",
            help="Show the keys and the columns that conflict most, of the newest conflicts in the outputs.",
        ),
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="With --conflicts: keys as they are, not masked.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show ids, epochs, sizes and meters, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the health and progress of a job; a window; a bucket; its conflicts.

    Safe beside a running job. It shows the store of a range stream too, with no option but --watch.
    """
    if page is not None and page.suffix not in (".html", ".htm"):
        raise UsageError(f"--page {page}: the page is HTML; write --page {page.with_suffix('.html')}")
    is_over_time = over_time or page is not None
    if values and not conflicts:
        raise UsageError("--values goes with --conflicts")
    chosen = {"--window": window is not None, "--bucket": bucket is not None, "--over-time": is_over_time}
    chosen["--conflicts"] = conflicts
    others = {"--last": last is not None, "--timings": timings, "--watch": watching, "--verbose": verbose}
    if sum(chosen.values()) > 1 or (any(chosen.values()) and any(others.values())):
        given = [name for name, is_given in (chosen | others).items() if is_given]
        raise UsageError(f"{' and '.join(given)}: leave one out, each shows something else")
    if window is not None:
        _show_window(store, window, as_json=as_json)
    elif bucket is not None:
        _show_bucket(store, bucket, as_json=as_json)
    elif is_over_time:
        _show_over_time(store, page, as_json=as_json)
    elif conflicts:
        _show_conflicts(store, values=values, as_json=as_json)
    else:
        _show_status(store, last, every if watching else None, timings=timings, verbose=verbose, as_json=as_json)


def _show_status(
    store: str, last: int | None, every_s: float | None, *, timings: bool, verbose: bool, as_json: bool
) -> None:
    from bucket_store.errors import StorageAwayError
    from deduper.admin.open_store import RangeStreamError, named_store, open_store
    from deduper.admin.status import StoreStatus, store_status
    from deduper.cli.views.status import line, render
    from deduper.window.last_known import last_known

    def read() -> StoreStatus:
        try:
            return store_status(open_store(store), last=_NEWEST if last is None else last)
        except StorageAwayError as error:
            known = last_known(named_store(store)[0])
            raise error if known is None else error.after(known) from error

    def shown(report: StoreStatus) -> list[RenderableType]:
        return render(report, timings=timings, verbose=verbose)

    def show(
        read: Callable[[], Any], render: Callable[[Any], list[RenderableType]], line: Callable[[Any], str]
    ) -> None:
        if every_s is not None:
            from deduper.cli.terminal import watch

            watch(read, render, line, every_s=every_s, as_json=as_json)
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

        root = StreamJob.load(Path(store)).store.place if error.root is None else error.root
        show(lambda: stream_status(root), render_status, line_of_stream)


def _show_window(store: str, window: int, *, as_json: bool) -> None:
    from deduper.admin.inspect import inspect_window
    from deduper.admin.open_store import open_store
    from deduper.cli.views.contents import render_window

    answer(inspect_window(open_store(store), window), render_window, as_json=as_json)


def _show_bucket(store: str, bucket: str, *, as_json: bool) -> None:
    from deduper.admin.inspect import bucket_of, inspect_bucket
    from deduper.admin.open_store import open_store
    from deduper.cli.views.contents import render_bucket

    opened = open_store(store)
    answer(inspect_bucket(opened, bucket_of(opened, bucket)), render_bucket, as_json=as_json)


def _show_conflicts(store: str, *, values: bool, as_json: bool) -> None:
    from deduper.admin.keys.conflicts import conflicts_of
    from deduper.admin.open_store import open_store
    from deduper.cli.views.contents import render_conflicts

    answer(conflicts_of(open_store(store), values=values), render_conflicts, as_json=as_json)


def _show_over_time(store: str, page: Path | None, *, as_json: bool) -> None:
    from deduper.admin.open_store import open_store
    from deduper.admin.report.collect import report_of
    from deduper.cli.views.status import render_over_time

    found = report_of(open_store(store))
    answer(found, render_over_time, as_json=as_json)
    if page is not None:
        from deduper.admin.report.page import page as page_of

        try:
            page.write_text(page_of(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{page} cannot be written: {error.strerror}") from error
        typer.echo(f"{page} is written", err=True)


@command(app, "explain", *READING, panel=Panel.LOOK, raw_values=True)
def explain(
    store: StoreArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="One value for each column of the key.", show_default=False)
    ],
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="The text that stands for a null.")] = r"\N",
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at", metavar="EXPIRY_KEY", help="Judge a copy with this timestamp, number or category too. Repeatable."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Only windows begun at this time or later, or so long ago, as 7d."
        ),
    ] = None,
    only_store: Annotated[
        bool, typer.Option("--only-store", help="Look up the store alone, at once; read no outputs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Explain a key: is it remembered, and each copy's verdict.

    The store says whether the key is remembered, and what the verdict of a next copy would be. Of a config, not of a
    store alone, all outputs are read for the copies seen: verdict, time, place and reason of each.
    """
    from deduper.admin.keys import explain as explaining
    from deduper.admin.keys.values import parse_expiry, parse_key
    from deduper.admin.open_store import open_store
    from deduper.cli.views.contents import ScanProgress, render_explanation

    opened = open_store(store)
    since_us = None if since is None else explaining.since(since)
    progress = ScanProgress()
    try:
        key = parse_key(values, opened.key_columns, null=null)
        if at and opened.config is None:
            raise UsageError("--at needs the config, because a verdict depends on the period")
        asked = [] if opened.config is None else [parse_expiry(text, opened.config) for text in at or ()]
        found = explaining.explain(
            opened, key, asked=asked, since_us=since_us, only_store=only_store, on_progress=progress
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    finally:
        progress.end()
    answer(found, render_explanation, as_json=as_json)


@command(app, "errors", *READING, panel=Panel.LOOK)
def errors(
    store: StoreArgument,
    window: Annotated[
        str | None, typer.Option("--window", metavar="N", help="Only this window; A..B for a range.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, metavar="N", help="Only the newest N windows of the store.")
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option("--reason", metavar="R", help="Only errors of this reason. Repeatable.")
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="TO",
            help="Write their records as they came: into a new folder, or to a topic if the source is one. It needs "
            "--window or --last.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count error rows by reason, or export their records.

    Each group has its detail and the place of its first record. An export is for the same source.
    """
    from deduper.admin.errors.export import export_errors
    from deduper.admin.errors.report import errors_report
    from deduper.admin.open_store import open_store
    from deduper.cli.views.contents import render_errors, render_export

    if export is not None and window is None and last is None:
        raise UsageError(
            f"--export {export}: add --window FIRST..LAST, or --last N: the store keeps no note of an export, and a "
            "record that goes back twice may be unique twice. `--window 0..` exports the errors of all windows"
        )
    opened, windows = open_store(store), windows_of(window)
    if last is not None:
        windows = windows.newest(last, opened.log.state.next_window)
    if export is None:
        answer(errors_report(opened, windows, reason or ()), render_errors, as_json=as_json)
    else:
        answer(export_errors(opened, windows, reason or (), export), render_export, as_json=as_json)


@command(app, "verify", *READING, panel=Panel.LOOK)
def verify(
    store: StoreArgument,
    as_json: JsonOption = False,
) -> None:
    """Check that a store and its outputs are whole and agree.

    Everything is read. Safe beside a running job.
    """
    from deduper.admin.verify.run import verify_target
    from deduper.cli.views.soundness import render_verify

    report = verify_target(store)
    answer(report, render_verify, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(report.exit_code)


@command(app, "gc", *READING, ExitCode.FENCED, panel=Panel.MOVE)
def gc(
    store: StoreArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the listed files; refused beside a running job.")
    ] = False,
    grace: Annotated[str, typer.Option("--grace", metavar="DURATION", help="Keep younger files.")] = "1h",
    as_json: JsonOption = False,
) -> None:
    """List or delete orphans: files that no record names.

    The list is safe beside a running job.
    """
    from deduper.admin.gc import collect
    from deduper.admin.open_store import open_store
    from deduper.cli.views.soundness import render_gc
    from deduper.units import UnitError, parse_duration

    try:
        grace_us = parse_duration(grace)
    except UnitError as error:
        raise UsageError(f"--grace {error}") from error
    opened = open_store(store)
    report = collect(opened, grace_us=grace_us, delete=delete)
    answer(report, render_gc, as_json=as_json)
    if report.is_refused:
        raise typer.Exit(ExitCode.FENCED)
