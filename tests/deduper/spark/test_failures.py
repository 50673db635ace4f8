"""What a failure of Spark says in one line, wherever it has come from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from pyspark.errors import PythonException

from bucket_store.errors import StorageAwayError
from bucket_store.places.place import NotPlacedError
from deduper.cli import command
from deduper.errors import CannotWriteError, ExitCode, exit_code_of, telling_where
from deduper.spark.failures import cannot_write, innermost_cause, raised_in_worker, readable_cause, storage_away

_JOB = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 4.0 failed 1 times, most recent \
failure: Lost task 1.0 in stage 4.0 (TID 9) (host executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/x/spool.py", line 59, in writing
    yield file
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/y/worker.py", line 2044, in main
    process()
    ^^^^^^^^^
  File "/x/full_disk.py", line 33, in telling_where
    raise CannotWriteError(place) from exc
deduper.errors.CannotWriteError: /dev/shm/spool/a.rows: No space left on device

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/full_disk.py", line 33, in telling_where
    raise CannotWriteError(place) from exc
deduper.errors.CannotWriteError: /dev/shm/spool/a.rows: No space left on device

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\t... 1 more
"""


def test_what_a_worker_raised_is_the_cause() -> None:
    """Not the line of Java's that announces a traceback."""
    assert innermost_cause(PythonException(_JOB)) == "CannotWriteError: /dev/shm/spool/a.rows: No space left on device"
    bare = 'Traceback (most recent call last):\n  File "a", line 1\n    1 / 0\n    ~~^~~\nZeroDivisionError\n'
    assert innermost_cause(PythonException(bare)) == "ZeroDivisionError"


@pytest.mark.parametrize("verbose", [False, True])
def test_a_failed_job_is_told_in_one_line_without_java(verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what the worker has raised; the whole trace is there with --verbose."""
    text = _JOB.replace("deduper.errors.CannotWriteError: /dev/shm/spool/a.rows:", "ValueError:")
    command.print_error(PythonException(text), ExitCode.FAILED, verbose=verbose)
    reported = capsys.readouterr().err
    if verbose:
        assert "org.apache.spark.api.python.PythonException" in reported
        assert reported.endswith("\nerror: Spark failed: ValueError: No space left on device\n")
    else:
        assert reported == (
            "error: Spark failed: ValueError: No space left on device; nothing half done is committed; --verbose shows "
            "the whole trace\n"
        )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'abc' is bad. SQLSTATE: 22022\n\nJVM stacktrace:\norg.x.Y",
            "The value 'abc' is bad",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
            "org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'\n\tat org.A.b(A.scala:1)",
            "Could not parse Master URL: 'local[x]'",
        ),
        ("An error\nover two lines\n\tat a.B.c(D.java:1)\nCaused by: java.io.IOException: disk\n", "IOException: disk"),
        ("", "PythonException"),
    ],
)
def test_a_cause_is_a_sentence_without_codes_and_classes_of_java(text: str, cause: str) -> None:
    """What Spark says of a mistake in its settings, and of a failure."""
    assert readable_cause(PythonException(text)) == cause


def test_a_full_disk_met_by_a_worker_keeps_its_place() -> None:
    """It is reported as the worker saw it, and not as something that Spark could not write."""
    raised = raised_in_worker(PythonException(_JOB))
    assert isinstance(raised, CannotWriteError)
    assert str(raised) == "/dev/shm/spool/a.rows: No space left on device"
    assert exit_code_of(raised) is ExitCode.FAILED
    assert cannot_write(PythonException(_JOB), "the outputs", Path("/out")) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_place_that_cannot_be_written_is_told(code: int) -> None:
    """No room, no right, no quota; any other fault of the system passes as it is."""
    with pytest.raises(CannotWriteError, match=f"^/out/x: {os.strerror(code)}$"), telling_where("/out/x"):
        raise OSError(code, "a message without a place")
    with pytest.raises(FileNotFoundError), telling_where("/out/x"):
        raise FileNotFoundError(errno.ENOENT, "no such file")


@pytest.mark.parametrize(
    "error",
    [
        StorageAwayError.of(errno.EIO, "HDFS: refused", "hdfs://nn/state"),
        NotPlacedError(errno.EIO, "HDFS: refused"),
        RuntimeError(
            "Traceback (most recent call last):\n  File x\n"
            "bucket_store.errors.StorageAwayError: hdfs://nn/state: HDFS: refused\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            "Traceback (most recent call last):\n  File x\n"
            "bucket_store.places.place.NotPlacedError: [Errno 5] HDFS: refused: 'hdfs://nn/state'"
        ),
    ],
    ids=["here", "as a cause", "in a task"],
)
def test_a_storage_that_was_away_is_known(error: Exception) -> None:
    """Whatever was raised over it; the work is done again then."""
    if isinstance(error, NotPlacedError):
        error.__cause__ = StorageAwayError.of(errno.EIO, "HDFS: refused", "hdfs://nn/state")
    away = storage_away(error)
    assert away is not None
    assert (str(away), away.missing) == ("hdfs://nn/state: HDFS: refused", "answers")
    assert storage_away(OSError(errno.EIO, "a disk")) is None


def test_a_quota_elsewhere_keeps_its_words() -> None:
    """Which, and what raises it."""
    said = "^hdfs://nn/out: HDFS: the quota; raise it$"
    with pytest.raises(CannotWriteError, match=said), telling_where("hdfs://nn/out"):
        raise OSError(errno.EDQUOT, "HDFS: the quota; raise it", "hdfs://nn/out/x")


def test_causes_that_go_round_end() -> None:
    """Errors of a user's function may cause each other, or themselves."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert storage_away(first) is None
