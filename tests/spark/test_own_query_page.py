"""The programs of docs/how-to/own-query.md run as they are written, and once killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from tests.jvm import BRIEF

pytestmark = [pytest.mark.spark, pytest.mark.night, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "own-query.md"
WRITES = "    write_deltalake("


def run(program: str, directory: Path) -> int:
    """Run a program in a directory; its exit code."""
    (directory / "program.py").write_text(program)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_SUBMIT_OPTS": " ".join(BRIEF),
    }
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    (directory / "output").write_text(ran.stdout + ran.stderr)
    return ran.returncode


def test_the_page_runs_as_written_and_after_a_kill(tmp_path: Path) -> None:
    """Each click once, in files and in a Delta table whose writer dies after it has written, before anybody knows."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        clicks = [
            {"user": f"u{one % 5}", "id": one % 7, "ts": f"2026-05-01T0{number}:{one:02}:00Z"} for one in range(40)
        ]
        (tmp_path / "in" / f"{number}.json").write_text("".join(json.dumps(click) + "\n" for click in clicks))
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert program.count(WRITES) == 1
    line = next(line for line in program.splitlines() if line.startswith(WRITES))
    dies = f"{line}\n    window.replayed or __import__('os').kill(__import__('os').getpid(), {int(signal.SIGKILL)})"
    assert run(program.replace(line, dies), tmp_path) == -signal.SIGKILL, (tmp_path / "output").read_text()[-3000:]
    assert DeltaTable(tmp_path / "lake" / "clicks").count() == 35
    assert run(program, tmp_path) == 0, (tmp_path / "output").read_text()[-3000:]
    (tmp_path / "in" / "2.json").write_text('{"user": "u0", "id": 0, "ts": "2026-05-01T02:00:00Z"}\n')
    queries = program[: program.index("batch = spark.createDataFrame")]
    assert run(queries, tmp_path) == 0, (tmp_path / "output").read_text()[-3000:]  # a batch of duplicates alone
    table = DeltaTable(tmp_path / "lake" / "clicks").to_pyarrow_table()
    in_files = parquet.read_table(tmp_path / "out" / "unique")
    for rows in (table, in_files):
        found = Counter(zip(rows["user"].to_pylist(), rows["id"].to_pylist(), strict=True))
        assert found == Counter({(f"u{user}", number): 1 for user in range(5) for number in range(7)})
    assert parquet.read_table(tmp_path / "out" / "duplicate").num_rows == 81 - 35
