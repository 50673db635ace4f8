"""A file that Spark fails over is found, whatever the failure says, and nothing else is taken for one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.errors import ParseException, PySparkException

from deduper.config.files import FilesSource
from deduper.core.verdict import Admission
from deduper.sources.files.plan import layout_of
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.sources.files.unreadable import read_apart
from deduper.sources.files.window_files import WindowFiles
from tests.deduper.sources.host_files import sound_file_in
from tests.spark.harness import Job

Fails = Callable[[WindowFiles, Sequence[int]], str | None]


class Reader:
    """Reads groups of files, and fails as it is asked to; `calls` are the groups of files of the window."""

    def __init__(self, fails: Fails) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.sound_files: list[Path] = []
        self._fails = fails

    def __call__(self, batch: WindowFiles, ordinals: Sequence[int]) -> tuple[int, ...]:
        path = Path(batch.files[ordinals[0]].path)
        if path.name == "sound":
            self.sound_files.append(path)
        else:
            self.calls.append(tuple(ordinals))
        problem = self._fails(batch, ordinals)
        if problem is not None:
            raise PySparkException(problem)
        return tuple(ordinals)


def batch_of(folder: Path, names: Sequence[str], file_format: str = "json") -> WindowFiles:
    """Files of these names."""
    source = Job(folder, None, {"source": {"file_format": file_format}}).config.source
    assert isinstance(source, FilesSource)
    (folder / "in").mkdir(exist_ok=True)
    for name in names:
        (folder / "in" / name).write_text("{}\n")
    return WindowFiles(source, tuple(stat_files([ListedFile(str(folder / "in" / name), 0) for name in names])))


def read_all(batch: WindowFiles, folder: Path, reader: Reader) -> WindowFiles:
    """The batch as it was read; every file was read just once, or is an error tuple."""
    read, results = read_apart(batch, range(len(batch.files)), sound_file_in(folder), reader)
    assert sorted(ordinal for group in results for ordinal in group) == list(read.readable)
    return read


@pytest.mark.slow
@pytest.mark.parametrize("says_which", [False, True], ids=["no name", "named"])
@pytest.mark.parametrize("bad", [[], [0], [63], [7, 8], [1, 20, 40, 60], list(range(64))], ids=str)
def test_the_bad_files_are_found(tmp_path: Path, bad: list[int], says_which: bool) -> None:
    """Each is tried alone, twice, after some tries in halves; what could be read is not read again."""

    def fails(batch: WindowFiles, ordinals: Sequence[int]) -> str | None:
        met = [n for n in ordinals if n in bad and len(batch.files) > 1]
        name = f" over {batch.files[met[-1]].path}" if met and says_which else ""
        return f"never heard of{name}" if met else None

    reader = Reader(fails)
    read = read_all(batch_of(tmp_path, [f"{n:02d}" for n in range(64)]), tmp_path, reader)
    assert read.errors == bad
    for ordinal in bad:
        file = read.files[ordinal]
        assert file.admission is Admission.FILE_UNREADABLE
        assert file.problem.startswith(f"{file.path}: never heard of")
        assert reader.calls.count((ordinal,)) == 2
    assert len(reader.sound_files) == bool(bad)
    most = 4 if says_which else 2 * math.log2(64) + 2
    assert len(reader.calls) <= 1 + most * len(bad)


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_one_file_alone(tmp_path: Path, file_format: str) -> None:
    """A window of one file is not wedged by it: a file of our own says whether it is to blame."""
    reader = Reader(lambda batch, _: "odd" if batch.files[0].path.endswith("only") else None)
    read = read_all(batch_of(tmp_path, ["only"], file_format), tmp_path, reader)
    assert read.errors == [0]
    assert reader.calls == [(0,), (0,)]
    (sound,) = reader.sound_files
    if file_format == "parquet":
        table = parquet.read_table(sound)
        assert table.num_rows == 1
        assert {name.lower() for name in table.column_names}.isdisjoint({"k", "t"})
    else:
        assert sound.read_bytes() == b"\n"


def test_what_fails_over_any_file_is_no_fault_of_one(tmp_path: Path) -> None:
    """It is raised, after one more try."""
    reader = Reader(lambda *_: "Spark has no workers")
    with pytest.raises(PySparkException, match="no workers"):
        read_all(batch_of(tmp_path, ["a", "b"]), tmp_path, reader)
    assert reader.calls == [(0, 1)]
    assert len(reader.sound_files) == 1


@pytest.mark.parametrize("failures", [1, 2])
def test_what_fails_now_and_then_is_tried_again(tmp_path: Path, failures: int) -> None:
    """No file is written off when it is read at the next try."""
    left = [None, "odd", "odd"][: failures + 1]
    reader = Reader(lambda batch, _: left.pop() if len(batch.files) > 1 and left else None)
    assert not read_all(batch_of(tmp_path, ["a", "b"]), tmp_path, reader).errors


def test_files_that_only_together_are_too_many(tmp_path: Path) -> None:
    """Are read in groups."""
    reader = Reader(lambda _, ordinals: "too much" if len(ordinals) > 3 else None)
    assert not read_all(batch_of(tmp_path, [f"{n}" for n in range(16)]), tmp_path, reader).errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "Caused by: java.io.IOException: Input/output error",
        "java.io.FileNotFoundException: {} (Too many open files)",
        "Caused by: java.lang.OutOfMemoryError: Java heap space",
        "Caused by: org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] 9 bytes",
        "Caused by: java.lang.OutOfMemoryError",
        "pyarrow.lib.ArrowMemoryError: malloc of size 64 failed",
        'Caused by: java.io.IOException: Cannot run program "python3": error=12, Cannot allocate memory',
        "Caused by: java.nio.file.FileSystemException: /tmp/blockmgr/0c: No space left on device",
        "Caused by: java.io.UncheckedIOException: java.io.IOException: Stale file handle",
        "OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device",
        "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: Input/output error",
        "An error occurred while calling o1.get.\n: org.apache.spark.SparkException: Job aborted due to "
        "stage failure: Task 1 in stage 4.0 failed 1 times, most recent failure: Lost task 1.0 in stage 4.0 (TID 9) "
        "(host executor driver): java.io.IOException: No space left on device",
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 4.0 failed 1 times, most "
        "recent failure: Lost task 1.0 in stage 4.0 (TID 9) (host executor driver): ExecutorLostFailure (executor "
        "driver exited caused by one of the running tasks) Reason: gone",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "java.io.IOException: Mkdirs failed to create file:/x",
        "OSError: [Errno 116] Stale file handle",
        "java.io.IOException: No space left on device",
        "Python worker exited unexpectedly (crashed)",
        "Job 3 cancelled because SparkContext was shut down",
        "\nTraceback\ndeduper.errors.CannotWriteError: /dev/shm/spool: No space left on device",
    ],
)
@pytest.mark.parametrize("is_message", [True, False], ids=["message", "trace"])
def test_a_fault_of_the_machine_writes_no_file_off(tmp_path: Path, fault: str, is_message: bool) -> None:
    """Wherever Spark says so, and though it names the file: it is raised at once."""
    batch = batch_of(tmp_path, ["a", "b"])
    error = PySparkException(f"[FAILED_READ_FILE] {batch.files[0].uri}\n{fault.format(batch.files[0].path)}")
    if not is_message:
        error = PySparkException(f"[FAILED_READ_FILE] {batch.files[0].uri}")
        error._stackTrace = fault  # type: ignore[attr-defined]  # where PySpark keeps it

    def read(*_: object) -> int:
        raise error

    with pytest.raises(PySparkException) as raised:
        read_apart(batch, [0, 1], sound_file_in(tmp_path), read)
    assert raised.value is error


@pytest.mark.parametrize(
    "says",
    [
        "[MALFORMED_CSV_RECORD] Malformed CSV record: a,java.lang.OutOfMemoryError: x,No space left on device",
        "Caused by: org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed CSV record: OutOfMemory",
        "Caused by: java.lang.IllegalArgumentException: column No space left on device",
        "Caused by: java.util.NoSuchElementException: Input/output error",
        "Caused by: org.apache.parquet.io.ParquetDecodingException: Can not read value at 1 in block 0 of MemoryError",
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in "
        "stage 1.0 (TID 1) (host executor driver): java.lang.RuntimeException: ExecutorLostFailure (executor 1",
        "Caused by: java.io.IOException: No space left on device is in column 3",
        "ValueError: [Errno 2] No such file or directory",
    ],
)
@pytest.mark.parametrize("is_message", [True, False], ids=["message", "trace"])
def test_data_is_no_fault_of_the_machine(tmp_path: Path, says: str, is_message: bool) -> None:
    """A line of the source, or the name of a column, may say anything: the file is found, and leaves alone."""
    error = PySparkException(says if is_message else "[FAILED_READ_FILE]")
    if not is_message:
        error._stackTrace = says  # type: ignore[attr-defined]  # where PySpark keeps it

    def read(batch: WindowFiles, ordinals: Sequence[int]) -> int:
        if 0 in ordinals and len(batch.files) > 1:
            raise error
        return 0

    got, _ = read_apart(batch_of(tmp_path, ["a", "b"]), [0, 1], sound_file_in(tmp_path), read)
    assert got.errors == [0]


def test_a_name_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    """A file may be named after an error."""
    names = ["OutOfMemory.json", "MemoryError Input%2Foutput error.json"]
    reader = Reader(
        lambda batch, ordinals: (
            " ".join(batch.files[n].uri + batch.files[n].path for n in ordinals) if len(batch.files) > 1 else None
        )
    )
    assert read_all(batch_of(tmp_path, names), tmp_path, reader).errors == [0, 1]


def test_files_that_are_gone_are_told_apart(tmp_path: Path) -> None:
    """All of them at once; the others are read."""
    batch = batch_of(tmp_path, ["a", "b", "c"])

    def fails(batch: WindowFiles, ordinals: Sequence[int]) -> str | None:
        for ordinal in ordinals[:2]:
            Path(batch.files[ordinal].path).unlink(missing_ok=True)
        return "[PATH_NOT_FOUND]" if len(ordinals) == 3 else None

    reader = Reader(fails)
    read, results = read_apart(batch, [0, 1, 2], sound_file_in(tmp_path), reader)
    assert [file.admission for file in read.files] == [
        Admission.FILE_MISSING,
        Admission.FILE_MISSING,
        Admission.ADMITTED,
    ]
    assert results == [(2,)]
    assert not reader.sound_files


def test_a_name_that_is_no_text_is_not_for_spark(tmp_path: Path) -> None:
    """It is an error tuple of texts at once; Spark is asked for the others."""
    reader = Reader(lambda *_: None)
    read = read_all(batch_of(tmp_path, ["a", os.fsdecode(b"\xff"), "b"]), tmp_path, reader)
    (odd,) = read.errors
    assert read.files[odd].problem == f"{tmp_path}/in/\\udcff: its name is no UTF-8, so Spark cannot open it: rename it"
    assert reader.calls == [tuple(read.readable)]


def test_a_refused_plan_writes_no_file_off(tmp_path: Path) -> None:
    """Spark refuses it before it opens a file: the error ends the job, with its message, at once."""
    calls: list[tuple[int, ...]] = []

    def refused(_: WindowFiles, ordinals: Sequence[int]) -> None:
        calls.append(tuple(ordinals))
        raise ParseException("The unquoted identifier größe is invalid")

    with pytest.raises(ParseException, match="unquoted identifier"):
        read_apart(batch_of(tmp_path, ["a", "b"]), (0, 1), sound_file_in(tmp_path), refused)
    assert calls == [(0, 1)]


def test_the_sound_file_has_the_layout_of_the_one_that_failed(tmp_path: Path) -> None:
    """A layout that Spark cannot read writes no file off, though it reads the others."""
    (tmp_path / "in" / "t=1").mkdir(parents=True)

    def fails(batch: WindowFiles, ordinals: Sequence[int]) -> str | None:
        folders = [layout_of(batch.source, batch.files[ordinal]).folders for ordinal in ordinals]
        return "folders are odd" if ("t",) in folders else None

    reader = Reader(fails)
    with pytest.raises(PySparkException, match="folders are odd"):
        read_all(batch_of(tmp_path, ["a", "t=1/b", "c"]), tmp_path, reader)
    assert reader.calls[0] == (0, 1, 2)
    assert len(reader.calls[-1]) == 1
    assert len(reader.sound_files) == 2
