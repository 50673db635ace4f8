"""The meaning of Spark's failures: the cause, the error of ours that a worker raised, a full disk, a passing fault.

Through Spark an exception of a task comes to the driver as a `PythonException`, or as the `Py4JJavaError` of the job
that failed for it; the text of both has the worker's traceback. Damage that a task meets must end the job with
another exit code than a failure that a restart heals, and a full disk with the place where it is full.

A passing fault is one of the machine's that the next try may not meet: no file becomes an error tuple over it. It is
recognized by the classes of exceptions, by the system's messages in those of input and output, and by Spark's for a
process that is gone. They count only where a line names an exception: data (a line of the source, the name of a column)
may say anything elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bucket_store.errors import CorruptionError, StorageAwayError, StoreError, UnknownFormatError
from bucket_store.places.place import Place
from deduper.errors import NO_ROOM, CannotWriteError, DeduperError, IntegrityError

# Behind the frames of a Python traceback, which are indented: the exception without its module.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\w.*)")
# A traceback has the exception with its module, whatever room that is in.
_RAISED = re.compile(r"^(?:bucket_store|deduper)(?:\.\w+)*\.(\w+): (.*)$", re.MULTILINE)
_AWAY = re.compile(r"^bucket_store\.errors\.StorageAwayError: (.*)$", re.MULTILINE)
_MISSING = {"DataNode": "writes", "safe mode": "takes changes"}
_NO_REASON = "Mkdirs failed"
_PASSING = (
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *NO_ROOM,
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
)
# Before the exception, in a line that names one; py4j's lines begin with a colon.
_CAUSED_BY = re.compile(r"(?:: |Caused by: )?")
_LOST_TASK = re.compile(
    r"(?:\[[\w.]+\] )?Job aborted due to stage failure: Task [\d.]+ in stage [\d.]+ failed \d+ times, "
    r"most recent failure: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()]*\): "
)
_NAMED = re.compile(r"((?:[\w$]+\.)*[\w$]*(?:Exception|Error))(?:: (.*))?", re.DOTALL)
_OF_IO = re.compile(
    r"(?:IOException|FileNotFoundException|FileSystemException|SocketException|FSError|OSError|IOError)$"
)
_OF_MEMORY = re.compile(r"(?:OutOfMemoryError|MemoryError)$")
_ERRNO = re.compile(r"\[Errno (\d+)\] ")
_SYSTEMS_WORDS = {os.strerror(code): code for code in _PASSING}
# The whole of a message, or its end: `/x: No space …`, `/x (Too many …)`, `error=12, Cannot allocate memory`.
_AT_END = re.compile(rf"(?:^|[:,(] ?)({'|'.join(map(re.escape, _SYSTEMS_WORDS))})\)?$")
_OF_SPARK = ("", "SparkException", "PythonException", "IOException")
_SPARKS_WORDS = re.compile(
    rf"{_NO_REASON}|Python worker (?:exited unexpectedly|faulted)|ExecutorLostFailure \(executor "
    r"|(?:Job \d+|Stage) cancelled because SparkContext was shut down"
)


class _Raised(NamedTuple):
    """An exception as a line of a text names it: its class, without module, and its message."""

    kind: str
    says: str

    @property
    def code(self) -> int | None:
        """The system's number for the fault that it tells; None when it tells none that may pass."""
        number = _ERRNO.match(self.says)
        if number is not None:
            return int(number[1]) if int(number[1]) in _PASSING else None
        words = _AT_END.search(self.says) if _OF_IO.search(self.kind) else None
        return None if words is None else _SYSTEMS_WORDS[words[1]]

    @property
    def is_of_machine(self) -> bool:
        """Whether it is a passing fault."""
        is_sparks = self.kind in _OF_SPARK and _SPARKS_WORDS.match(self.says) is not None
        return is_sparks or _OF_MEMORY.search(self.kind) is not None or self.code is not None


def _raised(text: str) -> Iterator[_Raised]:
    """What the lines of a text name at their beginning. Other lines are given with no class."""
    for line in text.split("\n"):
        rest = line[_CAUSED_BY.match(line).end() :]  # type: ignore[union-attr]  # it matches nothing, too
        while True:
            named = _NAMED.fullmatch(rest)
            kind, says = ("", rest) if named is None else (re.split(r"[.$]", named[1])[-1], named[2] or "")
            yield _Raised(kind, says)
            lost = _LOST_TASK.match(says)
            if lost is None:
                break
            rest = says[lost.end() :]


