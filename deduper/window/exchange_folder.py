"""Folders for a window's exchange files: shared memory while there is room, else disk. They end with the process.

    <dir of the tables>/spool/<store id>-<window>-<epoch>-<attempt>-<random>/lock, …
    <dir of the tables>/spool/<store id>-query-<random>/lock, …   the checkpoint of the job's query

The process that makes a folder holds a flock in it, and the kernel releases the lock when the process dies. So every
start of a job finds the folders that dead processes left on this machine, of any store, and removes them: they may take
up memory. The last folder is kept until the next one is made, which takes over its memory, or until the job ends.
Only the owning user can enter a folder: its files hold the records themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deduper.sinks.names import Attempt
from deduper.tasks import exchange

logger = logging.getLogger(__name__)

_NAME, _LOCK = "spool", "lock"
"""The folder of all these folders, and the lock in each."""
_LEAST_ROOM = 512 << 20
_MOST_LEFT = 512 << 20
"""At most so many bytes are kept for the next attempt, which may come much later."""


class ExchangeFolders:
    """The exchange folders of one store's owner, one for each attempt, in memory or on disk.

    `disk` is the parent of those on disk. Not for several threads.
    """

    def __init__(self, memory_dir: str, disk_dir: str, store_id: str) -> None:
        self._memory, self.disk = homes(memory_dir, disk_dir)
        self._store_id = store_id
        self._locks: dict[Path, int] = {}
        self._left: Path | None = None
        self._left_reads: Sequence[str] = ()
        self._greatest_bytes = 0
        self._is_memory_full = False

    def discard_abandoned(self) -> None:
        """Remove the folders of dead processes."""
        for folder in abandoned(self._memory, self.disk):
            if remove_abandoned(folder):
                logger.warning("%s: removed, the process that made it is dead", folder)

    def make(self, attempt: Attempt) -> Path:
        """A new folder, in memory if twice the largest folder so far fits there.

        Raises:
            OSError: the disk has no room either.
        """
        folder = self._made_in_memory(attempt) if self._has_memory() else None
        if folder is not None and self._left is not None:
            with contextlib.suppress(OSError):  # a file that was not handed over is created
                exchange.hand_over(self._left, folder, self._left_reads)
        self.close()
        return self._made(self.disk, attempt) if folder is None else folder

    def _has_memory(self) -> bool:
        if self._is_memory_full:
            return False
        left = 0 if self._left is None else _size(self._left)
        return _room(self._memory) + left > max(_LEAST_ROOM, 2 * self._greatest_bytes)

    def _made_in_memory(self, attempt: Attempt) -> Path | None:
        try:
            return self._made(self._memory, attempt)
        except OSError as exc:
            logger.warning("%s: cannot be used, using the disk instead: %s", self._memory, exc)
            self._is_memory_full = True
            return None

    def _made(self, home: Path, attempt: Attempt) -> Path:
        folder, self._locks[folder] = _made(home, f"{self._store_id}-{attempt.folder}-")
        return folder

    def remove(self, folder: Path) -> None:
        """End an attempt. Tasks that still run fail: their files are gone."""
        self._noted_size(folder)
        _remove(folder)
        os.close(self._locks.pop(folder))

    def leave(self, folder: Path, reads: Sequence[str]) -> None:
        """End an attempt; the next one writes over the files of these reading tasks, which no task has open."""
        if folder.parent == self._memory and self._noted_size(folder) <= _MOST_LEFT:
            self._left, self._left_reads = folder, reads
        else:
            self.remove(folder)

    def close(self) -> None:
        """Remove the folder that is kept for the next attempt. Safe to repeat."""
        left, self._left = self._left, None
        if left is not None:
            self.remove(left)

    def _noted_size(self, folder: Path) -> int:
        size = _size(folder)
        self._greatest_bytes = max(self._greatest_bytes, size)
        return size

    def was_full(self, folder: Path) -> bool:
        """Whether a job that failed for lack of room can be retried on disk."""
        if self._is_memory_full or self._memory != folder.parent or self._memory == self.disk:
            return False
        self._is_memory_full = True
        return True


@contextlib.contextmanager
def query_folder(memory_dir: str, disk_dir: str, store_id: str) -> Iterator[Path]:
    """A folder for the checkpoint of this process's query, where there is more room; removed at the end.

    It takes some KB. But Spark ends a query whose checkpoint has no room, and either place may be full of tables.
    """
    home = max(homes(memory_dir, disk_dir), key=_room)
    folder, lock = _made(home, f"{store_id}-query-")
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _room(home: Path) -> int:
    there = next(path for path in (home, *home.parents) if path.exists())
    return shutil.disk_usage(there).free


def homes(memory_dir: str, disk_dir: str) -> tuple[Path, Path]:
    """The parents of exchange folders, in memory and on disk, for these directories of tables.

    They are beside the tables, because no other directory is certain to be writable.
    """
    return Path(memory_dir, _NAME), Path(disk_dir, _NAME)


def abandoned(*places: Path) -> Iterator[Path]:
    """The folders of dead processes."""
    for home in sorted(set(places)):
        for folder in sorted(home.glob("*")):
            with contextlib.suppress(OSError):  # most likely another user's
                lock = _locked(folder)
                if lock is not None:
                    os.close(lock)
                    yield folder


def remove_abandoned(folder: Path) -> bool:
    """Remove a dead process's folder; False if its process lives, or it is gone."""
    lock = _locked(folder)
    if lock is None:
        return False
    try:
        _remove(folder)
    finally:
        os.close(lock)
    return True


def _made(home: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, and its lock."""
    home.mkdir(parents=True, exist_ok=True)
    while True:
        # A name that was never used: a task that still writes into an older folder cannot find this one.
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        lock = _locked(folder)
        if lock is not None:
            return folder, lock
        # Another start removed it as a dead process's folder before it was locked.


def _locked(folder: Path) -> int | None:
    """A folder's lock, as a descriptor to close; None when it is held, or gone."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held it before may have removed it.
        if (folder / _LOCK).stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _remove(folder: Path) -> None:
    # A task that still runs may create a file meanwhile, so one pass may not be enough.
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    logger.warning("%s: cannot be removed", folder)


def _size(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    return size
