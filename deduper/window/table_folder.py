"""The folders of a job's resident tables on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bucket_store.tables.generation import table_folder
from bucket_store.tables.manager import TableSettings
from deduper.config.model import Config
from deduper.window import policy

SHARED_MEMORY = Path("/dev/shm")


def _own_folder(above: Path) -> Path:
    """This user's folder below a shared one: another user's folder would not be writable."""
    folder = above / "deduper-tables"
    try:
        is_ours = folder.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        is_ours = True
    return folder if is_ours else above / f"deduper-tables-{os.geteuid()}"


def table_settings(config: Config) -> TableSettings:
    """The settings of the resident tables: in shared memory up to `store.memory`, on local disk beyond it."""
    disk = _own_folder(Path(tempfile.gettempdir())) if config.store.tables == "auto" else Path(config.store.tables)
    memory = _own_folder(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else disk
    memory_bytes = config.store.memory
    if SHARED_MEMORY.is_dir():
        # A container's /dev/shm is often 64 MB: tables beyond its size go to the disk.
        memory_bytes = min(memory_bytes, shutil.disk_usage(SHARED_MEMORY).total)
    return TableSettings(
        memory_dir=str(memory),
        disk_dir=str(disk),
        memory_bytes=memory_bytes,
        disk_bytes=config.store.table_disk,
        layout=policy.table_layout(config),
    )


def table_folders(config: Config, store_id: str) -> list[Path]:
    """The folders with the tables of the job's store, and of no other: all jobs of a machine share those above."""
    settings = table_settings(config)
    folder = table_folder(store_id, config.store.path)
    return [Path(above) / folder for above in sorted({settings.memory_dir, settings.disk_dir})]
