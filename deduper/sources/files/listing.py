"""Finds the files of a source: the names that Spark's own file source would find, without its memory of them.

- A path without a pattern is a folder, or one file. A pattern is Hadoop's: `*`, `?`, `[a-z]`, `[^a]`, `{a,b}`, `\\*`;
  whatever it matches is a folder or a file again.
- Of a folder count the files right in it, and those of its partition folders (`name=value`), however deep they lie.
- Names that begin with `_` or `.` are hidden, and so are those that end in `._COPYING_`, which a client of Hadoop is
  still writing. A partition folder may begin with `_`.

Spark's stream keeps every name it has ever seen in a log and in the JVM, and its state stops a job whose folder was
moved. The store has a record of the judged files, so a listing keeps no names, only the times at which folders changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from wcmatch import glob

from deduper.config.files import FilesSource

_PATTERN_CHARACTERS = "*?[{\\"
_PATTERN = glob.BRACE | glob.DOTMATCH | glob.NODOTDIR | glob.FORCEUNIX


_FULL_EVERY_S = 60.0
_SETTLED_NS = 2_000_000_000
"""A folder that was changed longer ago than this gets another time with its next change, whatever a time's fineness."""

_Folders = dict[str, tuple[int, tuple[str, ...]]]
"""The modification time of a folder, ns, and its partition folders, from when it was read last."""


class Listing:
    """Lists a source again and again, and reads no folder twice that was not changed in between.

    A file system whose clock is another one might hide a change; so from time to time every folder is read.
    """

    def __init__(self, source: FilesSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._folders: _Folders = {}
        self._next_full = clock()

    def changed(self) -> list[str]:
        """The absolute paths of the files in the folders that were changed since the last call; all in the first.

        Raises:
            OSError: a folder cannot be read; the next call lists all.
        """
        now = self._clock()
        if now >= self._next_full:
            self._folders.clear()
            self._next_full = now + _FULL_EVERY_S
        try:
            return _listed(self._source, self._folders)
        except OSError:
            self._next_full = now
            raise


def list_files(source: FilesSource) -> list[str]:
    """The absolute paths of the files that the source has now, in no order.

    Raises:
        OSError: a folder cannot be read; one that vanishes meanwhile is none.
    """
    return _listed(source, {})


def _listed(source: FilesSource, folders: _Folders) -> list[str]:
    roots = glob.glob(source.path, flags=_PATTERN) if is_pattern(source.path) else [source.path]
    paths: list[str] = []
    for root in roots:
        if os.path.isdir(root):  # noqa: PTH112  # paths are texts here: a million of them are listed
            paths.extend(_files_below(root.rstrip("/") or "/", folders))
        elif os.path.isfile(root) and not _is_hidden(os.path.basename(root)):  # noqa: PTH113, PTH119
            paths.append(root)
        elif not is_pattern(source.path):
            raise FileNotFoundError(2, os.strerror(2), root)
    return paths


def is_pattern(path: str) -> bool:
    """Whether a path of a source is a pattern."""
    return any(character in path for character in _PATTERN_CHARACTERS)


def _files_below(folder: str, folders: _Folders) -> Iterator[str]:
    prefix = folder if folder.endswith("/") else folder + "/"
    changed_ns = os.stat(folder).st_mtime_ns  # noqa: PTH116  # a text, as above
    known = folders.get(folder)
    if known is not None and known[0] == changed_ns:
        below = known[1]
    else:
        is_settled = changed_ns < time.time_ns() - _SETTLED_NS
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir():
                    if _is_partition(name):
                        names.append(name)
                elif not _is_hidden(name) and entry.is_file():
                    yield prefix + name
        below = tuple(names)
        if is_settled:
            folders[folder] = changed_ns, below
        else:
            folders.pop(folder, None)
    for name in below:
        try:
            yield from _files_below(prefix + name, folders)
        except FileNotFoundError:
            folders.pop(prefix + name, None)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def _is_partition(name: str) -> bool:
    return "=" in name and not name.startswith((".", "="))
