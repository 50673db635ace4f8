"""The meaning of Spark's failures: the cause, the error of ours that a worker raised, a full disk, a passing fault.

Through Spark an exception of a task comes to the driver as a `PythonException`, or as the `Py4JJavaError` of the job
that failed for it; the text of both has the worker's traceback. Damage that a task meets must end the job with
another exit code than a failure that a restart heals, and a full disk with the place where it is full.

A passing fault is one of the machine's that the next try may not meet: no file becomes an error tuple over it. It is
recognized by the system's messages, and by Spark's for a process that is gone.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bucket_store.errors import CorruptionError, StoreError, UnknownFormatError
from deduper.errors import NO_ROOM, CannotWriteError, DeduperError, IntegrityError

# Behind the frames of a Python traceback, which are indented: the exception without its module.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\w.*)")
# A traceback has the exception with its module, whatever room that is in.
_RAISED = re.compile(r"^(?:bucket_store|deduper)(?:\.\w+)*\.(\w+): (.*)$", re.MULTILINE)
_NO_REASON = "Mkdirs failed"
_FULL = tuple(os.strerror(code) for code in NO_ROOM)
_PASSING = (
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *NO_ROOM,
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
)
_PASSING_TEXTS = (
    *(os.strerror(code) for code in _PASSING),
    "Mkdirs failed",
    "OutOfMemory",
    "MemoryError",
    "Python worker exited unexpectedly",
    "Python worker faulted",
    "ExecutorLostFailure",
    "SparkContext was shut down",
)


def innermost_cause(error: BaseException) -> str:
    """A Python worker's exception if there is one, else the innermost cause or first line; at most 500 characters."""
    text = whole_text(error).strip()
    raised = _TRACEBACK.findall(text)
    if raised:
        return str(raised[-1])[:500]
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*(.+)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.split("\n", 1)[0])[:500]


def whole_text(error: BaseException) -> str:
    """Its message, and the stack trace of the JVM with all causes, which PySpark keeps beside the message."""
    trace = getattr(error, "_stackTrace", None)
    return f"{error}\n{trace}" if isinstance(trace, str) else str(error)


def raised_in_worker(error: Exception) -> Exception:
    """The error of ours that a worker raised, with its message; `error` itself when it is none of ours."""
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return error
    raised = _RAISED.findall(str(error))
    if not raised:
        return error
    # The last one: it may have been caused by another.
    name, message = raised[-1]
    kind = next((kind for root in (StoreError, DeduperError) for kind in _below(root) if kind.__name__ == name), None)
    if kind is None:
        return error
    if issubclass(kind, CorruptionError | UnknownFormatError):
        found: Exception = IntegrityError(f"{message}; see `deduper verify` and `deduper repair`")
    else:
        found = kind.__new__(kind, message)  # its __init__ may ask for more than a message
    found.__cause__ = error
    return found


def _below(root: type[Exception]) -> Iterator[type[Exception]]:
    """An error class and all that are derived from it."""
    yield root
    for kind in root.__subclasses__():
        yield from _below(kind)


def cannot_write(error: Exception, what: str, place: Path) -> CannotWriteError | None:
    """The error to raise instead of Spark's, over a full or read-only disk; None when it is about something else."""
    text = str(error)
    if raised_in_worker(error) is not error:
        return None  # Ours, with its place.
    reason = next((reason for reason in _FULL if reason in text), None)
    if reason is None and _NO_REASON in text:
        reason = _state_of(place)
    if reason is None:
        return None
    return CannotWriteError(
        f"{place}: {reason}: Spark could not write {what} there, or its own files (`spark.local.dir`, /tmp)"
    )


def _state_of(place: Path) -> str | None:
    """The file system's own reason; None without one. Java reports only that it made no directory."""
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        state = os.statvfs(place)
    except OSError:
        return None
    if state.f_flag & os.ST_RDONLY:
        return "Read-only file system"
    return "No space left on device" if state.f_bavail == 0 else None


def is_passing(error: Exception, paths: Iterable[str] = ()) -> bool:
    """Whether an error is of the machine; `paths` are those of files, in which any of these words may occur."""
    if isinstance(error, OSError):
        return error.errno in _PASSING
    if isinstance(error, MemoryError) or raised_in_worker(error) is not error:
        return True  # Our own errors of a task are never about a file that it read.
    text = whole_text(error)
    for path in paths:
        text = text.replace(path, "")
    return any(words in text for words in _PASSING_TEXTS)
