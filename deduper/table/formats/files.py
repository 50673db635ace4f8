"""Files in the folder of a table: listed, staged, placed and removed, each durable and safe to repeat."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import xxhash

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.filesystem import LOCAL, listed, make_directories, replace_whole
from bucket_store.framing import frame, unframe
from bucket_store.wire import decode, encode
from deduper.table.errors import ConflictError, StagedFileGoneError, TableError, TableUsageError
from deduper.table.formats.protocol import PRIVATE, DataFile, NewFile, RemovedFile
from deduper.tasks.readers.path_columns import is_hidden

NO_PART = "if it is no part of the table, give it a name that begins with `_` or `.`, or move it"
"""What to do about a file that is no Parquet: every name that is not hidden is a part of a folder table."""
_T = TypeVar("_T")
_THREADS = 8
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FramedFile(Generic[_T]):
    """A kind of framed file (`bucket_store.framing`) with a dataclass as its body; `what` it is, for errors."""

    body: type[_T]
    magic: bytes
    version: int
    what: str

    def framed(self, value: _T) -> bytes:
        """The bytes of a file."""
        return frame(self.magic, self.version, encode(value))

    def read(self, path: Path) -> _T | None:
        """The body of a file, None when there is no file.

        Raises:
            CorruptionError, UnknownFormatError: it cannot be read.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        body = unframe(data, magic=self.magic, version=self.version, file=str(path))
        try:
            return decode(self.body, body)
        except ValueError as error:
            raise CorruptionError(
                f"{self.what}: {error}", file=str(path), offset=0, expected="its fields", found="others"
            ) from error

    def sound(self, path: Path) -> _T | None:
        """As `read`; None as well when it cannot be read."""
        try:
            return self.read(path)
        except (CorruptionError, UnknownFormatError):
            return None

    def replace(self, path: Path, value: _T) -> None:
        """Puts a file in the place of the one that is there; durable on return."""
        replace_whole(LOCAL, path, self.framed(value))
        with LOCAL.open(path) as file:
            file.sync()
        LOCAL.fsync_dir(path.parent)


def staging(table: Path) -> Path:
    """The folder of all writes that have staged something, in their table's."""
    return table / PRIVATE / "staging"


def staging_folder(table: Path, load: str) -> Path:
    """The folder of a write in its table's; its last name is the write's."""
    return staging(table) / load


def staged_loads(table: Path) -> list[str]:
    """The writes that have staged something: dead ones, and the one that runs."""
    return listed(LOCAL, staging(table))


def place(root: Path, files: Sequence[NewFile], staged_in: Path) -> None:
    """Gives staged files their paths below a folder; one that is gone from staging has it already.

    Durable on return, with all folders. Safe to repeat.

    Raises:
        StagedFileGoneError: as `unplaced`; no file was moved.
        TableUsageError: as `require_one_disk`; no file was moved.
    """
    waiting = unplaced(root, files, staged_in)
    require_one_disk(root, waiting, staged_in)
    touched = {(root / file.path).parent for file in files}
    _make(touched)
    for file in waiting:
        LOCAL.replace(staged_in / file.staged, root / file.path)
        failpoints.hit("table.placed")
    _sync(touched)


def require_one_disk(root: Path, files: Iterable[NewFile], staged_in: Path) -> None:
    """Staged files can be renamed to their paths below a folder. Called before the plan too, which cannot be undone.

    Raises:
        TableUsageError: a folder on the way is on another disk, or is none; the message names it.
    """
    wanted = {(root / file.path).parent for file in files}
    disk = staged_in.stat().st_dev if wanted else 0
    for folder in sorted(wanted):
        there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
        if not there.is_dir():
            what = f"is a link to {there.readlink()}, which is not there" if there.is_symlink() else "is no folder"
            raise TableUsageError(f"{there}: {what}, and new files belong into it; remove it, or move it away")
        if there.stat().st_dev != disk:
            other = _first_elsewhere(root, staged_in) or _first_elsewhere(root, there) or there
            what = f"is a link to {other.resolve()}," if other.is_symlink() else "is"
            raise TableUsageError(
                f"{other}: {what} on another disk than {root}, and new files get their places by renaming; "
                "move the folder itself here, or the whole table there"
            )


def _first_elsewhere(root: Path, folder: Path) -> Path | None:
    """The first folder on the way to one below `root` that is on another disk than `root`."""
    way = [one for one in (folder, *folder.parents) if one != root and root in one.parents]
    disk = root.stat().st_dev
    return next((one for one in reversed(way) if one.stat().st_dev != disk), None)


