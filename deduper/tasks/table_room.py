"""Where tables lie on the host of a task: the directories, and how much of its shared memory they may take.

Each host decides for itself: the size of /dev/shm and the temporary folder differ between the hosts and containers of a
cluster. Executors of one host share the tables under locks. If containers have a /dev/shm each, a shard that changes
containers has its tables rebuilt: see `bucket_store.tables.generation`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bucket_store.tables.manager import TableSettings
from bucket_store.tables.matches import TableLayout

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class TableRoom:
    """The settings of tables; pickled into the job.

    `folder` is that of tables on disk; None: the host's temporary folder. Copies of pieces lie beside the tables.
    """

    folder: str | None
    memory_bytes: int
    disk_bytes: int
    layout: TableLayout
    piece_cache_bytes: int = 0

    def here(self, shared_memory: Path | None = None) -> TableSettings:
        """The settings on this host: in shared memory (/dev/shm) up to `memory_bytes`, on local disk beyond it."""
        shared_memory = SHARED_MEMORY if shared_memory is None else shared_memory
        disk = own_folder(Path(tempfile.gettempdir())) if self.folder is None else Path(self.folder)
        memory = own_folder(shared_memory) if shared_memory.is_dir() else disk
        memory_bytes = self.memory_bytes
        if shared_memory.is_dir():
            # A container's /dev/shm is often 64 MB: tables beyond its size go to the disk.
            memory_bytes = min(memory_bytes, shutil.disk_usage(shared_memory).total)
        return TableSettings(
            memory_dir=str(memory),
            disk_dir=str(disk),
            memory_bytes=memory_bytes,
            disk_bytes=self.disk_bytes,
            layout=self.layout,
            piece_cache_bytes=self.piece_cache_bytes,
        )


def own_folder(above: Path) -> Path:
    """This user's folder below a shared one: another user's folder would not be writable."""
    folder = above / "deduper-tables"
    try:
        is_ours = folder.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        is_ours = True
    return folder if is_ours else above / f"deduper-tables-{os.geteuid()}"
