"""`deduper config`: a config file checked, shown and described."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from deduper.cli.command import (
    BASIC,
    ConfigArgument,
    JsonOption,
    SetOption,
    command,
    config_app,
    loaded_config,
)
from deduper.config.problems import ConfigError

if TYPE_CHECKING:
    pass


@command(config_app, "validate", *BASIC)
def config_validate(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check a config file: every mistake at once, each with its place and what to write."""
    from deduper.cli.terminal import print_json

    try:
        found = loaded_config(config, overrides).config
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": [problem.to_json() for problem in error.problems]})
        raise typer.Exit(error.exit_code) from error
    if as_json:
        print_json({"valid": True, "problems": []})
    else:
        typer.echo(f"{config} is valid: job {found.name}, key {', '.join(found.key)}")


@command(config_app, "show", *BASIC)
def config_show(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Show the effective settings and their origins; secrets are masked."""
    from deduper.cli.terminal import answer_console, print_json, print_parts, table

    settings = loaded_config(config, overrides).settings
    if as_json:
        print_json({setting.setting: {"value": setting.value, "from": setting.source} for setting in settings})
        return
    rows = [(setting.setting, _setting_text(setting.value), setting.source) for setting in settings]
    print_parts(answer_console(), [table(("setting", "value", "from"), rows, optional=("from",))])


@command(config_app, "schema", *BASIC)
def config_schema() -> None:
    """Print the JSON Schema of a config file, for editors and checkers."""
    from deduper.cli.terminal import print_json
    from deduper.config.schema import json_schema

    print_json(json_schema())


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