def unplaced(root: Path, files: Iterable[NewFile], staged_in: Path) -> list[NewFile]:
    """The files that are still staged; all others have their paths, which no other file has: their names have the load.

    Raises:
        StagedFileGoneError: one is neither here nor there.
    """
    files = list(files)
    lost = first_lost(root, files, staged_in)
    if lost is not None:
        raise StagedFileGoneError(
            f"{root / lost.path}: a write that died has put {lost.rows:,} rows into this file, and it is neither there "
            f"nor at {staged_in / lost.staged}; {give_up(staged_in.name)}"
        )
    return [file for file in files if LOCAL.exists(staged_in / file.staged)]


def first_lost(root: Path, files: Iterable[NewFile], staged_in: Path) -> NewFile | None:
    """The first file that is neither staged nor at its path."""
    there = (file for file in files if not LOCAL.exists(staged_in / file.staged) and not LOCAL.exists(root / file.path))
    return next(there, None)


def give_up(load: str) -> str:
    """The next step after a file of a dead write was lost."""
    return (
        "bring it back from where the folder was moved or copied from, and try again; or, to do without what that "
        f"write has not yet done, delete `{PRIVATE}/staging/{load}` in the table's folder; nothing was written"
    )


def _make(folders: Iterable[Path]) -> None:
    """Makes folders that are not there, and syncs those above all: a process may have died before it did.

    As `make_directories`, which syncs the folder above once more for each of them.
    """
    above = set()
    for folder in folders:
        if not LOCAL.exists(folder):
            make_directories(LOCAL, folder)
        above.add(folder.parent)
    _sync(above)


def unplace(root: Path, files: Iterable[NewFile]) -> None:
    """Removes files that no version of the table has. Safe to repeat."""
    for file in files:
        LOCAL.remove(root / file.path)


def remove(root: Path, files: Iterable[RemovedFile]) -> None:
    """Removes files of a folder table; one that is another by now stays. Durable on return. Safe to repeat."""
    touched: set[Path] = set()
    for file in files:
        path = root / file.path
        touched.add(path.parent)  # also of a file that is gone: an earlier try may have died before this point
        if is_same_file(path, file):
            LOCAL.remove(path)
            failpoints.hit("table.removed")
    _sync(folder for folder in touched if folder.is_dir())


def _sync(folders: Iterable[Path]) -> None:
    """Makes the entries of folders durable, side by side: one after another, each waits for the disk."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="folders") as pool:
        list(pool.map(LOCAL.fsync_dir, folders))


def is_same_file(path: Path, file: RemovedFile | DataFile) -> bool:
    """Whether a file is there, with the size and time that it had; of a removed one the last bytes stand for the time.

    A copied folder may have other times, and rows of a file that stays are there twice.
    """
    try:
        status = path.stat()
        if status.st_size != file.size:
            return False
        tail = file.tail if isinstance(file, RemovedFile) else None
        return status.st_mtime_ns == file.stamp or (tail is not None and _tail(path, file.size) == tail)
    except FileNotFoundError:
        return False


def removed_file(root: Path, file: DataFile, partition: tuple[tuple[str, str | None], ...]) -> RemovedFile:
    """A file that a write removes.

    Raises:
        ConflictError: it has changed, or is gone.
    """
    tail = None
    if file.may_change:
        try:
            tail = _tail(root / file.path, file.size)
        except FileNotFoundError as error:
            raise ConflictError(f"{root / file.path}: went before it could be removed") from error
        if not is_same_file(root / file.path, file):  # after the reading: else these may be the bytes of another one
            raise ConflictError(f"{root / file.path}: changed before it could be removed")
    return RemovedFile(file.path, file.size, file.stamp, partition, tail)


def _tail(path: Path, size: int) -> int:
    """The checksum of a file's last bytes: of a Parquet file those of its footer, and of small files all of them."""
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return xxhash.xxh3_64_intdigest(file.read(_TAIL_BYTES))


def data_paths(root: Path) -> list[str]:
    """The files of a folder, and of all folders in it, that are not hidden: relative, sorted. Links are followed.

    Names need no ending: Hive's are `000000_0`.

    Raises:
        TableError: a folder cannot be read, or a name is no text.
    """

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise TableError(f"{error.filename}: cannot be read: {error.strerror}") from error

    found = []
    for folder, folders, names in os.walk(root, onerror=refused, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        above = os.path.relpath(folder, root)
        found += [name if above == "." else f"{above}/{name}" for name in names if not is_hidden(name)]
    for path in found:
        if not path.isascii() and any("\ud800" <= sign <= "\udfff" for sign in path):
            raise TableError(f"{root}: the name {path!a} in it has bytes that are not UTF-8; rename it")
    return sorted(found)
