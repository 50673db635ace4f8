"""What a failure of Spark says in one line, wherever it has come from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from pyspark.errors import PythonException

from deduper.cli import main
from deduper.errors import CannotWriteError, ExitCode, exit_code_of, telling_where
from deduper.spark.failures import cannot_write, innermost_cause, raised_in_worker

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


def test_a_failed_job_is_told_without_javas_stack(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line of the message is what the worker has raised."""
    text = _JOB.replace("deduper.errors.CannotWriteError: /dev/shm/spool/a.rows:", "ValueError:")
    main._print_error(PythonException(text), ExitCode.FAILED)
    reported = capsys.readouterr().err
    assert reported.startswith("error: An error occurred while calling z:org.apache.spark")
    assert reported.endswith("\nValueError: No space left on device\n")


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
