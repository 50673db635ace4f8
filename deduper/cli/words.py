"""Words that people try on the command line: each does what is meant, or names the command that does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

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
    """A command whose config file may also be given as `--config FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of the library."""
        takes_file = any(one.param_type_name == "argument" and one.name in ("config", "store") for one in self.params)
        has_own = any("--config" in one.opts for one in self.params)
        if takes_file and not has_own:
            args = [arg.removeprefix("--config=") for arg in args if arg != "--config"]
        return super().parse_args(ctx, args)
