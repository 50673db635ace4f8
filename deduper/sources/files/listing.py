"""Finds the files of a source, and those of them that their writer has not finished.

They are the names that Spark's own file source would find, without its memory of them:

- A path without a pattern is a folder, or one file. A pattern is Hadoop's: `*`, `?`, `[a-z]`, `[^a]`, `{a,b}`, `\\*`;
  whatever it matches is a folder or a file again.
- Of a folder count the files right in it, and those of its partition folders (`name=value`), however deep they lie.
- Names that begin with `_` or `.` are hidden, and so are those that end in `._COPYING_`, which a client of Hadoop is
  still writing. A partition folder may begin with `_`.

Spark's stream keeps every name it has ever seen in a log and in the JVM, and its state stops a job whose folder was
moved. The store has a record of the judged files, so a listing keeps no names, only the times at which folders changed.

A name with a fault of its own (a link in a circle, or to a place that this user may not enter) is listed too: it may be
a file. The next look at it finds the same fault, and it is passed over with a warning. Every other error means that the
folder cannot be listed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from wcmatch import glob

from deduper.config.files import FilesSource
from deduper.errors import SourceAwayError
from deduper.sources.files.seen_folders import NOT_THERE, FolderId, SeenFolders, id_of, is_of_entry
from deduper.sources.files.source_file import ListedFile, shown, source_order
from deduper.sources.files.source_file import stat as look

logger = logging.getLogger(__name__)

_PATTERN_CHARACTERS = "*?[{\\"
_PATTERN = glob.BRACE | glob.DOTMATCH | glob.NODOTDIR | glob.FORCEUNIX

_FULL_EVERY_S = 60.0
_SETTLED_NS = 2_000_000_000
"""A folder whose last change is older gets another time by its next one, whatever the resolution of times."""

_YOUNG_S = 60.0
_END = b"PAR1"
_LOG, _COMPACT = "_spark_metadata", ".compact"

_Folders = dict[str, tuple[tuple[int, FolderId], tuple[str, ...]]]
"""Of each folder, at its last reading: modification time in ns, device and inode, and its partition folders."""

_Ids = dict[str, FolderId]


class Listing:
    """Lists a source again and again, and reads no folder twice that was not changed in between.

    A file system with another clock might hide a change, so from time to time every folder is read.
    """

    def __init__(self, source: FilesSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._folders: _Folders = {}
        self._next_full = clock()
        self.seen = SeenFolders(str(source.folder))
        """The folders as the last call met them."""

    def changed(self) -> list[str]:
        """The absolute paths of the files in the folders that were changed since the last call; all in the first.

        Raises:
            OSError: a folder cannot be read; the next call lists all.
        """
        now = self._clock()
        if now >= self._next_full:
            self._folders.clear()
            self._next_full = now + _FULL_EVERY_S
        ids: _Ids = {}
        self.seen = SeenFolders(str(self._source.folder), ids)
        try:
            return _all(self._source, self._folders, ids)
        except OSError:
            self.forget()
            raise

    def forget(self) -> None:
        """The next call lists all."""
        self._next_full = self._clock()


def list_files(source: FilesSource) -> list[str]:
    """The absolute paths of the files that the source has now, in no order.

    Raises:
        OSError: a folder cannot be read; one that vanishes meanwhile is none.
    """
    return _all(source, {}, {})


def any_file(source: FilesSource) -> str | None:
    """The absolute path of the first file that a listing meets; None without one.

    Raises:
        OSError: a folder cannot be read.
    """
    return next(listed_files(source), None)


def listed_files(source: FilesSource) -> Iterator[str]:
    """The absolute paths of the files that a listing meets, as it meets them.

    Raises:
        OSError: a folder cannot be read.
    """
    return _listed(source, {}, {})


def _all(source: FilesSource, folders: _Folders, ids: _Ids) -> list[str]:
    paths = _listed(source, folders, ids)
    # `{in,in/*}` matches a folder and the files in it.
    return list(dict.fromkeys(paths) if is_pattern(source.path) else paths)


def _listed(source: FilesSource, folders: _Folders, ids: _Ids) -> Iterator[str]:
    is_many = is_pattern(source.path)
    if is_many:
        # A pattern finds nothing in a folder that is away, and no error either.
        os.stat(source.folder)  # noqa: PTH116  # paths are texts here: a million of them are listed
    roots = glob.glob(source.path, flags=_PATTERN) if is_many else [source.path]
    base = str(source.folder)
    for root in roots:
        mode = _mode(root, is_many=is_many)
        is_file = mode is None or (stat.S_ISREG(mode) and not _is_hidden(os.path.basename(root)))  # noqa: PTH119
        if mode is not None and stat.S_ISDIR(mode):
            yield from _files_below(root.rstrip("/") or "/", folders, ids)
        elif is_file:
            yield root
        elif not is_many:
            raise FileNotFoundError(2, os.strerror(2), root)
        if is_many or is_file:
            _note_above(root, base, ids)


def _mode(root: str, *, is_many: bool) -> int | None:
    """The kind of what the source's path names, 0 for nothing; None for a name that may be a file."""
    try:
        return os.stat(root).st_mode  # noqa: PTH116
    except OSError as exc:
        if is_many and exc.errno in NOT_THERE:
            return 0
        if is_many and is_of_entry(exc):
            return 0 if _is_hidden(os.path.basename(root)) else None  # noqa: PTH119
        raise


