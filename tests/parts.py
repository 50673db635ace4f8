"""Everything, in parts: `python -m tests.parts [2/6]` (`make all PART=2/6`), each at most 40 minutes on two cores.

A part has the test files below its folders, and commands that are no tests. What it prints is kept in `build/night/`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "night"
COUNT = 6
OTHERS = 1
FOLDERS: dict[str, int] = {
    "tests/spark/": 2,
    "tests/services/": 3,
    "tests/services/test_hdfs_": 4,
    "tests/crash/": 5,
}
"""Of the beginnings of a path the longest counts; a file that has none of them belongs to part 1."""

_PYTHON = sys.executable
_MUTATION = [_PYTHON, "-m", "tests.mutation", "--sample", "12"]
COMMANDS: dict[int, list[list[str]]] = {6: [[_PYTHON, "-m", "tests.fuzz", "-max_total_time=60"], _MUTATION]}


def part(text: str) -> int:
    """The number in `2/6`."""
    number, _, count = text.partition("/")
    if count != str(COUNT) or not number.isdecimal() or not 1 <= int(number) <= COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is no part: write 1/{COUNT} to {COUNT}/{COUNT}")
    return int(number)


def part_of(path: str) -> int:
    """The part that has a test file."""
    begins = [folder for folder in FOLDERS if path.startswith(folder)]
    return FOLDERS[max(begins, key=len)] if begins else OTHERS
