"""What a job writes to a shell: objects alone with --json, plain lines for people, one line of a failure of Spark's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deduper.store_samples import write_config
from tests.ports import free_port

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parent.parent.parent


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`deduper run` on ten records, of which one is no JSON, as a shell starts it."""
    file = write_config(directory)
    (directory / "in").mkdir(exist_ok=True)
    (directory / "in" / "a.json").write_text(
        "".join(f'{{"user": "a", "id": {number}, "ts": "2024-12-31T00:00:00Z"}}\n' for number in range(9)) + "{\n",
        encoding="utf-8",
    )
    return subprocess.run(
        [sys.executable, "-m", "deduper", "run", str(file), "--once", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("DEDUPER__")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.night
def test_with_json_both_outputs_are_ours(tmp_path: Path) -> None:
    """An object a line; nothing of Java's or Spark's beside it."""
    done = run(tmp_path, "--json")
    assert done.returncode == 0
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["level"] for line in logged} == {"warning"}
    assert any("1 of the 10 first records" in line["event"] for line in logged)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["window", "summary"]
    window = json.loads(done.stdout.splitlines()[0])
    assert (window["unique"], window["error"], window["left"]) == (9, 1, {"count": 0, "noun": "file", "seconds": 0.0})


@pytest.mark.night
def test_a_person_reads_what_is_waited_for_and_why_spark_failed(tmp_path: Path) -> None:
    """No stack trace, and none of Spark's codes."""
    done = run(tmp_path, "--set", "spark.sql.shuffle.partitions=abc")
    assert (done.returncode, done.stdout) == (1, "")
    waits = ("so far", "compiling", "[warning")
    assert [line for line in done.stderr.splitlines() if not any(word in line for word in waits)] == [
        f"clicks: {tmp_path}/in into file:{tmp_path}/state",
        "Spark is starting, which takes some seconds",
        "error: Spark did not start: The value 'abc' in the config \"spark.sql.shuffle.partitions\" is invalid. It "
        "should be a/an 'int' value; --verbose shows its log",
    ]


@pytest.mark.night
def test_of_two_starts_in_one_instant_one_runs(tmp_path: Path) -> None:
    """The other ends with 5 and says why, though it meets the port of the metrics before the owner."""
    port = free_port()
    with ThreadPoolExecutor(2) as both:
        done = [*both.map(lambda _: run(tmp_path, "--set", f"metrics.port={port}"), range(2))]
    assert sorted(each.returncode for each in done) == [0, 5], [each.stderr for each in done]
    (refused,) = (each for each in done if each.returncode == 5)
    assert "another process owns this store and is alive" in refused.stderr


@pytest.mark.night
def test_a_signal_while_spark_starts_is_an_end_with_its_name(tmp_path: Path) -> None:
    """Not an owner that vanished."""
    file = write_config(tmp_path)
    (tmp_path / "in").mkdir()
    command = [sys.executable, "-m", "deduper", "run", str(file)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert any(line.startswith("Spark is starting") for line in job.stderr)
        job.send_signal(signal.SIGTERM)
        job.stderr.read()
    assert job.returncode == 143
    status = subprocess.run(
        [sys.executable, "-m", "deduper", "status", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "with exit 143: SIGTERM ended it before its first window" in status.stdout
