"""Types, lint, form and layers of the code. They are tests so that they share the processors with the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        "mypy --no-error-summary --pretty",
        "ruff check .",
        "ruff format --check .",
        "lint-imports --no-logo --no-cache",
    ],
)
def test_has_nothing_to_say(command: str) -> None:
    """The command ends with 0; what it prints otherwise is the failure."""
    program, *arguments = command.split()
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
