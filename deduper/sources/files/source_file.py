"""A file of the source, in a window: read by name, whole, by one task, so that a row's number is the same in every run.

- Files that were judged before are not even opened.
- A file that vanished or cannot be read becomes one error tuple, and the others are read without it.
- The records of a file that has changed since it was listed leave by the error port.
"""

from __future__ import annotations

import hashlib
import os
import stat as modes
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from deduper.config.files import FilesSource
from deduper.config.sections import SourceConfig
from deduper.core.verdict import Admission
from deduper.errors import SourceAwayError
from deduper.sources.files.seen_folders import NOT_THERE, SeenFolders


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the source as it was seen: modification time in ms since the epoch."""

    path: str
    modified_ms: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of one window.

    Time and size are from the moment before the intent. `admission` is ADMITTED unless the file as a whole is an error
    tuple; `problem` then says why, without its path.
    """

    path: str
    modified_ms: int
    size_bytes: int
    admission: Admission = Admission.ADMITTED
    problem: str = ""

    @property
    def digest(self) -> bytes:
        """16 bytes that identify this file, by its path and modification time.

        The size is left out: a replay after the file vanished or grew must still know that it was judged.
        """
        return source_digest(self.path, self.modified_ms)

    @property
    def name(self) -> str:
        """The path as the store and the outputs have it."""
        return shown(self.path)

    def as_error(self, admission: Admission, problem: str) -> SourceFile:
        """The same file, as one error tuple."""
        return replace(self, admission=admission, problem=shown(problem))


def missing_folder(source: SourceConfig) -> Path | None:
    """The folder of files that Spark would refuse to watch, because it is not there; None for patterns and topics."""
    if not isinstance(source, FilesSource) or source.folder != Path(source.path) or source.folder.exists():
        return None
    return source.folder


def shown(path: str) -> str:
    """A path as a text: a byte that is no UTF-8 (Python has a surrogate for it) is written as an escape, `\\udcff`.

    If two names differ only in that one has such a byte and the other its escape, their texts are equal.
    """
    return path.encode("utf-8", "backslashreplace").decode()


def source_digest(path: str, modified_ms: int) -> bytes:
    """16 bytes that name a file as it was listed, for as long as the store lives."""
    return hashlib.blake2b(f"{modified_ms}\0{path}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


def stat_files(listed: Iterable[ListedFile], folders: SeenFolders | None = None) -> list[SourceFile]:
    """The files as they are now, in source order; one that is gone becomes an error tuple.

    `folders` are those of the listing; without them, a file is gone when its own folder is there.

    Raises:
        SourceAwayError: it is unknown whether a file is gone.
    """
    folders = SeenFolders() if folders is None else folders
    files = []
    for file in listed:
        try:
            found = stat(file.path)
        except OSError as exc:
            raise SourceAwayError(f"{file.path}: {exc.strerror or exc}") from exc
        if found is not None:
            files.append(SourceFile(file.path, found.modified_ms, found.size_bytes))
        elif folders.is_gone(file.path):
            gone = SourceFile(file.path, file.modified_ms, 0)
            files.append(gone.as_error(Admission.FILE_MISSING, "no such file any more"))
        else:
            raise SourceAwayError(f"{file.path}: it is away now and then")
    return sorted(files, key=source_order)


def stat(path: str) -> ListedFile | None:
    """The file as it is now; None when there is no file of this name.

    Raises:
        OSError: that is unknown.
    """
    try:
        found = os.stat(path)  # noqa: PTH116  # a path of a listing is a text
    except OSError as exc:
        if exc.errno in NOT_THERE:
            return None
        raise
    # A folder in its place would be read as all that lies in it.
    return ListedFile(path, found.st_mtime_ns // 1_000_000, found.st_size) if modes.S_ISREG(found.st_mode) else None


def source_order(file: ListedFile | SourceFile) -> tuple[int, str]:
    """Sorts files as the tuples of a window come: by modification time, then by path."""
    return file.modified_ms, file.path
