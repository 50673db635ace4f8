"""Where what the jobs of a window hand to each other lies: in shared memory while there is room, else on the disk."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from deduper.output_names import Attempt

_NAME = "deduper-spool"
_LEAST_ROOM = 512 << 20


class SpoolPlaces:
    """The spool directories of one store's owner: below `memory_dir` or `disk_dir`, a folder an attempt.

    A folder is gone when its attempt ends; those of a process that died go when the next owner starts.
    """

    def __init__(self, memory_dir: str, disk_dir: str, store_id: str) -> None:
        self._memory = Path(memory_dir).parent / _NAME / store_id
        self._disk = Path(disk_dir).parent / _NAME / store_id
        self._greatest_bytes = 0
        self._is_memory_full = False

    def discard_abandoned(self, below_epoch: int) -> None:
        """Remove what owners of lower epochs have left."""
        for home in {self._memory, self._disk}:
            for folder in home.glob("*"):
                attempt = Attempt.of_folder(folder.name)
                if attempt is not None and attempt.epoch < below_epoch:
                    shutil.rmtree(folder, ignore_errors=True)

    def make(self, attempt: Attempt) -> Path:
        """A new folder, where twice the greatest spool so far finds room."""
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._memory.parent).free
        has_room = not self._is_memory_full and free > max(_LEAST_ROOM, 2 * self._greatest_bytes)
        folder = (self._memory if has_room else self._disk) / attempt.folder
        folder.mkdir(parents=True)
        return folder

    def remove(self, folder: Path) -> None:
        """An attempt has ended; when it has failed, some of its tasks may not know yet, and write."""
        size = 0
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                size += file.stat().st_size
        self._greatest_bytes = max(self._greatest_bytes, size)
        shutil.rmtree(folder, ignore_errors=True)

    def was_full(self, folder: Path) -> bool:
        """A job failed for want of room: whether it may be tried again on the disk."""
        if self._is_memory_full or self._memory not in folder.parents or self._memory == self._disk:
            return False
        self._is_memory_full = True
        return True
