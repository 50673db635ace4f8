"""Everything, in parts: `python -m tests.parts [2/7]` (`make all PART=2/7`), each at most 40 minutes on two cores.

A part is the test files below its folders, then commands that are no tests. `build/night/part-2.txt` keeps what it
prints; of a part that fails, `part-2-red-SEED.txt` does, and `--seed` repeats it. Further arguments go to pytest.

Without a number three parts run at a time: in parts 2 to 4 one process has the session or the servers, and waits for
them most of the time. What is timed (part 7) comes last and alone.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import tiers

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "night"
COUNT = 7
PROCESSES = 3
"""One more than processors: tests wait for servers, and for each other's windows."""
PROCESSES_BESIDE = 2
"""Of a part beside two others. With three each, Spark gives up Python workers that do not start in ten seconds."""
SIDE_BY_SIDE = ((4, 3, 1, 2, 5, 6), 3)
"""Parts in the order of their beginning, the longest first, and how many at a time. The others follow one by one."""
OTHERS = 1
FOLDERS: dict[str, int] = {
    "tests/spark/": 2,
    "tests/spark/test_query": 3,
    "tests/services/": 3,
    "tests/services/test_hdfs_": 4,
    "tests/crash/": 5,
    "tests/deduper/table/": 6,
    "tests/deduper/ranges/": 6,
    "tests/spark/test_parquet_differential": 6,
}
"""Of the beginnings of a path the longest counts; a file that has none of them belongs to part 1."""
COMMANDS: dict[int, tuple[str, ...]] = {
    7: (
        "tests.fuzz -max_total_time=60",
        "tests.mutation --total 60",
        "tests.bench.soak_kafka --rate 3000 --minutes 4 --warm 3 --kills 1 --out build/night/soak",
        "tests.bench.bounds --out build/night/bench",
    )
}
"""Modules that are run, with their arguments; `--seed` is added where one draws."""
_DRAW = ("tests.mutation",)


def part(text: str) -> int:
    """The number in `2/7`."""
    number, _, count = text.partition("/")
    if count != str(COUNT) or not number.isdecimal() or not 1 <= int(number) <= COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is no part: write 1/{COUNT} to {COUNT}/{COUNT}")
    return int(number)


def part_of(path: str) -> int:
    """The part that has a test file."""
    begins = [folder for folder in FOLDERS if path.startswith(folder)]
    return FOLDERS[max(begins, key=len)] if begins else OTHERS


def run(number: int, seed: int, more: list[str], *, is_beside: bool = False) -> bool:
    """Run a part to its end, whatever fails in it; True if nothing did. Beside others it shows its end alone."""
    drawn = f"--tier {tiers.NIGHT} --part {number}/{COUNT} --seed {seed}"
    tests = f"pytest {drawn} -n {PROCESSES_BESIDE if is_beside else PROCESSES} --durations=20 {shlex.join(more)}"
    commands = [
        f"{command} --seed {seed}" if command.startswith(_DRAW) else command for command in COMMANDS.get(number, ())
    ]
    if number in (OTHERS, *FOLDERS.values()):
        commands.insert(0, tests)
    KEPT.mkdir(parents=True, exist_ok=True)
    output = KEPT / f"part-{number}.txt"
    failed = []
    began = time.monotonic()
    scratches = tempfile.TemporaryDirectory(prefix=f"part-{number}-", ignore_cleanup_errors=True)
    with output.open("wb") as kept, scratches as scratch:
        for command in commands:
            if not _run(command, kept.fileno(), scratch, shows=not is_beside):
                failed.append(command)
    took = f"{(time.monotonic() - began) / 60:.0f} minutes"
    if not failed:
        print(f"== part {number}/{COUNT}: nothing failed, {took}", flush=True)
        return True
    red = output.rename(KEPT / f"part-{number}-red-{seed}.txt")
    print(f"== part {number}/{COUNT}, seed {seed}: FAILED, {took}; see {red.relative_to(ROOT)}", flush=True)
    for command in failed:
        print(f"   .venv/bin/python -m {command}", flush=True)
    return False


def _run(command: str, kept: int, scratch: str, *, shows: bool) -> bool:
    """Run a module; its output goes into a file, and to the terminal. True if it ends with 0.

    Its temporary folder is its own: of each user's, pytest removes all but the newest three.
    """
    print(f"== python -m {command}", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": scratch},
    )
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 65536):
        os.write(kept, data)
        if shows:
            os.write(sys.stdout.fileno(), data)
    return process.wait() == 0


def main(arguments: list[str]) -> int:
    """Exit code 1 if a part fails."""
    parser = argparse.ArgumentParser("python -m tests.parts", description=__doc__)
    parser.add_argument("part", nargs="?", type=part, help=f"1/{COUNT} to {COUNT}/{COUNT}; without it all of them")
    parser.add_argument("--seed", type=int, help="of an earlier run; otherwise it is drawn")
    options, more = parser.parse_known_args(arguments)
    seed = tiers.drawn_seed() if options.seed is None else options.seed
    print(f"== seed {seed}", flush=True)
    if options.part:
        return 0 if run(options.part, seed, more) else 1
    numbers, at_a_time = SIDE_BY_SIDE
    with ThreadPoolExecutor(at_a_time) as pool:
        green = list(pool.map(lambda number: run(number, seed, more, is_beside=True), numbers))
    green += [run(number, seed, more) for number in range(1, COUNT + 1) if number not in numbers]
    return 0 if all(green) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
