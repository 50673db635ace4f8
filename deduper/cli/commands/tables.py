"""Commands for tables (loads, upserts, deletes, rollbacks; state and a check of every key, a new index) and ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from deduper.cli.command import (
    BASIC,
    CONTEXT,
    READING,
    ConfigArgument,
    ExecuteOption,
    JsonOption,
    Panel,
    VerboseOption,
    Words,
    answer,
    app,
    command,
)
from deduper.errors import ExitCode

table_app = typer.Typer(
    cls=Words,
    help="Load and change Delta or Parquet tables: no duplicates.",
    no_args_is_help=True,
    context_settings=CONTEXT,
)
app.add_typer(table_app, name="table", rich_help_panel=Panel.TABLES)


@command(table_app, "load", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_load(config: ConfigArgument, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Add the records of a batch that a table does not have.

    All others are duplicates or errors.
    """
    from deduper.cli.views.tables import render_load
    from deduper.service.logs import configure_logging
    from deduper.table.operations.changes import run_load
    from deduper.table.operations.write import saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped():
        receipt = run_load(checked)
    answer(receipt, render_load, as_json=as_json)


@command(table_app, "upsert", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_upsert(
    config: ConfigArgument, execute: ExecuteOption = False, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Add records, and replace those whose keys the table has.

    Without --execute it shows the plan.
    """
    _change("upsert", config, execute=execute, as_json=as_json, verbose=verbose)


@command(table_app, "delete", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_delete(
    config: ConfigArgument, execute: ExecuteOption = False, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Remove the records that have the keys of a batch.

    Without --execute it shows the plan and writes nothing.
    """
    _change("delete", config, execute=execute, as_json=as_json, verbose=verbose)


def _change(kind: Literal["upsert", "delete"], config: Path, *, execute: bool, as_json: bool, verbose: bool) -> None:
    from deduper.cli.views.tables import render_change
    from deduper.service.logs import configure_logging
    from deduper.table.operations.changes import run_change
    from deduper.table.operations.write import saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped():
        report = run_change(kind, checked, execute=execute)
    answer(report, render_change, as_json=as_json)


@command(table_app, "rollback", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_rollback(
    config: ConfigArgument,
    to: Annotated[int, typer.Option("--to", min=0, metavar="VERSION", help="The version to return to.")],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Return a Delta table and its index to an older version.

    Without --execute it shows the plan and writes nothing.
    """
    from deduper.cli.views.tables import render_rollback
    from deduper.service.logs import configure_logging
    from deduper.table.operations.rollback import plan_rollback, rollback
    from deduper.table.operations.write import saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped():
        report = rollback(checked, to) if execute else plan_rollback(checked, to)
    answer(report, render_rollback, as_json=as_json)


@command(table_app, "status", *READING)
def table_status(
    config: ConfigArgument,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare the index with all keys, and find keys that the table has twice."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a table's rows, files, index, and loads that died.

    Safe beside a running load.
    """
    from deduper.cli.views.tables import render_status, render_verify
    from deduper.table.operations.upkeep import table_status as status
    from deduper.table.settings import load_config

    loaded = load_config(config)
    if not verify:
        answer(status(loaded), render_status, as_json=as_json)
        return
    from deduper.table.operations.verify import verify as verified

    report = verified(loaded)
    answer(report, render_verify, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(report.exit_code)


@command(table_app, "rebuild", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_rebuild(config: ConfigArgument, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Build a table's index again from the table.

    Interrupted, the old one counts, and a repetition continues.
    """
    from deduper.cli.views.tables import render_rebuild
    from deduper.service.logs import configure_logging
    from deduper.table.operations.upkeep import rebuild
    from deduper.table.operations.write import WriteStage, saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped(WriteStage.REBUILDING):
        receipt = rebuild(checked)
    answer(receipt, render_rebuild, as_json=as_json)


_RangeSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, as longest=30d. Repeatable."),
]


@command(app, "range-aggregate", *BASIC, ExitCode.INTEGRITY, panel=Panel.TABLES)
def range_aggregate(
    config: ConfigArgument,
    overrides: _RangeSetOption = None,
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
