"""A file of a window, and the errors that belong to a file as a whole."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import pyarrow as pa

from deduper.core.verdict import Admission
from deduper.spark.failures import is_passing
from deduper.tasks.readers.path_columns import PathValue

_ASKED = re.compile(r"of size (\d+) failed")


class WindowFile(Protocol):
    """A file of a window as this room sees it; `deduper.sources` lists them."""

    @property
    def path(self) -> str:
        """Its absolute path, which tasks open."""

    @property
    def modified_ms(self) -> int:
        """When it was last written, as it was listed: a task refuses another time. ms since the epoch."""

    @property
    def size_bytes(self) -> int:
        """Its size as it was listed: a task refuses another one."""


class FileFault(Exception):
    """A file that leaves as one error tuple; the text says why, without its path."""

    admission: ClassVar[Admission]


class FileChanged(FileFault):
    """Another file has the name of the one that was listed."""

    admission = Admission.FILE_CHANGED


class FileGone(FileFault):
    """The file is not there any more."""

    admission = Admission.FILE_MISSING


class UnreadableFile(FileFault):
    """No reader can read it, whole."""

    admission = Admission.FILE_UNREADABLE


class CutOffFile(UnreadableFile):
    """It ends early: what comes before the cut is whole lines, and was read."""


class MisheadedFile(FileFault):
    """Its first line is not the header of the declared columns."""

    admission = Admission.FILE_HEADER


class FileReason(NamedTuple):
    """Why a file leaves as one error tuple. `text` is without its path."""

    admission: Admission
    text: str


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a window, as it was listed; `ordinal` is its place there.

    Its records take about `decoded_bytes` decoded. `in_path` are the values that its path gives to
    columns, by their numbers. `rows` are those that the file itself counts; None where it does not. A file with a
    `fault` is not read. `has_changed`: it is read as it is found, and its records are errors.
    """

    path: str
    ordinal: int
    modified_ms: int
    size_bytes: int
    decoded_bytes: int
    in_path: Mapping[int, PathValue]
    rows: int | None
    fault: FileReason | None = None
    has_changed: bool = False

    @classmethod
    def of(
        cls,
        file: WindowFile,
        ordinal: int,
        decoded_bytes: int,
        in_path: Mapping[int, PathValue],
        rows: int | None = None,
    ) -> FilePart:
        """The part for a listed file."""
        return cls(file.path, ordinal, file.modified_ms, file.size_bytes, decoded_bytes, in_path, rows)

    @classmethod
    def with_fault(cls, file: WindowFile, ordinal: int, fault: FileReason) -> FilePart:
        """The part for a file that is an error as a whole."""
        return cls(file.path, ordinal, file.modified_ms, file.size_bytes, 0, {}, None, fault)

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path

    def said(self, fault: str) -> str:
        """The text of an error tuple about this file."""
        return f"{self.path}: {fault}".encode("utf-8", "backslashreplace").decode()

    def as_now(self) -> FilePart:
        """The part with the time and the size that the file has now.

        Raises:
            FileGone, UnreadableFile: it cannot be looked at.
        """
        with decoding(self.path):
            found = Path(self.path).stat()
        return replace(self, modified_ms=found.st_mtime_ns // 1_000_000, size_bytes=found.st_size)

    def check(self) -> None:
        """Raises FileChanged or FileGone when it is not the file any more that was listed."""
        if self.has_changed:
            return
        if self.as_now() != self:
            raise FileChanged("changed since it was listed")


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Turns errors about a file into FileGone or UnreadableFile; faults of the machine pass unchanged."""
    try:
        yield
    except FileNotFoundError as exc:
        raise FileGone(exc.strerror) from exc
    except (OSError, ValueError, zlib.error, pa.ArrowException) as exc:
        if is_passing(exc, [path]) and not _is_beyond_memory(exc):
            raise
        raise UnreadableFile(exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)) from exc


def _is_beyond_memory(error: Exception) -> bool:
    """Whether Arrow asked for more memory than the machine has: a damaged page may state any size."""
    asked = _ASKED.search(str(error)) if isinstance(error, pa.ArrowMemoryError) else None
    return asked is not None and int(asked[1]) > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
