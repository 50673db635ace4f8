"""Lines that tests leave for the end of a run: figures of a session of kills, for example.

They lie in a file, which all processes of a run share.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_FILE = "TESTS_NOTES"


def begin() -> None:
    """Make the file, unless another process of the run has made it."""
    if _FILE not in os.environ:
        handle, os.environ[_FILE] = tempfile.mkstemp(prefix="notes-of-tests-")
        os.close(handle)


def add(line: str) -> None:
    """One line; those of a process keep their order."""
    with Path(os.environ[_FILE]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def take() -> list[str]:
    """All lines, at the end of the run: the file is removed."""
    file = Path(os.environ[_FILE])
    lines = file.read_text(encoding="utf-8").splitlines()
    file.unlink()
    return lines
