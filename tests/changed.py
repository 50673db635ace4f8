"""The tests of `make all` that guard what has changed: `python -m tests.changed [SINCE]` (`make changed SINCE=HEAD~3`).

`guards.toml` has a table of rooms. The rooms that differ from the commit (HEAD by default; untracked files count) give
their tests in turns, for ten minutes in all. What is left out is printed, with the command that runs it.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_S = 600.0
Guards = dict[str, dict[str, float]]


def guards() -> Guards:
    """The table: room, test, seconds."""
    return tomllib.loads(Path(__file__).with_name("guards.toml").read_text(encoding="utf-8"))


def rooms_of(paths: Iterable[str], table: Guards) -> list[str]:
    """The innermost room of each path, in the table's order."""
    found = set()
    for path in paths:
        rooms = [room for room in table if path.startswith(f"{room}/") or path == room]
        found.update(sorted(rooms, key=len)[-1:])
    return [room for room in table if room in found]


def chosen(rooms: Iterable[str], table: Guards) -> tuple[list[str], list[str]]:
    """The tests of these rooms that fit into ten minutes, the first ones of each room first; and the others."""
    by_turns = itertools.zip_longest(*(table[room] for room in rooms))
    tests = dict.fromkeys(test for turn in by_turns for test in turn if test is not None)
    seconds = {test: cost for room in table.values() for test, cost in room.items()}
    taken, left, total = [], [], 0.0
    for test in tests:
        fits = total + seconds[test] <= MOST_S
        (taken if fits else left).append(test)
        total += seconds[test] * fits
    return taken, left


def _differing(since: str) -> list[str]:
    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.split("\0")[:-1]

    return [*git("diff", "--name-only", "-z", since), *git("ls-files", "--others", "--exclude-standard", "-z")]


def main(arguments: list[str]) -> int:
    """pytest's exit code; 0 where nothing guards what differs."""
    parser = argparse.ArgumentParser("python -m tests.changed", description=__doc__)
    parser.add_argument("since", nargs="?", default="HEAD", help="a commit; HEAD by default")
    options, more = parser.parse_known_args(arguments)
    table = guards()
    rooms = rooms_of(_differing(options.since), table)
    taken, left = chosen(rooms, table)
    print(f"== differs from {options.since}: {', '.join(rooms) or 'no room that has tests of its own in `make all`'}")
    pytest = [sys.executable, "-m", "pytest", "--tier", "night", "-n", "2"]
    if left:
        print(f"== left out, beyond ten minutes: {shlex.join(['.venv/bin/python', *pytest[1:], *left])}")
    sys.stdout.flush()
    return subprocess.run([*pytest, *more, *taken], cwd=ROOT, check=False).returncode if taken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
