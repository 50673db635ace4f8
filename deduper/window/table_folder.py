"""The folders of a job's resident tables on this machine."""

from __future__ import annotations

from bucket_store.tables.manager import TableSettings
from deduper.config.model import Config
from deduper.tasks import table_room as host_room
from deduper.tasks.table_room import TableRoom
from deduper.window import policy

SHARED_MEMORY = host_room.SHARED_MEMORY
_DISK_SHARE = 8
"""Tables that memory has no room for lie on disk, up to so many times its bytes: an eighth of a period is warm."""
_CACHE_SHARE = 2
"""Copies of remote pieces, in times of memory: a key has half the bytes in a piece, so that is four times its keys."""


def table_room(config: Config) -> TableRoom:
    """The settings of tables, for any host. The layout is that of a new store: a window's task has its own."""
    store = config.store
    return TableRoom(
        folder=None if store.tables == "auto" else str(store.tables),
        memory_bytes=store.memory,
        disk_bytes=_DISK_SHARE * store.memory,
        layout=policy.table_layout(config),
        piece_cache_bytes=0 if store.is_local else _CACHE_SHARE * store.memory,
    )


def table_settings(config: Config) -> TableSettings:
    """The settings of the resident tables on this machine."""
    return table_room(config).here(SHARED_MEMORY)
