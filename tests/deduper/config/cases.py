"""Mistakes in a configuration, one after the other in a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deduper.config.load import load_config
from deduper.config.messages import findings
from deduper.config.problems import ConfigError

Case = tuple[str, str, list[str]]
"""What is replaced in a valid file, by what, and the problems: line:column: setting: what is wrong; what to write."""


def cases(text: str, blocks: Mapping[str, str]) -> dict[str, Case]:
    """The cases by their names: a line `name | old | new`, and an indented one for each problem.

    A line goes on where the next is indented further; `<NAME>` stands for a block, `\\n` and `\\t` for themselves.
    """
    found: dict[str, Case] = {}
    name = ""
    for line in text.strip("\n").replace("\n      ", " ").splitlines():
        filled = re.sub(r"<([A-Z_]+)>", lambda name: blocks[name[1]], line)
        if line.startswith("  "):
            found[name][2].append(filled.removeprefix("  "))
        else:
            name, old, new = filled.split(" | ")
            escapes = {r"\n": "\n", r"\t": "\t", "(nothing)": ""}
            for escaped, meant in escapes.items():
                new, old = new.replace(escaped, meant), old.replace(escaped, meant)
            found[name] = old, new, []
    return found


def problems_of(text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that is wrong with a config file of this text, as headlines without the file."""
    monkeypatch.chdir(directory)
    file = Path("job.yaml")
    file.write_text(text, encoding="utf-8")
    try:
        load_config(file, environment={})
    except ConfigError as error:
        return [problem.headline.removeprefix("job.yaml:").replace(f"{directory}/", "") for problem in error.problems]
    return []


def check_words(settings: dict[str, Any], base_dir: Path, value: object) -> None:
    """The settings, with an odd value, are taken, or everything that is wrong with them has words and advice."""
    config, found = findings(settings, base_dir=base_dir)
    assert (config is None) == bool(found), value
    for finding in found:
        assert "is not valid:" not in finding.what, (value, finding)
        assert finding.path, (value, finding)
        assert finding.what, (value, finding)
        assert finding.write, (value, finding)
