"""The command line: its commands, in the order in which `--help` lists them; other rooms do the work.

Heavy modules (pyspark, numba, pyarrow, rocksdict, pydantic) are imported by the command that needs them: help is
instant.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import Annotated

import typer

from bucket_store.threads import are_at_work
from deduper.cli.command import app

# isort: off
from deduper.cli.commands import job, store, move, tables  # noqa: F401  an import registers
# isort: on


def _version(wanted: bool) -> None:
    if wanted:
        from deduper import __version__

        typer.echo(f"deduper {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The options of `deduper` itself; `version` is acted on by its callback."""


class _Plain(logging.Handler):
    """Lines of a command that configures no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line as it is."""
        typer.echo(record.getMessage(), err=True)


def main() -> None:
    """The `deduper` command."""
    compiles = logging.getLogger("bucket_store.compiled")
    compiles.handlers = [_Plain()]
    try:
        app()
    except SystemExit as end:
        if not are_at_work():
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
