"""What all commands are made of: their groups, common arguments, exit codes, messages of errors, and answers.

Answers go to standard output, everything else to standard error. Every command ends with an `ExitCode`.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from deduper.cli.words import FileNamed, Words
from deduper.config.problems import ConfigError
from deduper.errors import ExitCode, UsageError, exit_code_of
from deduper.sinks.publish_state import OnUnknown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deduper.admin.errors.rows import WindowRange
    from deduper.config.load import LoadedConfig

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Panel(StrEnum):
    """The groups of `deduper --help`, in its order."""

    RUN = "Run"
    LOOK = "Look"
    MOVE = "Mend and move"
    TABLES = "Tables and ranges"


CONTEXT = {"help_option_names": ["-h", "--help"]}


app = typer.Typer(
    name="deduper",
    cls=Words,
    help="Deduplicate a stream: each record leaves by one of four ports, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)
ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The config file.", show_default=False)]
StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG_OR_STORE",
        help="A config file, a store's URL such as rocksdb:state/clicks, or the store's folder.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, as store.shards=8. Repeatable."),
]
UnpublishedOption = Annotated[
    OnUnknown,
    typer.Option(
        "--unpublished",
        help="Publish or skip a committed window, if Kafka has lost the record of its publication.",
    ),
]
ExecuteOption = Annotated[bool, typer.Option("--execute", help="Do it; without it, only show the plan.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON with stable keys.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log more, to standard error.")]

BASIC = (ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE)
READING = (*BASIC, ExitCode.UNHEALTHY, ExitCode.INTEGRITY)


def command(
    group: typer.Typer, name: str, *codes: ExitCode, panel: Panel | None = None, raw_values: bool = False
) -> Callable[..., Any]:
    """Registers a command, lists its exit codes in its help, and turns its errors into messages and exit codes.

    `panel`: its group in the help. `raw_values` lets an argument begin with a dash, as negative numbers do.
    """
    epilog = "Exit codes: " + "; ".join(f"{code.value} {code.meaning.partition(';')[0]}" for code in codes)
    context = {**CONTEXT, "ignore_unknown_options": raw_values}

    def register(function: Callable[_P, _T]) -> Callable[_P, _T]:
        options: dict[str, Any] = {"epilog": epilog, "context_settings": context, "rich_help_panel": panel}
        group.command(name, cls=FileNamed, **options)(_with_exit_codes(function))
        return function

    return register


def _with_exit_codes(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function; its errors are printed on standard error and raised as `typer.Exit` with their code."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            code = exit_code_of(error)
            print_error(error, code, verbose=bool(kwargs.get("verbose")))
            raise typer.Exit(code) from error

    return guarded


def print_error(error: Exception, code: ExitCode, *, verbose: bool) -> None:
    if code is ExitCode.BUG:
        traceback.print_exception(error)
        typer.secho("\nThis is a bug in deduper. Please report it with the lines above.", fg="red", err=True)
    elif isinstance(error, ConfigError):
        _print_problems(error)
    else:
        if verbose:
            traceback.print_exception(error)
        from rich.text import Text

        from deduper.cli.terminal import say

        say(Text.assemble(("error: ", "bold red"), _message(error, verbose=verbose)))


def _message(error: Exception, *, verbose: bool) -> str:
    from deduper.spark.failures import message_of

    is_sparks = type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    more = "; nothing half done is committed; --verbose shows the whole trace" if is_sparks and not verbose else ""
    return message_of(error) + more


def _print_problems(error: ConfigError) -> None:
    from rich.text import Text

    from deduper.cli.terminal import say
    from deduper.units import counted

    for problem in error.problems:
        say(Text(problem.headline, "bold"))
        for number, line in enumerate(problem.picture):
            typer.secho(line, fg="red" if number else None, err=True)
    typer.echo(f"\n{counted(len(error.problems), 'problem')}; nothing was started.", err=True)


def windows_of(text: str | None) -> WindowRange:
    """The windows of `--window`, all without it."""
    from deduper.admin.errors.rows import WindowRange

    try:
        return WindowRange() if text is None else WindowRange.of(text)
    except ValueError as error:
        raise UsageError(f"--window: {error}") from error


def size_of(text: str, option: str) -> int:
    from deduper.units import UnitError, parse_size

    try:
        return parse_size(text)
    except UnitError as error:
        raise UsageError(f"{option} {error}") from error


def answer(report: Any, render: Callable[[Any], Iterable[RenderableType]], *, as_json: bool) -> None:
    """Print a report: as JSON, or as text."""
    from deduper.cli.terminal import answer_console, print_json, print_parts

    if as_json:
        print_json(report if isinstance(report, dict) else report.to_json())
    else:
        print_parts(answer_console(), render(report))


def loaded_config(config: Path, overrides: list[str] | None) -> LoadedConfig:
    from deduper.config.load import load_with_sources

    return load_with_sources(config, overrides=overrides or ())
