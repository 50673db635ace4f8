"""A user's query, killed with SIGKILL at named and at random moments and started again: every row leaves once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyarrow import parquet

from bucket_store import failpoints
from tests import notes, tiers
from tests.jvm import BRIEF

# In the tier `change` a query breaks off within its process, at the same points: tests/spark/test_query.py.
pytestmark = [pytest.mark.crash, pytest.mark.night]

POINTS = (
    "window.2.judged",
    "window.4.committed",
    "test.function",
    "window.5.published",  # the function has ended well, and there is no mark
    "window.6.marked",  # before Spark's own commit file
)


def make_input(directory: Path, files: int) -> Counter[str]:
    """Files of keys that repeat, some without a key; how often each is there."""
    source = directory / "in"
    source.mkdir(parents=True)
    often: Counter[str] = Counter()
    draw, n = random.Random(5), 0
    for number in range(files):
        lines = []
        for _ in range(30):
            key = None if draw.random() < 0.05 else f"k{draw.randrange(6 * files)}"
            lines.append(json.dumps({"k": key, "n": n}))
            often[str(key)] += 1
            n += 1
        path = source / f"{number:03}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + number,) * 2)
    return often


def run(directory: Path, *, armed: str = "", kill_after_s: float | None = None, by_tasks: bool = False) -> int:
    """One run of the program, in a session of its own; its exit code."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": " ".join(BRIEF),
        failpoints.ENVIRONMENT: armed,
    }
    with (directory / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.query_program", str(directory), *(["--by-tasks"] if by_tasks else [])],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait(kill_after_s or 300)
        except subprocess.TimeoutExpired:
            assert kill_after_s is not None, (directory / "output").read_text()[-4000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def check(directory: Path, often: Counter[str]) -> int:
    """Every row left once, the first of each key as unique; gives how many calls of the function were repeated."""
    unique = [row for file in (directory / "unique").glob("*.json") for row in json.loads(file.read_text())]
    duplicate = parquet.read_table(directory / "duplicate").to_pylist()
    error = parquet.read_table(directory / "error").to_pylist()
    nulls = often.pop("None", 0)
    assert Counter(key for key, _ in unique) == Counter(dict.fromkeys(often, 1))
    assert Counter(row["k"] for row in duplicate) == often - Counter(dict.fromkeys(often, 1))
    assert len(error) == nulls
    numbers = [n for _, n in unique] + [row["n"] for row in (*duplicate, *error)]
    assert sorted(numbers) == list(range(often.total() + nulls))
    calls = [json.loads(line) for line in (directory / "calls").read_text().splitlines()]
    begun: Counter[int] = Counter()
    for what, number, batch_id, replayed in calls:
        if what == "begun":
            assert replayed or not begun[number], "a function was called again without being told"
            begun[number] += 1
            assert batch_id == number
    return sum(count - 1 for count in begun.values())


def test_killed_at_each_step(tmp_path: Path) -> None:
    """Before the commit, after it, amid a function, before the mark, before Spark's own commit file."""
    often = make_input(tmp_path, 12)
    for point in POINTS:
        assert run(tmp_path, armed=f"{point}=kill-all@2") == -signal.SIGKILL, point
    assert run(tmp_path) == 0, (tmp_path / "output").read_text()[-4000:]
    # Amid the function, and after it: those windows were handed over again.
    assert check(tmp_path, often) == 2


@pytest.mark.timeout(1800)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty times, wherever it happens to be; every other run has large windows, which tasks judge and write."""
    files = 60
    often = make_input(tmp_path, files)
    draw = random.Random(tiers.seed())
    killed = 0
    while killed < 20:
        code = run(tmp_path, kill_after_s=draw.uniform(5, 14), by_tasks=killed % 2 == 1)
        killed += 1
        if code == 0:
            break
    assert run(tmp_path) == 0, (tmp_path / "output").read_text()[-4000:]
    repeated = check(tmp_path, often)
    notes.add(f"a user's query: {killed} kills at random moments, {repeated} windows handed over again")
