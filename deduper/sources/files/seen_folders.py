"""Whether a file that cannot be found is gone, or its folder is away: a mount, a network file system, rights.

A file is gone if the system finds no such name while the folder it was listed in is there and the same, by device and
inode: an unmounted file system leaves an empty folder of the same name. After every other answer the file may exist,
and then it must not become an error: what is judged once is never read again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from deduper.errors import SourceAwayError

NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
"""The system's answers for a name that does not exist."""

_OF_ENTRY = (errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)
"""The system's answers about what a name leads to; they may also be about a folder above the file."""

FolderId = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class SeenFolders:
    """The folders of a source as a listing met them. A value.

    `root` is the folder of the source; without it, a file's own folder must be there.
    """

    root: str | None = None
    ids: Mapping[str, FolderId] = field(default_factory=dict)

    def is_gone(self, path: str) -> bool:
        """Whether the file exists no more.

        Raises:
            SourceAwayError: that is unknown.
        """
        try:
            if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # a text, as in the listing
                return False
        except OSError as exc:
            if exc.errno not in NOT_THERE:
                raise SourceAwayError(f"{path}: {exc.strerror}") from exc
        self.require(path)
        return True

    def require(self, path: str) -> None:
        """Check that the folder of a listed file is there and the same; a folder may be gone with all its files.

        Raises:
            SourceAwayError: otherwise.
        """
        folder = os.path.dirname(path)  # noqa: PTH120
        while True:
            try:
                found = os.stat(f"{folder}/.")  # noqa: PTH116  # with the dot: it may be searched, too
            except OSError as exc:
                if exc.errno not in NOT_THERE or not self._is_below_root(folder):
                    raise SourceAwayError(f"{folder}: {exc.strerror}: it was there when it was listed") from exc
                folder = os.path.dirname(folder)  # noqa: PTH120
                continue
            if self.ids.get(folder, id_of(found)) != id_of(found):
                raise SourceAwayError(
                    f"{folder}: another folder is there than the one that was listed: a mount is away?"
                )
            return

    def require_readable(self, path: str) -> None:
        """Check, before a file becomes an error because it cannot be read, that the fault is the file's own.

        If the right to read is missing for this file alone, its folder can be read.

        Raises:
            SourceAwayError: the folder cannot be read, or the file cannot be opened for another reason.
        """
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                file.read(1)
        except OSError as exc:
            if exc.errno not in (errno.EACCES, errno.EPERM):
                raise SourceAwayError(f"{path}: {exc.strerror}") from exc
            self.require(path)
            try:
                os.scandir(os.path.dirname(path)).close()  # noqa: PTH120
            except OSError as of_folder:
                raise SourceAwayError(f"{of_folder.filename}: {of_folder.strerror}") from exc

    def _is_below_root(self, folder: str) -> bool:
        return self.root is not None and folder.startswith(self.root.rstrip("/") + "/")


def id_of(found: os.stat_result) -> FolderId:
    """Device and inode: they distinguish a folder from another one of the same name."""
    return found.st_dev, found.st_ino


def is_of_entry(error: OSError) -> bool:
    """Whether an error may be about what one name of a folder leads to, and about nothing else."""
    return error.errno in _OF_ENTRY
