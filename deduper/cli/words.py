"""Words that people try on the command line: each does what is meant, or names the command that does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

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
