"""Resident tables on this machine that no job uses any more: of an earlier boot, or of a store long unused.

Tables are only a faster form of the pieces, so deleting them costs time, never keys. They are kept by the store's id
and path in folders that all jobs of a machine share, and a table does not say whether its store is still there. So
tables of an earlier boot or release are deleted as unusable, and so are those that no job has opened for a week, or
whose last use has a date far ahead: nothing says how long ago it was.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bucket_store.log.wall_clock import is_far_ahead
from bucket_store.tables.generation import ShardDirectories, last_used_us, remove_tables
from bucket_store.tables.manager import PIECES
from deduper.config.model import Config
from deduper.window.table_folder import table_settings

UNUSED_US = 7 * 86_400_000_000
_FOLDER = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{8})?")


@dataclass(frozen=True, slots=True)
class StaleTables:
    """All tables of one store on this machine. `modified_us` is None when they are unusable on this boot."""

    folder: str
    memory_dir: Path
    disk_dir: Path
    modified_us: int | None
    why: str

    @property
    def store_id(self) -> str:
        """The store that they are of."""
        return self.folder.partition("-")[0]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The store's folders."""
        return tuple(sorted({self.memory_dir / self.folder, self.disk_dir / self.folder}))

    def remove(self) -> bool:
        """Delete those that no process holds; whether that was all."""
        shards = _shards(self.memory_dir, self.disk_dir, self.folder)
        done = [remove_tables(directories) for directories in shards].count(False) == 0
        if done:
            shutil.rmtree(self.disk_dir / PIECES / self.folder, ignore_errors=True)  # copies of the store's pieces
        for path in self.paths if done else ():
            with suppress(OSError):  # absent, in use again, or another process removes it now
                path.rmdir()
        return done


def stale_tables(config: Config, now_us: int) -> Iterator[StaleTables]:
    """Unused tables in the folders of this job, sorted by store."""
    settings = table_settings(config)
    memory, disk = Path(settings.memory_dir), Path(settings.disk_dir)
    names = {path.name for top in (memory, disk) if top.is_dir() for path in top.iterdir()}
    for folder in sorted(name for name in names if _FOLDER.fullmatch(name)):
        used = [last_used_us(shard) for shard in _shards(memory, disk, folder)]
        last = max((time_us for time_us in used if time_us is not None), default=None)
        if "-" not in folder:
            yield StaleTables(folder, memory, disk, None, "tables of an earlier release")
        elif last is None:
            yield StaleTables(folder, memory, disk, None, "tables of an earlier boot")
        elif is_far_ahead(last, now_us):
            # Or their week would begin when the clock gets there.
            yield StaleTables(folder, memory, disk, last, "tables dated by a clock that was far ahead")
        elif last + UNUSED_US <= now_us:
            yield StaleTables(folder, memory, disk, last, "tables that no job has opened for a week")


def _shards(memory: Path, disk: Path, folder: str) -> list[ShardDirectories]:
    names = {name for top in (memory, disk) for name in _names(top / folder) if name.isdecimal()}
    return [ShardDirectories.of(str(memory), str(disk), folder, int(name)) for name in sorted(names)]


def _names(folder: Path) -> list[str]:
    """Of what is in a folder; of none if it is absent, or another process removes it at this moment."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
