"""Where the resident tables of a job lie on this machine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bucket_store.manager import TableSettings
from deduper import judging
from deduper.config import Config

_SHARED_MEMORY = Path("/dev/shm")


def table_settings(config: Config) -> TableSettings:
    """Where the resident tables lie: in shared memory up to `store.memory`, and on the local disk beyond it."""
    disk = Path(tempfile.gettempdir(), "deduper-tables") if config.store.tables == "auto" else Path(config.store.tables)
    memory = _SHARED_MEMORY / "deduper-tables" if _SHARED_MEMORY.is_dir() else disk
    memory_bytes = config.store.memory
    if _SHARED_MEMORY.is_dir():
        # A container's /dev/shm is often 64 MB: tables beyond its size go to the disk.
        memory_bytes = min(memory_bytes, shutil.disk_usage(_SHARED_MEMORY).total)
    return TableSettings(
        memory_dir=str(memory),
        disk_dir=str(disk),
        memory_bytes=memory_bytes,
        disk_bytes=config.store.table_disk,
        layout=judging.table_layout(config),
    )
