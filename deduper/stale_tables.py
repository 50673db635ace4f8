"""Resident tables on this machine that serve nobody any more: of an earlier boot, or of a store long unused.

Tables are only a faster form of the pieces, so deleting them costs time, never keys. They lie by store id in folders
that all jobs of a machine share, and a table says neither where its store is nor whether it is still there. So tables
of an earlier boot go, which nobody could use, and those that no job has opened for a week.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bucket_store.generation import ShardDirectories, last_used_us, remove_tables
from deduper.config import Config
from deduper.table_places import table_settings

UNUSED_US = 7 * 86_400_000_000
_STORE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class StaleTables:
    """All tables of one store on this machine. `modified_us` is None when they are of an earlier boot."""

    store_id: str
    memory_dir: Path
    disk_dir: Path
    modified_us: int | None
    why: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """The store's folders."""
        return tuple(sorted({self.memory_dir / self.store_id, self.disk_dir / self.store_id}))

    def remove(self) -> bool:
        """Delete those that nobody holds; whether that was all."""
        shards = _shards(self.memory_dir, self.disk_dir, self.store_id)
        done = [remove_tables(directories) for directories in shards].count(False) == 0
        for path in self.paths if done else ():
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        return done


def stale_tables(config: Config, now_us: int) -> Iterator[StaleTables]:
    """What lies in the tables' folders of this job and is of no use, sorted by store."""
    settings = table_settings(config)
    memory, disk = Path(settings.memory_dir), Path(settings.disk_dir)
    names = {path.name for top in (memory, disk) if top.is_dir() for path in top.iterdir()}
    for store_id in sorted(name for name in names if _STORE_ID.fullmatch(name)):
        used = [last_used_us(shard) for shard in _shards(memory, disk, store_id)]
        last = max((time_us for time_us in used if time_us is not None), default=None)
        if last is None:
            yield StaleTables(store_id, memory, disk, None, "tables of an earlier boot")
        elif last + UNUSED_US <= now_us:
            yield StaleTables(store_id, memory, disk, last, "tables that no job has opened for a week")


def _shards(memory: Path, disk: Path, store_id: str) -> list[ShardDirectories]:
    names = {path.name for top in (memory, disk) for path in (top / store_id).glob("*") if path.name.isdecimal()}
    return [ShardDirectories.of(str(memory), str(disk), store_id, int(name)) for name in sorted(names)]
