"""Resident tables on this machine that no job uses any more: of stores that are gone or unused, or of an earlier boot.

Tables are only a faster form of the pieces, so deleting them costs time, never keys. They are kept by the store's id
and path in folders that all jobs of a machine share. A start leaves a note of its store there, if that is on this
machine, and removes the tables of stores that are gone: they may fill the memory (`remove_of_gone_stores`).

Whether other stores still exist is unknown. So `gc` deletes tables of an earlier boot or release as unusable, and those
that no job has opened for a week, or whose last use has a date far ahead, since its true age is unknown.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bucket_store.errors import StoreError
from bucket_store.log.manifest import read_manifest
from bucket_store.log.wall_clock import is_far_ahead
from bucket_store.places.local import local_place
from bucket_store.tables.generation import ShardDirectories, last_used_us, remove_tables, table_folder
from bucket_store.tables.manager import PIECES
from deduper.config.model import Config
from deduper.window.table_folder import table_settings

logger = logging.getLogger(__name__)

_NOTE = "store"
_GONE = "tables of a store that is gone"
UNUSED_US = 7 * 86_400_000_000
_FOLDER = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{8})?")


@dataclass(frozen=True, slots=True)
class StaleTables:
    """All tables of one store on this machine, and why no job uses them."""

    folder: str
    memory_dir: Path
    disk_dir: Path
    why: str

    @property
    def store_id(self) -> str:
        """The store that they are of."""
        return _store_id(self.folder)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The store's folders."""
        return tuple(sorted({self.memory_dir / self.folder, self.disk_dir / self.folder}))

    def remove(self) -> bool:
        """Delete the folders that no process holds; true if that was all of them."""
        shards = _shards(self.memory_dir, self.disk_dir, self.folder)
        done = [remove_tables(directories) for directories in shards].count(False) == 0
        if done:
            (self.disk_dir / self.folder / _NOTE).unlink(missing_ok=True)
            shutil.rmtree(self.disk_dir / PIECES / self.folder, ignore_errors=True)  # copies of the store's pieces
        for path in self.paths if done else ():
            with suppress(OSError):  # absent, in use again, or another process removes it now
                path.rmdir()
        return done


def stale_tables(config: Config, now_us: int) -> Iterator[StaleTables]:
    """Unused tables in the folders of this job, sorted by store."""
    for memory, disk, folder in _folders(config):
        used = [last_used_us(shard) for shard in _shards(memory, disk, folder)]
        last = max((time_us for time_us in used if time_us is not None), default=None)
        if _is_gone(disk / folder):
            yield StaleTables(folder, memory, disk, _GONE)
        elif not used:
            continue  # a job makes its first tables, or another process has removed them just now
        elif "-" not in folder:
            yield StaleTables(folder, memory, disk, "tables of an earlier release")
        elif last is None:
            yield StaleTables(folder, memory, disk, "tables of an earlier boot")
        elif is_far_ahead(last, now_us):
            # Or their week would begin when the clock gets there.
            yield StaleTables(folder, memory, disk, "tables dated by a clock that was far ahead")
        elif last + UNUSED_US <= now_us:
            yield StaleTables(folder, memory, disk, "tables that no job has opened for a week")


def note_store(config: Config, store_id: str) -> None:
    """Leave the path of this job's store beside its tables; of a store elsewhere there is none."""
    if config.store.is_local:
        note = Path(table_settings(config).disk_dir, table_folder(store_id, config.store.place), _NOTE)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(os.fsencode(config.store.path.absolute()))


def remove_of_gone_stores(config: Config) -> None:
    """Remove the tables of stores that are gone from this job's folders of tables; what is in use stays."""
    for memory, disk, folder in _folders(config):
        # A note and a manifest are read: a start must not open every table of the machine.
        if not _is_gone(disk / folder):
            continue
        tables = StaleTables(folder, memory, disk, _GONE)
        if tables.remove():
            logger.info("%s: removed, the store is gone", ", ".join(map(str, tables.paths)))


def _folders(config: Config) -> Iterator[tuple[Path, Path, str]]:
    """The folders of tables of all stores, by name, below those for memory and disk."""
    settings = table_settings(config)
    memory, disk = Path(settings.memory_dir), Path(settings.disk_dir)
    names = {path.name for top in (memory, disk) if top.is_dir() for path in top.iterdir()}
    for folder in sorted(name for name in names if _FOLDER.fullmatch(name)):
        yield memory, disk, folder


def _store_id(folder: str) -> str:
    """The store of a folder of tables, by the folder's name."""
    return folder.partition("-")[0]


def _is_gone(tables: Path) -> bool:
    """Whether the store of these tables is removed, or another one is in its place.

    If the folder around it is not there either, its disk may be away.
    """
    try:
        store = Path(os.fsdecode((tables / _NOTE).read_bytes()))
        if not store.exists():
            return store.parent.is_dir()
        return read_manifest(local_place(store)).store_id != _store_id(tables.name)
    except (OSError, StoreError):
        return False


def _shards(memory: Path, disk: Path, folder: str) -> list[ShardDirectories]:
    names = {name for top in (memory, disk) for name in _names(top / folder) if name.isdecimal()}
    return [ShardDirectories.of(str(memory), str(disk), folder, int(name)) for name in sorted(names)]


def _names(folder: Path) -> list[str]:
    """The names in a folder; none if it is absent, or another process removes it meanwhile."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
