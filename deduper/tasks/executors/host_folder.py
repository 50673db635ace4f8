"""The folders for records and keys on the host of a reading task, where executors share no folder with the driver.

    <dir of the tables>/records/<store folder>-<epoch>-<attempt>/<reading task>.rows, <reading task>.keys

The store's folder is that of its tables, for its id and path: a copy of the store may run on the same hosts.

Nothing here is truth. A reading task makes the folder of its attempt. It removes the folders of earlier attempts of its
store, and those of other stores that had no new file for hours. If a folder is removed too early, its window is judged
again.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from deduper.tasks.table_room import TableRoom

_NAME = "records"
_FOLDER = re.compile(r"(?P<store>[0-9a-f]+(-[0-9a-f]{8})?)-(?P<epoch>\d+)-(?P<attempt>\d+)")
_LEAST_ROOM = 512 << 20
_LEASE_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class HostFolder:
    """The folder of one attempt at a window, on any host; pickled into the job. `store` as `ShardView.folder`."""

    store: str
    epoch: int
    attempt: int
    tables: TableRoom

    def make(self, *, on_disk: bool = False) -> str:
        """Make the folder on this host, in shared memory while that has room, and remove unneeded ones."""
        settings = self.tables.here()
        memory, disk = (Path(above, _NAME) for above in (settings.memory_dir, settings.disk_dir))
        for home in {memory, disk}:
            self._sweep(home)
        if memory != disk and not on_disk:
            with contextlib.suppress(OSError):
                folder = self._made(memory)
                if shutil.disk_usage(folder).free > _LEAST_ROOM:
                    return str(folder)
        return str(self._made(disk))

    def remove_all(self) -> None:
        """Remove the folders of the store's attempts up to this one from this host."""
        settings = self.tables.here()
        for above in {settings.memory_dir, settings.disk_dir}:
            self._sweep(Path(above, _NAME), upto=self.attempt + 1)

    def _made(self, home: Path) -> Path:
        home.mkdir(parents=True, exist_ok=True)
        folder = home / f"{self.store}-{self.epoch}-{self.attempt}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _sweep(self, home: Path, upto: int | None = None) -> None:
        before = (self.epoch, self.attempt if upto is None else upto)
        for folder in home.glob("*"):
            named = _FOLDER.fullmatch(folder.name)
            if named is None:
                continue
            if named["store"] == self.store:
                is_over = (int(named["epoch"]), int(named["attempt"])) < before
            else:
                is_over = _age_s(folder) > _LEASE_S
            if is_over:
                shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0  # another task is removing it
