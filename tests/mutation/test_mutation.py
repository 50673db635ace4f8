"""The settings of mutation testing fit the modules as they are."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutation"]
EQUIVALENT = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text(encoding="utf-8"))


def test_modules_and_their_tests_exist() -> None:
    """A test that was renamed would be missed only by the next run, hours into it."""
    tests = [*SETTINGS["tests"].values(), *SETTINGS["rooms"].values()]
    named = {name.partition("::")[0].removeprefix("--deselect=") for names in tests for name in names}
    modules = {*SETTINGS["tests"], *SETTINGS["as_python"], *SETTINGS["appended"]}
    assert [name for name in sorted(named | modules) if not (ROOT / name).is_file()] == []
    assert [name for name in SETTINGS["rooms"] if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("module", EQUIVALENT)
def test_every_line_that_has_a_reason_exists(module: str) -> None:
    """One that changed has to be looked at again."""
    lines = [
        " ".join(line.split()) for line in (ROOT / module).read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    changes = EQUIVALENT[module]
    gone = [change for change in changes if not any(change[1:].lstrip().startswith(f"{line} +") for line in lines)]
    assert gone == []
    assert all(changes.values())
