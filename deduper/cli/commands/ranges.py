"""The commands that aggregate ranges for events: of files, and of the ports of two jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from deduper.cli.command import (
    BASIC,
    ConfigArgument,
    JsonOption,
    Panel,
    UnpublishedOption,
    VerboseOption,
    answer,
    app,
    command,
)
from deduper.errors import ExitCode
from deduper.sinks.publish_state import OnUnknown

_SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, as longest=30d. Repeatable."),
]


def _progress(*, is_quiet: bool) -> Callable[[str], None]:
    return lambda text: None if is_quiet else typer.echo(text, err=True)


@command(app, "range-aggregate", *BASIC, ExitCode.INTEGRITY, panel=Panel.TABLES)
def range_aggregate(
    config: ConfigArgument,
    plan: Annotated[bool, typer.Option("--plan", help="Only read and check the indexed side, and show the plan.")] = (
        False
    ),
    overrides: _SetOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Add to each event an aggregate of the ranges that cover it.

    There is no join. Or to each range, an aggregate of its events.
    """
    from deduper.ranges.batch.settings import RangeJob

    job = RangeJob.load(config, overrides=overrides or ())

    from deduper.cli.views.ranges import render
    from deduper.ranges.batch.job import run
    from deduper.service.logs import configure_logging

    configure_logging(as_json=as_json, verbose=verbose)

    answer(run(job, plan_only=plan, on_progress=_progress(is_quiet=as_json)), render, as_json=as_json)


@command(app, "range-stream", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED, panel=Panel.TABLES)
def range_stream(
    config: ConfigArgument,
    once: Annotated[bool, typer.Option("--once", help="End when both inputs are drained.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the store even if its owner seems to be alive.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Only show the state of the store, as `deduper status` does.")
    ] = False,
    unpublished: UnpublishedOption = OnUnknown.REFUSE,
    overrides: _SetOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The same on a stream: the unique rows of two jobs.

    Every event comes out once, with an aggregate of the ranges that cover it.
    """
    from deduper.ranges.stream.settings import StreamJob

    job = StreamJob.load(config, overrides=overrides or ())

    from deduper.cli.views.ranges import render_status, render_stream

    if status:
        from deduper.ranges.stream.status import stream_status

        answer(stream_status(job.ports.store_place), render_status, as_json=as_json)
        return

    from deduper.ranges.stream.job import run
    from deduper.service.logs import configure_logging

    configure_logging(as_json=as_json, verbose=verbose)

    answer(
        run(
            job,
            once=once,
            take_over=take_over,
            unpublished=unpublished,
            on_progress=_progress(is_quiet=as_json),
        ),
        render_stream,
        as_json=as_json,
    )
