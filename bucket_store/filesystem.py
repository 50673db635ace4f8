"""The one place that syncs, links and renames: how bytes become durable, and how a name is taken exactly once.

All durable files go through a `FileSystem`, so that tests can substitute one that fails, or that loses unsynced bytes:
the log, the pieces of `file:`, staged and published files. Three ways to write a whole file, from the most expensive to
the cheapest:

- `place_new`: whole or not at all, never over another file, durable on return (file sync, link, directory sync);
- `stage` and `FileSystem.link`: the same in steps, for the log, which must report how far it came;
- `replace_whole`: whole or not at all, over the old file, not synced: after a power cut the old one may be back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import Protocol


class FileHandle(Protocol):
    """An open file; each method is one system call, and raises OSError. A context manager that closes.

    Reads and writes may be short, as the system's are: `read_at` and `write_at` continue to the end.
    """

    def size(self) -> int:
        """Its length in bytes now."""

    def pread(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from `at` on; none at the end of the file."""

    def pwrite(self, data: bytes | memoryview, at: int) -> int:
        """How many of the bytes were written at `at`."""

    def sync(self) -> None:
        """Make its bytes, not its name, durable."""

    def try_lock(self) -> bool:
        """Take the exclusive lock until `close` or the death of the process; False when another has it."""

    def close(self) -> None:
        """Close the file and release its lock."""

    def __enter__(self) -> FileHandle: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FileSystem(Protocol):
    """The operations a store needs of a file system. Every method raises OSError, FileNotFoundError for an absent file.

    `link`, `replace` and `remove` are atomic: no reader sees half of one. They are durable after `fsync_dir` of the
    directory. Implementations are safe to call from several threads and pickle.
    """

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> FileHandle:
        """Open a file for reading, or for both; `create` makes an empty one when there is none."""

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""

    def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Create a file that must not exist; with `sync` its bytes (not its name) are durable on return."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError when the name is taken: one of all racers wins."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename over any file of the target's name, also into another directory of the same file system."""

    def remove(self, path: Path) -> None:
        """Remove a file's name; an absent one is no error."""

    def mkdir(self, path: Path) -> None:
        """Make one directory; one that is there is no error."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory; an absent one is no error."""

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable as they are now."""

    def listdir(self, path: Path) -> list[str]:
        """The names in a directory, in no order; names added meanwhile may be missing."""

    def exists(self, path: Path) -> bool:
        """Whether the name is there now."""

    def is_dir(self, path: Path) -> bool:
        """Whether a directory has the name; a symbolic link to one does not count."""

    def modified_us(self, path: Path) -> int:
        """When the file was last written, µs since the epoch."""


class LocalFile:
    """A `FileHandle` of the machine."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, length: int, at: int) -> bytes:
        return os.pread(self._fd, length, at)

    def pwrite(self, data: bytes | memoryview, at: int) -> int:
        return os.pwrite(self._fd, data, at)

    def sync(self) -> None:
        os.fsync(self._fd)

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalFileSystem:
    """The `FileSystem` of the machine."""

    __slots__ = ()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> LocalFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return LocalFile(os.open(path, flags, 0o644))

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        try:
            with path.open("xb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            # With an open file, as on a full disk, the error has no path.
            error.filename = error.filename or str(path)
            raise

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def mkdir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def rmdir(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def fsync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def listdir(self, path: Path) -> list[str]:
        return [entry.name for entry in os.scandir(path)]

    def exists(self, path: Path) -> bool:
        try:
            path.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, path: Path) -> bool:
        try:
            return stat.S_ISDIR(path.lstat().st_mode)
        except FileNotFoundError:
            return False

    def modified_us(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1000


LOCAL: FileSystem = LocalFileSystem()

_TEMPORARY_SUFFIX = ".tmp"
_REMOVAL_TRIES = 10


def read_at(file: FileHandle, length: int, at: int) -> bytes:
    """`length` bytes from `at` on; fewer only where the file ends."""
    data = file.pread(length, at)
    if len(data) in (0, length):
        return data
    parts = [data]
    missing = length - len(data)
    while missing and (data := file.pread(missing, at + length - missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def write_at(file: FileHandle, data: bytes | memoryview, at: int) -> None:
    """All of the bytes, at `at`. After an error any part of them may be there."""
    view, written = memoryview(data), 0
    while written < len(view):
        written += file.pwrite(view[written:], at + written)


def listed(fs: FileSystem, path: Path) -> list[str]:
    """The names in a directory, sorted; none when it is absent."""
    try:
        return sorted(fs.listdir(path))
    except FileNotFoundError:
        return []


def is_temporary(name: str) -> bool:
    """Whether a name is a temporary one of `stage` or `replace_whole`; a crash leaves some behind."""
    return name.startswith(".") and name.endswith(_TEMPORARY_SUFFIX)


def temporary_name(name: str) -> str:
    """A new name for the temporary file that is to become `name`."""
    return f".{name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}"


def stage(fs: FileSystem, directory: Path, name: str, data: bytes, *, sync: bool = True) -> Path:
    """A temporary file with these bytes beside the place where `name` is to stand; nothing stays after an error.

    With `sync` its bytes are durable. Its name begins with a dot, which readers of output directories skip.
    """
    temporary = directory / temporary_name(name)
    try:
        fs.write_file(temporary, data, sync=sync)
    except OSError:
        discard(fs, temporary)
        raise
    return temporary


def discard(fs: FileSystem, temporary: Path) -> None:
    """Remove a temporary file; a failure leaves litter only, and must not hide the outcome of the real work."""
    with contextlib.suppress(OSError):
        fs.remove(temporary)


def place_new(fs: FileSystem, path: Path, data: bytes) -> None:
    """Put a new file in place, durable with its name on return.

    Raises:
        FileExistsError: the name is taken; its file is untouched.
        OSError: it may or may not be in place, and if it is, it may or may not be durable.
    """
    temporary = stage(fs, path.parent, path.name, data)
    try:
        fs.link(temporary, path)
        fs.fsync_dir(path.parent)
    finally:
        # After the directory sync: the sync covers the link alone, and a later cleaning removes an orphan.
        discard(fs, temporary)


def replace_whole(fs: FileSystem, path: Path, data: bytes) -> None:
    """Put a file in place of the old one, if any. Readers see the old or the new one whole; nothing is synced."""
    temporary = stage(fs, path.parent, path.name, data, sync=False)
    try:
        fs.replace(temporary, path)
    except OSError:
        discard(fs, temporary)
        raise


def make_directories(fs: FileSystem, path: Path) -> None:
    """Make a directory and its missing parents, durable on return. Safe to repeat and to race.

    The first existing one is synced into its parent too: its maker may have died before that.
    """
    missing = []
    while not fs.exists(path):
        missing.append(path)
        path = path.parent
    # In a directory that we may not read, no process of ours has made anything.
    with contextlib.suppress(PermissionError):
        fs.fsync_dir(path.parent)
    for directory in reversed(missing):
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)


def package_root() -> Path:
    """The folder of both packages: a child process needs it on its PYTHONPATH."""
    return Path(__file__).resolve().parent.parent


def remove_tree(fs: FileSystem, path: Path) -> None:
    """Remove a directory and all below it; files that others remove meanwhile are no error.

    Files that others add meanwhile go too: a task whose job has ended may make its last files. A process that keeps
    adding files is an error.
    """
    for tries_left in reversed(range(_REMOVAL_TRIES)):
        for name in listed(fs, path):
            child = path / name
            if fs.is_dir(child):
                remove_tree(fs, child)
            else:
                fs.remove(child)
        try:
            fs.rmdir(path)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not tries_left:
                raise
