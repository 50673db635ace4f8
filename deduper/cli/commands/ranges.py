"""The command that aggregates ranges for events, of files."""

from __future__ import annotations

from typing import Annotated

import typer

from deduper.cli.command import (
    BASIC,
    ConfigArgument,
    JsonOption,
    Panel,
    VerboseOption,
    answer,
    app,
    command,
)
from deduper.errors import ExitCode

_SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, as longest=30d. Repeatable."),
]


@command(app, "range-aggregate", *BASIC, ExitCode.INTEGRITY, panel=Panel.TABLES)
def range_aggregate(
    config: ConfigArgument,
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

    def progress(text: str) -> None:
        if not as_json:
            typer.echo(text, err=True)

    answer(run(job, on_progress=progress), render, as_json=as_json)