def _note_above(path: str, base: str, ids: _Ids) -> None:
    """The folders from `base` down to a path that a pattern matched; of one that is gone already, nothing."""
    folder = os.path.dirname(path)  # noqa: PTH120
    while folder not in ids:
        try:
            ids[folder] = id_of(os.stat(folder))  # noqa: PTH116
        except OSError:
            return
        if len(folder) <= len(base):
            return
        folder = os.path.dirname(folder)  # noqa: PTH120


def is_pattern(path: str) -> bool:
    """Whether a path of a source is a pattern."""
    return any(character in path for character in _PATTERN_CHARACTERS)


def _files_below(folder: str, folders: _Folders, ids: _Ids) -> Iterator[str]:
    prefix = folder if folder.endswith("/") else folder + "/"
    found = os.stat(folder)  # noqa: PTH116  # a text, as above
    ids[folder] = id_of(found)
    changed_ns, state = found.st_mtime_ns, (found.st_mtime_ns, id_of(found))
    known = folders.get(folder)
    if known is not None and known[0] == state:
        below = known[1]
    else:
        is_settled = changed_ns < time.time_ns() - _SETTLED_NS
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                is_partition, is_hidden = _is_partition(name), _is_hidden(name)
                if is_hidden and not is_partition:
                    continue
                try:
                    if entry.is_dir():
                        if is_partition:
                            names.append(name)
                    elif not is_hidden and entry.is_file():
                        yield prefix + name
                except OSError as exc:
                    # A partition folder has files of its own: to pass over it may be to pass over all of them.
                    if not is_of_entry(exc) or (is_partition and exc.errno != errno.ELOOP):
                        raise
                    if not is_hidden:
                        yield prefix + name
        below = tuple(names)
        if is_settled:
            folders[folder] = state, below
        else:
            folders.pop(folder, None)
    for name in below:
        try:
            yield from _files_below(prefix + name, folders, ids)
        except (FileNotFoundError, NotADirectoryError):
            folders.pop(prefix + name, None)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def _is_partition(name: str) -> bool:
    return "=" in name and not name.startswith((".", "="))


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Listed files as a look finds them: those to read, in source order, and those that no window takes yet.

    `denied`: paths that lead where this user may not go; links in a circle are among none of them.
    """

    finished: tuple[ListedFile, ...]
    unfinished: tuple[ListedFile, ...]
    denied: tuple[str, ...] = ()


def found_files(source: FilesSource) -> FoundFiles:
    """All files that the source has now.

    Raises:
        OSError, SourceAwayError: as `Listing.changed` and `looked_at`.
    """
    listing = Listing(source)
    return looked_at(source, listing.changed(), listing.seen, {})


def looked_at(
    source: FilesSource, paths: Iterable[str], seen: SeenFolders, passed_over: dict[str, OSError]
) -> FoundFiles:
    """Listed files as they are now. One that is gone is not among them.

    `seen` are the folders of the listing. `passed_over` has the files that a warning was given for, with the fault that
    is their own, and is kept for the next look.

    Raises:
        OSError, SourceAwayError: a fault is not the file's own, or the log of a sink cannot be read.
    """
    found = [file for path in paths if (file := _looked_at(path, seen, passed_over)) is not None]
    waiting = unfinished(found, source.folder, is_parquet=source.file_format == "parquet")
    return FoundFiles(
        tuple(sorted((file for file in found if file.path not in waiting), key=source_order)),
        tuple(sorted((file for file in found if file.path in waiting), key=source_order)),
        tuple(sorted(path for path, fault in passed_over.items() if fault.errno != errno.ELOOP)),
    )


def _looked_at(path: str, seen: SeenFolders, passed_over: dict[str, OSError]) -> ListedFile | None:
    try:
        found = look(path)
    except OSError as exc:
        seen.require(path)
        if not is_of_entry(exc):
            raise
        if path not in passed_over:
            passed_over[path] = exc
            logger.warning(
                "%s cannot be looked at: %s: it is passed over until it can be; it does not count as judged",
                shown(path),
                exc.strerror,
            )
        return None
    if found is None:
        seen.require(path)
    passed_over.pop(path, None)
    return found


def unfinished(files: Iterable[ListedFile], root: Path, *, is_parquet: bool) -> set[str]:
    """The paths of files that their writer has not finished: no window takes them yet. `root` is the source's folder.

    - An empty file: were it judged, what its writer adds would never be read.
    - A Parquet file without its end that is younger than a minute. An older one is an error.
    - A file in a folder of Spark's file sink, which writes in place, that the sink's log (`_spark_metadata`) does not
      list yet, or never will: of an attempt that failed. Spark's own reader leaves these out too.

    Raises:
        OSError, SourceAwayError: the log of a sink cannot be read.
    """
    names: dict[str, frozenset[str] | None] = {}
    found = set()
    for file in files:
        folder, _, name = file.path.rpartition("/")
        if folder not in names:
            names[folder] = _names_above(Path(folder), root)
        listed = names[folder]
        if not file.size_bytes or (listed is not None and name not in listed) or (is_parquet and _lacks_end(file)):
            found.add(file.path)
    return found


def _lacks_end(file: ListedFile) -> bool:
    if time.time() - file.modified_ms / 1000 > _YOUNG_S:
        return False
    try:
        with open(os.fsencode(file.path), "rb") as stream:  # noqa: PTH123  a name may be no UTF-8
            stream.seek(-min(len(_END), file.size_bytes), os.SEEK_END)
            return stream.read() != _END
    except OSError:
        return False  # the window that takes it says what is wrong


def _names_above(folder: Path, root: Path) -> frozenset[str] | None:
    """The names in the log of the sink that writes a folder, which lies beside or above its partition folders."""
    for above in (folder, *folder.parents):
        names = _names_in(above / _LOG)
        if names is not None or above == root:
            return names
    return None


def _names_in(log: Path) -> frozenset[str] | None:
    """The names that a sink's log has; None without one. A compact file has those of all before it."""
    try:
        files = os.listdir(log)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return None
    newest = max((int(name.removesuffix(_COMPACT)) for name in files if name.endswith(_COMPACT)), default=-1)
    wanted = [name for name in files if name == f"{newest}{_COMPACT}" or (name.isdecimal() and int(name) > newest)]
    lines = [line for name in wanted for line in (log / name).read_text("utf-8").splitlines()[1:] if line]
    try:
        return frozenset(unquote(json.loads(line)["path"]).rpartition("/")[2] for line in lines)
    except (ValueError, KeyError, TypeError) as exc:
        raise SourceAwayError(f"{log}: the log of Spark's file sink cannot be read: {exc}") from exc
