"""Where what the jobs of a window hand to each other lies: in shared memory while there is room, else on the disk.

    <dir of the tables>/spool/<store id>-<window>-<epoch>-<attempt>-<random>/lock, …

Whoever made a folder holds a flock in it, which the kernel lets go when the process dies. So every start of a job can
tell what the dead have left on this machine, of whatever store, and removes it: it may be memory. The last one is kept
until there is a next one, or none to come: its memory is handed over.
Only its owner may look into a folder: what lies there are the records themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deduper import spool
from deduper.output_names import Attempt

logger = logging.getLogger(__name__)

_NAME, _LOCK = "spool", "lock"
_LEAST_ROOM = 512 << 20
_MOST_LEFT = 512 << 20
"""How many bytes are kept for a next attempt at most: nobody knows when it comes."""


class SpoolPlaces:
    """The spool folders of one store's owner, an attempt each, in memory or on the disk.

    `disk` is where those on the disk lie. Not for several threads.
    """

    def __init__(self, memory_dir: str, disk_dir: str, store_id: str) -> None:
        self._memory, self.disk = homes(memory_dir, disk_dir)
        self._store_id = store_id
        self._locks: dict[Path, int] = {}
        self._left: Path | None = None
        self._greatest_bytes = 0
        self._is_memory_full = False

    def discard_abandoned(self) -> None:
        """Remove what processes have left that are dead."""
        for folder in abandoned(self._memory, self.disk):
            if remove_abandoned(folder):
                logger.warning("%s: discarded what a process has left that died", folder)

    def make(self, attempt: Attempt) -> Path:
        """A new folder, where twice the greatest spool so far finds room.

        Raises:
            OSError: there is none on the disk either.
        """
        folder = self._made_in_memory(attempt) if self._has_memory() else None
        if folder is not None and self._left is not None:
            with contextlib.suppress(OSError):  # what is not there is made anew
                spool.hand_over(self._left, folder)
        self.close()
        return self._made(self.disk, attempt) if folder is None else folder

    def _has_memory(self) -> bool:
        if self._is_memory_full:
            return False
        place = next(place for place in (self._memory, *self._memory.parents) if place.exists())
        left = 0 if self._left is None else _size(self._left)
        return shutil.disk_usage(place).free + left > max(_LEAST_ROOM, 2 * self._greatest_bytes)

    def _made_in_memory(self, attempt: Attempt) -> Path | None:
        try:
            return self._made(self._memory, attempt)
        except OSError as exc:
            logger.warning("%s: cannot be used, the disk is taken: %s", self._memory, exc)
            self._is_memory_full = True
            return None

    def _made(self, home: Path, attempt: Attempt) -> Path:
        home.mkdir(parents=True, exist_ok=True)
        while True:
            # A name that nothing has ever had: what still writes into an older folder cannot find this one.
            folder = Path(tempfile.mkdtemp(prefix=f"{self._store_id}-{attempt.folder}-", dir=home))
            lock = _locked(folder)
            if lock is not None:
                self._locks[folder] = lock
                return folder
            # Between the two, a start has taken it for a dead one's.

    def remove(self, folder: Path) -> None:
        """An attempt has ended. Tasks that have not noticed find nothing to read and nowhere to write."""
        self._noted_size(folder)
        _remove(folder)
        os.close(self._locks.pop(folder))

    def leave(self, folder: Path) -> None:
        """An attempt has ended, and so has all that knew of its folder: the next one gets its memory."""
        if folder.parent == self._memory and self._noted_size(folder) <= _MOST_LEFT:
            self._left = folder
        else:
            self.remove(folder)

    def close(self) -> None:
        """Keep nothing for a next attempt. Safe to repeat."""
        left, self._left = self._left, None
        if left is not None:
            self.remove(left)

    def _noted_size(self, folder: Path) -> int:
        size = _size(folder)
        self._greatest_bytes = max(self._greatest_bytes, size)
        return size

    def was_full(self, folder: Path) -> bool:
        """A job failed for want of room: whether it may be tried again on the disk."""
        if self._is_memory_full or self._memory != folder.parent or self._memory == self.disk:
            return False
        self._is_memory_full = True
        return True


def homes(memory_dir: str, disk_dir: str) -> tuple[Path, Path]:
    """Where spool folders lie whose tables lie there: in memory, and on the disk.

    Among the tables, because no other directory is known to be ours to write into.
    """
    return Path(memory_dir, _NAME), Path(disk_dir, _NAME)


def abandoned(*places: Path) -> Iterator[Path]:
    """The folders of dead processes."""
    for home in sorted(set(places)):
        for folder in sorted(home.glob("*")):
            with contextlib.suppress(OSError):  # Another user's, most likely; none of our business in any case.
                lock = _locked(folder)
                if lock is not None:
                    os.close(lock)
                    yield folder


def remove_abandoned(folder: Path) -> bool:
    """Remove a dead process's folder; False when it is none, or no longer there."""
    lock = _locked(folder)
    if lock is None:
        return False
    try:
        _remove(folder)
    finally:
        os.close(lock)
    return True


def _locked(folder: Path) -> int | None:
    """A folder's lock, as a descriptor to close; None when it is held, or gone."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it before may have removed it.
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
    # A task that is still running may make a file meanwhile, so one look may not be enough.
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    logger.warning("%s: cannot be removed", folder)


def _size(folder: Path) -> int:
    size = 0
    for file in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    return size
