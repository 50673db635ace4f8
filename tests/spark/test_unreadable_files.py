"""Files over which Spark or our own tasks fail: each leaves as one error tuple, and takes no other along."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deduper.sources.files import batch as file_batch
from deduper.sources.files.plan import FilePlan
from deduper.sources.parsing import REC
from deduper.tasks.layout import ORDER
from deduper.window import attempt
from deduper.window.jobs import local as jobs
from tests.spark.harness import PORTS, READ_BY_SPARK, Job

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
    """Files that Arrow alone can read, that Spark alone reads, and that nobody can: however windows are cut."""
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


def poisoned(
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fault: str,
    times: int | None,
    folder: Path,
    kind: type[Exception] = LookupError,
) -> None:
    """Let reading fail over the key `poison`, `times` times: in the code that Spark makes, or in a task of ours."""
    if where == "spark":
        real = FilePlan.tuples
        left = iter(range(10**6 if times is None else times))

        def tuples(plan: FilePlan, files: Any) -> DataFrame:
            rows = real(plan, files)
            if any("sound" in file.path for file in files.values()) or next(left, None) is None:
                return rows
            failing = F.raise_error(F.lit(fault)).cast("bigint")
            return rows.withColumn(ORDER, F.when(F.col(REC)["k"] == "poison", failing).otherwise(F.col(ORDER)))

        monkeypatch.setattr(FilePlan, "tuples", tuples)
        return
    make = jobs.read_function
    for number in range(0 if times is None else times):
        (folder / f"failure-{number}").touch()

    def made(task: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        read = make(task)

        def check(batch: pa.RecordBatch) -> pa.RecordBatch:
            if "poison" in batch.column("_0").to_pylist():
                allowed = list(folder.glob("failure-*"))
                if allowed or times is None:
                    for file in allowed[:1]:
                        file.unlink()
                    raise kind(fault)
            return batch

        return lambda batches: read(check(batch) for batch in batches)

    monkeypatch.setattr(jobs, "read_function", made)


def files_with_poison(job: Job) -> None:
    """Five files of two records each; one of the third's is poison."""
    for number in range(5):
        keys = [f"a{number}", "poison" if number == 2 else f"b{number}"]
        job.add_records([{"k": key} for key in keys])


@pytest.mark.night
@pytest.mark.parametrize("where", ["spark", "task"])
def test_a_failure_nobody_has_heard_of(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, judgings: list[int]
) -> None:
    """Its file is found and leaves by the error port, with what was said; the others are judged, once."""
    job = new_job(spark=READ_BY_SPARK)
    files_with_poison(job)
    with monkeypatch.context() as patch:
        poisoned(patch, where, "never heard of", None, tmp_path)
        job.run()
    good = {(f"file-{number:04d}.json", place): "unique" for number in (0, 1, 3, 4) for place in (0, 1)}
    assert outcomes(job) == {**good, ("file-0002.json", 0): "file_unreadable"}
    (raw,) = raws(job).values()
    assert raw.startswith(f"{job.directory}/in/file-0002.json: ")
    assert "never heard of" in raw
    assert len(judgings) == 1


@pytest.mark.parametrize("where", ["spark", "task"])
def test_a_failure_that_does_not_come_again(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """Twice, and not a third time: all records are judged."""
    job = new_job(spark=READ_BY_SPARK)
    files_with_poison(job)
    poisoned(monkeypatch, where, "never heard of", 2, tmp_path)
    job.run()
    assert list(outcomes(job).values()) == ["unique"] * 10


def test_a_fault_of_the_machine_ends_the_job(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file is written off for it, and the next start judges all of them."""
    job = new_job(spark=READ_BY_SPARK)
    files_with_poison(job)
    with monkeypatch.context() as patch:
        poisoned(patch, "task", f"[Errno {errno.EIO}] {os.strerror(errno.EIO)}", None, tmp_path, OSError)
        with pytest.raises(PythonException, match="Input/output error"):
            job.run()
    assert not outcomes(job)
    job.run()
    assert list(outcomes(job).values()) == ["unique"] * 10


@pytest.mark.night
def test_what_fails_over_every_file_ends_the_job(new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a window of one file."""
    job = new_job(source={"max_files_per_batch": 1}, spark=READ_BY_SPARK)
    for key in "ab":
        job.add_records([{"k": key}])

    def made(_: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            raise LookupError("a module is missing")

        return fail

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "read_function", made)
        with pytest.raises(PythonException, match="a module is missing"):
            job.run()
    assert not outcomes(job)
    job.run()
    assert list(outcomes(job).values()) == ["unique"] * 2


def test_many_files_that_are_no_parquet(
    new_job: Callable[..., Job], judgings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by their ends: no job of Spark's fails over them, with each reader of the others."""
    monkeypatch.setattr(file_batch, "read_apart", lambda batch, ordinals, *_: (batch, []))  # nothing is left for it
    job = new_job(source=_PARQUET)
    good = job.add_table(pa.table({"k": ["a", "b"], "x": [1.0, 2.0]}))
    for number in range(10):
        job.add_file([], f"bad-{number}.parquet").write_bytes(b"PAR1 torn")
    job.run()
    bad = {(f"bad-{number}.parquet", 0): "file_unreadable" for number in range(10)}
    assert outcomes(job) == {(good.name, 0): "unique", (good.name, 1): "unique", **bad}
    assert len(judgings) == 1
