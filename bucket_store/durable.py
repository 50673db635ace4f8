"""The one place that syncs, links and renames: how bytes become durable, and how a name is taken exactly once.

All of it goes through a `FileSystem`, so that tests can put one underneath that fails, or that forgets what was not
synced. Three ways to write, from the dearest to the cheapest:

- `place_new`: whole or not at all, never over another file, durable on return (file sync, link, directory sync);
- `stage` and `FileSystem.link`: the same in steps, for the log, which must tell how far it came;
- `replace_whole`: whole or not at all, over the old file, not synced: after a power cut the old one may be back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Protocol


class FileSystem(Protocol):
    """What the log side asks of a file system. Every method raises OSError, and FileNotFoundError for what is absent.

    `link`, `replace` and `remove` are atomic: no reader sees half of one. They are durable after `fsync_dir` of the
    directory. Implementations are safe to call from several threads and pickle.
    """

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""

    def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Create a file that must not exist; with `sync` its bytes (not its name) are durable on return."""

    def fsync_file(self, path: Path) -> None:
        """Make the bytes of a file durable that somebody else has written."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError when the name is taken: one of all racers wins."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename over whatever has the target's name."""

    def remove(self, path: Path) -> None:
        """Remove a file's name; an absent one is no error."""

    def mkdir(self, path: Path) -> None:
        """Make one directory; one that is there is no error."""

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable as they are now."""

    def listdir(self, path: Path) -> list[str]:
        """The names in a directory, in no order; what is added meanwhile may be missed."""

    def exists(self, path: Path) -> bool:
        """Whether the name is there now."""

    def modified_us(self, path: Path) -> int:
        """When the file was last written, µs since the epoch."""


class LocalFileSystem:
    """The `FileSystem` of the machine."""

    __slots__ = ()

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        with path.open("xb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if sync:
                os.fsync(file.fileno())

    def fsync_file(self, path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def mkdir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

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

    def modified_us(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1000


LOCAL: FileSystem = LocalFileSystem()

_TEMPORARY_SUFFIX = ".tmp"


def is_temporary(name: str) -> bool:
    """Whether a name is one of those that `stage` and `replace_whole` write under; a crash leaves some behind."""
    return name.startswith(".") and name.endswith(_TEMPORARY_SUFFIX)


def stage(fs: FileSystem, directory: Path, name: str, data: bytes, *, sync: bool = True) -> Path:
    """A temporary file with these bytes beside the place where `name` is to stand; nothing stays after an error.

    With `sync` its bytes are durable. Its name begins with a dot, which readers of output directories pass over.
    """
    temporary = directory / f".{name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}"
    try:
        fs.write_file(temporary, data, sync=sync)
    except OSError:
        discard(fs, temporary)
        raise
    return temporary


def discard(fs: FileSystem, temporary: Path) -> None:
    """Remove a temporary file; a failure only leaves litter, which must not hide the outcome of the real work."""
    with contextlib.suppress(OSError):
        fs.remove(temporary)


def place_new(fs: FileSystem, path: Path, data: bytes) -> None:
    """Put a file in place that nobody has put there yet, durable with its name on return.

    Raises:
        FileExistsError: the name is taken; its file is untouched.
        OSError: it may or may not be in place, and if it is, it may or may not be durable.
    """
    temporary = stage(fs, path.parent, path.name, data)
    try:
        fs.link(temporary, path)
        fs.fsync_dir(path.parent)
    finally:
        # After the directory sync: the sync covers the link alone, and a leftover is removed by whoever cleans later.
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
    """Make a directory and its missing parents, durable on return. Safe to repeat and to race."""
    missing = []
    while not fs.exists(path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)
