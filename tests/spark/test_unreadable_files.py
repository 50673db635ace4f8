"""Files over which reading fails: each leaves as one error tuple, and takes no other along."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.tasks import write as write_task
from deduper.window import attempt
from tests.spark.harness import PORTS, Job
from tests.spark.poison import poisoned

pytestmark = pytest.mark.spark

_PARQUET = {"file_format": "parquet", "schema": "k string, x double"}


def outcomes(job: Job) -> dict[tuple[str, int], str]:
    """What became of every record, by file and position."""
    rows = [(port, row["_dedup"]) for port in PORTS for row in job.rows(port)]
    found = {(Path(dedup["source"]).name, dedup["position"]): dedup["reason"] or port for port, dedup in rows}
    assert len(found) == len(rows)
    return found


def raws(job: Job) -> dict[str, str]:
    """What the error port says of each file."""
    return {Path(row["_dedup"]["source"]).name: row["_dedup"]["raw"] for row in job.rows("error")}


@pytest.fixture
def judgings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that a window was judged."""
    judged: list[int] = []
    once = attempt.WindowJudge._judge_once

    def counted(*arguments: Any) -> Any:
        judged.append(1)
        return once(*arguments)

    monkeypatch.setattr(attempt.WindowJudge, "_judge_once", counted)
    return judged


@pytest.mark.parametrize("most", [1, 2, 4])
def test_neighbours_decide_nothing(new_job: Callable[..., Job], most: int, judgings: list[int]) -> None:
    """Files of several encodings and types, and one that nobody can read: however windows are cut."""
    job = new_job(source={**_PARQUET, "max_files_per_batch": most})
    values = [0.5 * number for number in range(5)]
    split = job.add_table(pa.table({"k": [f"a{n}" for n in range(5)], "x": values}))
    parquet.write_table(parquet.read_table(split), split, use_dictionary=["k"], use_byte_stream_split=["x"])
    brotli = job.add_table(pa.table({"k": [f"b{n}" for n in range(5)], "x": values}))
    parquet.write_table(parquet.read_table(brotli), brotli, compression="brotli")
    narrow = job.add_table(pa.table({"k": [f"c{n}" for n in range(5)], "x": pa.array(values, pa.float32())}))
    torn = job.add_file([], "file-0003.parquet")
    torn.write_bytes(narrow.read_bytes()[:-1])
    times = [1_700_000_000 + number for number in range(4)]
    for file, at in zip((split, brotli, narrow, torn), times, strict=True):
        os.utime(file, (at, at))
    job.run()
    read = {(file.name, n): "unique" for file in (split, brotli, narrow) for n in range(5)}
    assert outcomes(job) == {**read, (torn.name, 0): "file_unreadable"}
    assert len(judgings) == 4 // most


def files_with_poison(job: Job) -> None:
    """Five files of two records each; one of the third's is poison."""
    for number in range(5):
        keys = [f"a{number}", "poison" if number == 2 else f"b{number}"]
        job.add_records([{"k": key} for key in keys])


@pytest.fixture(params=["driver", "tasks"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in the driver, or by tasks."""
    if request.param == "tasks":
        monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)


@pytest.mark.usefixtures("where")
def test_a_failure_nobody_has_heard_of(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, judgings: list[int]
) -> None:
    """Its file leaves by the error port, with what was said; the others are judged, once."""
    job = new_job()
    files_with_poison(job)
    poisoned(monkeypatch, LookupError("never heard of"))
    job.run()
    good = {(f"file-{number:04d}.json", place): "unique" for number in (0, 1, 3, 4) for place in (0, 1)}
    assert outcomes(job) == {**good, ("file-0002.json", 0): "file_unreadable"}
    assert raws(job) == {
        "file-0002.json": f"{job.directory}/in/file-0002.json: LookupError: never heard of",
    }
    assert len(judgings) == 1


@pytest.mark.night(but=["driver-disk"])
@pytest.mark.usefixtures("where")
@pytest.mark.parametrize(
    "fault", [OSError(errno.EIO, os.strerror(errno.EIO)), ImportError("a module is missing")], ids=["disk", "module"]
)
def test_a_fault_of_the_machine_ends_the_job(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """No file is written off for it, and the next start judges all of them."""
    job = new_job()
    files_with_poison(job)
    with monkeypatch.context() as patch:
        poisoned(patch, fault)
        with pytest.raises(Exception, match=r"Input/output error|a module is missing"):
            job.run()
    assert not outcomes(job)
    job.run()
    assert list(outcomes(job).values()) == ["unique"] * 10


def test_many_files_that_are_no_parquet(new_job: Callable[..., Job], judgings: list[int]) -> None:
    """Their window is judged once, with the other files."""
    job = new_job(source=_PARQUET)
    good = job.add_table(pa.table({"k": ["a", "b"], "x": [1.0, 2.0]}))
    for number in range(10):
        bad = job.add_file([], f"bad-{number}.parquet")
        bad.write_bytes(b"PAR1 torn")
        os.utime(bad, (1_700_000_000, 1_700_000_000))  # a young one may be unfinished
    job.run()
    bad = {(f"bad-{number}.parquet", 0): "file_unreadable" for number in range(10)}
    assert outcomes(job) == {(good.name, 0): "unique", (good.name, 1): "unique", **bad}
    assert len(judgings) == 1
