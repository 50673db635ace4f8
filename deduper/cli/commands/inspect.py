"""`deduper inspect`: one key, one window, one bucket, the errors of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from deduper.cli.command import READING, JsonOption, StoreArgument, answer, command, inspect_app, windows_of
from deduper.errors import UsageError


@command(inspect_app, "key", *READING, raw_values=True)
def inspect_key(
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
    as_json: JsonOption = False,
) -> None:
    """Show whether a key is remembered, from which record, until when, and the verdict of a copy that comes next."""
    from deduper.admin import inspect
    from deduper.admin.keys.values import parse_expiry, parse_key
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    opened = open_store(store)
    try:
        key = parse_key(values, opened.key_columns, null=null)
        if at and opened.config is None:
            raise UsageError("--at needs the config, because a verdict depends on the period")
        asked = [] if opened.config is None else [parse_expiry(text, opened.config) for text in at or ()]
        report = inspect.inspect_key(opened, key, asked=asked)
    except ValueError as error:
        raise UsageError(str(error)) from error
    answer(report, views.render_key, as_json=as_json)


@command(inspect_app, "window", *READING)
def inspect_window(
    store: StoreArgument,
    window: Annotated[int, typer.Argument(min=0, metavar="N", help="The window's number.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show the commit record of a window in full."""
    from deduper.admin import inspect
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    record = inspect.inspect_window(open_store(store), window)
    answer(record, views.render_window, as_json=as_json)


@command(inspect_app, "errors", *READING)
def inspect_errors(
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
            help="Write their records as they came: into a new folder, or to a topic if the source is one.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Group the rows of the error port by reason and detail, or export their records for the same source."""
    from deduper.admin.errors.export import export_errors
    from deduper.admin.errors.report import errors_report
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    opened, windows = open_store(store), windows_of(window)
    if last is not None:
        windows = windows.newest(last, opened.log.state.next_window)
    if export is None:
        answer(errors_report(opened, windows, reason or ()), views.render_errors, as_json=as_json)
    else:
        answer(export_errors(opened, windows, reason or (), export), views.render_export, as_json=as_json)


@command(inspect_app, "bucket", *READING, raw_values=True)
def inspect_bucket(
    store: StoreArgument,
    bucket: Annotated[
        str,
        typer.Argument(
            metavar="B", help="The bucket key, or a time in the bucket, such as 2024-12-31T23:00Z.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show which pieces hold a bucket, in every shard."""
    from deduper.admin import inspect
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    opened = open_store(store)
    report = inspect.inspect_bucket(opened, inspect.bucket_of(opened, bucket))
    answer(report, views.render_bucket, as_json=as_json)
