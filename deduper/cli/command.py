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
from typer.core import TyperCommand, TyperGroup

from deduper.config.problems import ConfigError
from deduper.errors import ExitCode, UsageError, exit_code_of
from deduper.sinks.publish_state import OnUnknown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deduper.admin.errors.report import WindowRange
    from deduper.config.load import LoadedConfig

_UsageError: Any = typer.BadParameter.__bases__[0]
_MOST_FILES = 5
_MEANT = {
    "start": "`deduper run CONFIG` starts the job",
    "stop": "stop a job with SIGTERM or Ctrl-C: it finishes its window first",
    "validate": "`deduper check CONFIG` checks the file and whether the job can start",
    "doctor": "`deduper check CONFIG` checks the file and whether the job can start",
    "config": "`deduper check CONFIG --config-only` checks the file, `deduper show CONFIG` shows the settings",
    "inspect": "`deduper explain CONFIG VALUE...` shows a key, `deduper status CONFIG --window N` a window",
    "report": "`deduper status CONFIG --page status.html` writes a page",
    "load": "`deduper table load CONFIG` loads a batch into a table",
    "version": "`deduper --version`",
    "restart": "stop a job with SIGTERM or Ctrl-C, then `deduper run CONFIG`",
    "logs": "a job logs to standard error; under systemd `journalctl --unit deduper@NAME` shows it",
    "list": "`deduper status CONFIG` shows one job; nothing keeps a list of jobs",
    "ps": "`deduper status CONFIG` shows one job; nothing keeps a list of jobs",
    "watch": "`deduper status --watch CONFIG`",
    "metrics": "`metrics: {port: 9108}` in the config serves them at /metrics",
    "delete": "`deduper forget CONFIG VALUE...` takes a key out, `deduper table delete CONFIG` rows of a table",
    "repair": "`deduper verify CONFIG` finds what is damaged; docs/recovery.md has what to do",
}


class Words(TyperGroup):
    """A group whose unknown commands are answered with the one that is meant; `help` is `--help`.

    `--show-completion` works, and is not in the help, which is to fit on a screen.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """As of the library."""
        params = super().get_params(ctx)
        for param in params:
            if param.name == "show_completion":
                param.hidden = True  # type: ignore[attr-defined]
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of the library."""
        words = [*args]  # the library takes them out
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if type(error).__name__ == "NoSuchOption" and ctx.parent is None:
                named = next((word for word in words if self.get_command(ctx, word) is not None), "COMMAND")
                error.message += f"; options of a command stand behind it: `deduper {named} {words[0]} …`"
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of the library."""
        word = args[0]
        if word == "help":
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                typer.echo(ctx.get_help())
                ctx.exit()
        elif self.get_command(ctx, word) is None:
            if Path(word).suffix in (".yaml", ".yml"):
                ctx.fail(f"`{word}` is no command: `deduper run {word}` runs the job, `deduper check {word}` checks it")
            if word in _MEANT and ctx.parent is None:
                ctx.fail(f"there is no command `{word}`: {_MEANT[word]}")
        return super().resolve_command(ctx, args)


class FileNamed(TyperCommand):
    """A command whose config file may also be given as `--config FILE`; it says what a mistyped word has to be."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of the library."""
        arguments = {one.name for one in self.params if one.param_type_name == "argument"}
        has_own = any("--config" in one.opts for one in self.params)
        if arguments & {"config", "store"} and not has_own:
            args = [arg.removeprefix("--config=") for arg in args if arg != "--config"]
        if "values" not in arguments:  # which may be any words
            self._refuse_slips(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            raise _clearer(error) from None

    def _refuse_slips(self, ctx: Any, args: list[str]) -> None:
        """Words that the library takes for an argument too many, or for several options of a letter."""
        flags = {opt for one in self.params if getattr(one, "is_flag", False) for opt in one.opts}
        options = {opt for one in self.params for opt in one.opts}
        for word, following, after in zip(args, [*args[1:], ""], [*args[2:], "", ""], strict=False):
            if word == "--set" and "=" not in following and after and not after.startswith("-"):
                ctx.fail(f"--set takes a name and its value in one word: write `--set {following}={after}`")
            if word in flags and following.lower() in ("true", "false", "yes", "no", "on", "off"):
                ctx.fail(f"{word} takes no value: leave out `{following}`")
            if f"-{word}" in options and word.startswith("-") and not word.startswith("--"):
                ctx.fail(f"`{word}` is no option: write `-{word}`")


def _clearer(error: Any) -> Any:
    """The library's error in words of this program."""
    kind = type(error).__name__
    if kind == "NoSuchOption":
        error.possibilities = [one for one in error.possibilities or () if one != "--help"]
    elif kind == "MissingParameter" and error.param is not None and error.param.name in ("config", "store"):
        here = sorted(path.name for path in Path().glob("*.y*ml"))[:_MOST_FILES]
        error.message = f"In this folder: {', '.join(here)}" if here else "`deduper init` writes one to start from"
    else:
        error.message = error.message.replace("is not a valid int range", "is no whole number")
    return error


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
    from deduper.admin.errors.report import WindowRange

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
