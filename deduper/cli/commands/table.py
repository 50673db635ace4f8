"""Commands for tables: loads, upserts, deletes, rollbacks, a quickstart; state, a check, a new index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deduper.cli.command import (
    BASIC,
    CONTEXT,
    READING,
    ConfigArgument,
    ExecuteOption,
    JsonOption,
    VerboseOption,
    answer,
    app,
    command,
)
from deduper.errors import ExitCode

table_app = typer.Typer(
    help="Load and change tables without duplicates: Delta Lake, or folders of Parquet files.",
    no_args_is_help=True,
    context_settings=CONTEXT,
)
app.add_typer(table_app, name="table")


@command(table_app, "load", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_load(config: ConfigArgument, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Add the records of a batch that a table does not have; all others are duplicates or errors."""
    from deduper.cli.views.table.load import render_load
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
    """Add the records of a batch, and replace those whose keys the table has; without --execute, show the plan."""
    from deduper.cli.views.table.change import render_change
    from deduper.service.logs import configure_logging
    from deduper.table.operations.changes import run_change
    from deduper.table.operations.write import saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped():
        report = run_change("upsert", checked, execute=execute)
    answer(report, render_change, as_json=as_json)


@command(table_app, "delete", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_delete(
    config: ConfigArgument, execute: ExecuteOption = False, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Remove the records that have the keys of a batch; without --execute, show the plan and write nothing."""
    from deduper.cli.views.table.change import render_change
    from deduper.service.logs import configure_logging
    from deduper.table.operations.changes import run_change
    from deduper.table.operations.write import saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped():
        report = run_change("delete", checked, execute=execute)
    answer(report, render_change, as_json=as_json)


@command(table_app, "rollback", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_rollback(
    config: ConfigArgument,
    to: Annotated[int, typer.Option("--to", min=0, metavar="VERSION", help="The version to return to.")],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Return a Delta table and its index to an older version; without --execute, show the plan and write nothing."""
    from deduper.cli.views.table.change import render_rollback
    from deduper.service.logs import configure_logging
    from deduper.table.operations.rollback import plan_rollback, rollback
    from deduper.table.operations.write import saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped():
        report = rollback(checked, to) if execute else plan_rollback(checked, to)
    answer(report, render_rollback, as_json=as_json)


@command(table_app, "status", *BASIC, ExitCode.INTEGRITY)
def table_status(config: ConfigArgument, as_json: JsonOption = False) -> None:
    """Show a table's rows and files, its index, and loads that have died; safe beside a running load."""
    from deduper.cli.views.table.load import render_status
    from deduper.table.operations.upkeep import table_status as status
    from deduper.table.settings import load_config

    answer(status(load_config(config)), render_status, as_json=as_json)


@command(table_app, "verify", *READING)
def table_verify(config: ConfigArgument, as_json: JsonOption = False) -> None:
    """Compare an index with all keys of its table, and find keys that the table has twice; safe beside a load."""
    from deduper.cli.views.table.load import render_verify
    from deduper.table.operations.verify import verify
    from deduper.table.settings import load_config

    report = verify(load_config(config))
    answer(report, render_verify, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(report.exit_code)


@command(table_app, "rebuild", *BASIC, ExitCode.INTEGRITY, ExitCode.FENCED)
def table_rebuild(config: ConfigArgument, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Build a table's index again from the table; interrupted, the old one counts, and a repetition continues."""
    from deduper.cli.views.table.load import render_rebuild
    from deduper.service.logs import configure_logging
    from deduper.table.operations.upkeep import rebuild
    from deduper.table.operations.write import Stage, saying_when_stopped
    from deduper.table.settings import load_config

    checked = load_config(config)
    configure_logging(as_json=False, verbose=verbose)
    with saying_when_stopped(Stage.REBUILDING):
        receipt = rebuild(checked)
    answer(receipt, render_rebuild, as_json=as_json)


@command(table_app, "quickstart", *BASIC, ExitCode.UNHEALTHY)
def table_quickstart(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for all files of the quickstart.")] = Path(
        "demo-table"
    ),
    records: Annotated[int, typer.Option("--records", min=20, metavar="N", help="Records of a day.")] = 50_000,
) -> None:
    """Load two days of files twice, the second time nothing is added; then show the plan of an upsert."""
    from deduper.cli.quickstart.table import run_quickstart

    run_quickstart(directory, records)
