"""A file of the source, in a window: read by name, whole, by one task, so that a row's number is the same in every run.

- Files that were judged before are not even opened.
- A file that vanished or cannot be read becomes one error tuple, and the others are read without it.
- `_metadata` of every row can be held against what was listed: a file that changed since leaves by the error port.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from deduper.config.files import FilesSource
from deduper.config.sections import SourceConfig
from deduper.core.verdict import Admission

# The signs of a path that Java's URIs take as they are.
_PLAIN_IN_URIS = "/;:@&=+$,-_.!~*'()"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the source as it was seen: modification time in ms since the epoch."""

    path: str
    modified_ms: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of one window.

    Time and size are from the moment before the intent. `fate` is ADMITTED unless the file as a whole is an error
    tuple; `problem` then says why.
    """

    path: str
    modified_ms: int
    size_bytes: int
    fate: Admission = Admission.ADMITTED
    problem: str = ""

    @property
    def uri(self) -> str:
        """The path as Spark writes it."""
        return "file://" + "".join(map(_in_uri, self.path))

    @property
    def digest(self) -> bytes:
        """What tells this file from all others, 16 bytes: its path and modification time.

        The size is left out: a replay after the file vanished or grew must still know that it was judged.
        """
        return source_digest(self.path, self.modified_ms)

    @property
    def spellings(self) -> tuple[str, str]:
        """The path, as messages show it: plain, or as in the URI."""
        return self.path, self.uri.removeprefix("file://").removeprefix("file:")

    def is_there(self) -> bool:
        """Whether the file exists now."""
        return Path(self.path).exists()

    def as_error(self, fate: Admission, problem: str) -> SourceFile:
        """The same file, as one error tuple."""
        return replace(self, fate=fate, problem=problem)


def missing_folder(source: SourceConfig) -> Path | None:
    """The folder of files that Spark would refuse to watch, because it is not there; None for patterns and topics."""
    if not isinstance(source, FilesSource) or source.folder != Path(source.path) or source.folder.exists():
        return None
    return source.folder


def source_digest(path: str, modified_ms: int) -> bytes:
    """16 bytes that name a file as it was listed, for as long as the store lives."""
    return hashlib.blake2b(f"{modified_ms}\0{path}".encode(), digest_size=16).digest()


def stat_files(listed: Iterable[ListedFile]) -> list[SourceFile]:
    """The files as they are now, in source order; one that is gone becomes an error tuple."""
    files = []
    for file in listed:
        try:
            found = Path(file.path).stat()
        except OSError as exc:
            gone = SourceFile(file.path, file.modified_ms, 0)
            files.append(gone.as_error(Admission.FILE_MISSING, f"{file.path}: {exc.strerror or exc}"))
        else:
            files.append(SourceFile(file.path, found.st_mtime_ns // 1_000_000, found.st_size))
    return sorted(files, key=source_order)


def stat(path: str) -> ListedFile | None:
    """The file as it is now; None when it is gone."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return ListedFile(path, found.st_mtime_ns // 1_000_000, found.st_size)


def source_order(file: ListedFile | SourceFile) -> tuple[int, str]:
    """Sorts files as the tuples of a window come: by modification time, then by path."""
    return file.modified_ms, file.path


def _in_uri(character: str) -> str:
    """Java quotes what ASCII does not allow in a path, and of the rest only spaces and controls."""
    if character < "\x80" or unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc"):
        return quote(character, safe=_PLAIN_IN_URIS)
    return character