def innermost_cause(error: BaseException) -> str:
    """A Python worker's exception if there is one, else the innermost cause or first line; at most 500 characters."""
    text = whole_text(error).strip()
    raised = _TRACEBACK.findall(text)
    if raised:
        return str(raised[-1])[:500]
    causes = re.findall(r"^Caused by: (?:[\w$]+\.)*(.+)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.split("\n", 1)[0])[:500]


def readable_cause(error: BaseException) -> str:
    """`innermost_cause` as one sentence of Spark's, without its codes and the names of Java's classes."""
    text = " ".join(_text_of(error).split())
    text = re.sub(r"^(?:Error while instantiating |An error occurred while calling )\S+:?\s*:? ?", "", text)
    text = re.sub(r"^(?:(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error): ?)+", "", text)
    text = re.sub(r"^\[[A-Z_.\d]+\] ", "", text)
    return re.sub(r" SQLSTATE: \w+$", "", text).rstrip(".") or type(error).__name__


def _text_of(error: BaseException) -> str:
    """The message up to Java's frames, or what has caused it."""
    text = whole_text(error)
    if _TRACEBACK.search(text) or "\nCaused by: " in text:
        return innermost_cause(error)
    return re.split(r"\n\s*(?:JVM stacktrace:|at [\w.$/]+\()", text.strip(), maxsplit=1)[0][:500]


def message_of(error: BaseException) -> str:
    """The message for a person: of a file's error with the file, of Spark's failure its cause."""
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return f"Spark failed: {readable_cause(error)}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        is_here = "://" not in str(error.filename)  # a storage elsewhere has words of its own
        remedy = "; let this user read and write there" if isinstance(error, PermissionError) and is_here else ""
        return f"{error.filename}: {error.strerror}{remedy}"
    return str(error).strip() or type(error).__name__


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
        found: Exception = IntegrityError(f"{message}; see `deduper verify` and docs/recovery.md")
    else:
        found = kind.__new__(kind, message)  # its __init__ may ask for more than a message
    found.__cause__ = error
    return found


def storage_away(error: Exception) -> StorageAwayError | None:
    """The error of a storage that was away, raised here or in a worker, by itself or as the cause of another."""
    cause: BaseException | None = error
    seen = set[int]()  # a user's function may raise errors that cause each other
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, StorageAwayError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    raised = _AWAY.search(str(error))
    if raised is None:
        return None
    away = StorageAwayError(raised[1])
    # Its text is all that comes from a task.
    away.missing = next((missing for word, missing in _MISSING.items() if word in raised[1]), away.missing)
    return away


def _below(root: type[Exception]) -> Iterator[type[Exception]]:
    """An error class and all that are derived from it."""
    yield root
    for kind in root.__subclasses__():
        yield from _below(kind)


def cannot_write(error: Exception, what: str, place: Path | Place) -> CannotWriteError | None:
    """The error to raise instead of Spark's, over a full or read-only disk; None when it is about something else."""
    if raised_in_worker(error) is not error:
        return None  # Ours, with its place.
    raised = list(_raised(whole_text(error)))
    reason = next((os.strerror(one.code) for one in raised if one.code in NO_ROOM and one.code is not None), None)
    if reason is None and any(one.kind in _OF_SPARK and one.says.startswith(_NO_REASON) for one in raised):
        reason = _state_of(place if isinstance(place, Path) else place.local) if _is_here(place) else None
    if reason is None:
        return None
    return CannotWriteError(
        f"{place}: {reason}: Spark could not write {what} there, or its own files (`spark.local.dir`, /tmp)"
    )


def _is_here(place: Path | Place) -> bool:
    return isinstance(place, Path) or place.names.scheme == "file"


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
    """Whether an error is of the machine; `paths` are those of files, which a message of the system may name."""
    if isinstance(error, OSError):
        return error.errno in _PASSING
    if isinstance(error, MemoryError) or raised_in_worker(error) is not error:
        return True  # Our own errors of a task are never about a file that it read.
    text = whole_text(error)
    for path in paths:
        text = text.replace(path, "")
    return any(raised.is_of_machine for raised in _raised(text))
