"""Damage that a task meets keeps its meaning on the way to the driver."""

from __future__ import annotations

from pyspark.errors import PythonException

from bucket_store.errors import SpaceError
from deduper.errors import ExitCode, exit_code_of
from deduper.spark.failures import raised_in_worker

_TEXT = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/piece_reader.py", line 59, in header
bucket_store.errors.{}

	at py4j.Protocol.getReturnValue(Protocol.java:476)"""


def raised(line: str) -> Exception:
    """What Spark gives for an exception with this line."""
    return raised_in_worker(PythonException(_TEXT.format(line)))


def test_corruption_ends_with_its_exit_code() -> None:
    """A supervisor that restarts on 1 must not restart on damage."""
    error = raised("CorruptionError: pieces/0000/000001-x.piece: at byte 85: piece x: expected 1, found 2")
    assert exit_code_of(error) is ExitCode.INTEGRITY
    assert "pieces/0000/000001-x.piece: at byte 85: piece x: expected 1, found 2" in str(error)
    assert "deduper verify" in str(error)
    assert exit_code_of(raised("UnknownFormatError: pieces/a: version 2")) is ExitCode.INTEGRITY


def test_other_errors_keep_their_kind() -> None:
    """A full disk is one; what is none of the store's passes as it is."""
    assert isinstance(raised("SpaceError: no room"), SpaceError)
    for other in (
        PythonException("ValueError: no"),
        ValueError("bucket_store.errors.CorruptionError: x"),
        raised("Nonsense: x"),
    ):
        assert raised_in_worker(other) is other
