"""The table files mapped by this process, kept from batch to batch.

The first touch of a mapped page costs more than the look-up in it: a table of 40 million keys answers 2.6 M look-ups/s
when freshly mapped and 17 M/s when it was mapped before. The price: a table deleted by another process keeps its memory
until this process next opens or closes a shard's tables, so both unmap deleted tables.

A thread empties the table of a dead bucket, for all processes that have it mapped: unmapping it with its memory takes
2 ms per million keys, in which the task stands still, and next to nothing once it is empty.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path

from bucket_store.tables.matches import TableLayout
from bucket_store.tables.table_file import MappedTable, open_table
from bucket_store.threads import on_a_thread

_KEPT = 64

# Least recently used first. Mappings are shared memory, so a fork may keep them.
_mapped: OrderedDict[Path, MappedTable] = OrderedDict()
_emptying: set[tuple[int, int]] = set()
"""Identities of unlinked tables whose memory a thread is freeing: their mappings stay until then."""
_lock = threading.Lock()


def mapped_table(path: Path, layout: TableLayout, nonce: bytes, bucket: int) -> MappedTable | None:
    """The table in a file, mapped now or before; None when there is no such table (see `open_table`)."""
    with _lock:
        table = _mapped.get(path)
        if table is not None and _is_at(table, path):
            _mapped.move_to_end(path)
            return table
        _mapped.pop(path, None)
    table = open_table(path, layout, nonce, bucket)
    if table is not None:
        keep_mapped(table)
    return table


def keep_mapped(table: MappedTable) -> None:
    """Keeps the mapping of a table that has just got its name."""
    with _lock:
        _mapped[table.path] = table
        _mapped.move_to_end(table.path)
        if len(_mapped) > _KEPT:
            _mapped.popitem(last=False)


def unmap_deleted() -> None:
    """Unmaps tables whose files were deleted or replaced."""
    with _lock:
        gone = [path for path, table in _mapped.items() if table.identity not in _emptying and not _is_at(table, path)]
        for path in gone:
            del _mapped[path]


def empty_beside(path: Path) -> None:
    """Unlinks a table that no process reads again, and frees its memory on a thread.

    For the holder of its generation's lock: a reader with an earlier mapping would find no memory behind it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    path.unlink()
    status = os.fstat(fd)
    identity = status.st_dev, status.st_ino
    with _lock:
        _emptying.add(identity)
    on_a_thread(partial(_empty, fd, identity))


def _empty(fd: int, identity: tuple[int, int]) -> None:
    try:
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)
        with _lock:
            _emptying.discard(identity)


def _is_at(table: MappedTable, path: Path) -> bool:
    # The mapping holds the inode, so its number cannot have gone to another file.
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    # Of one that has become longer, a mapping has not all.
    return (status.st_dev, status.st_ino, status.st_size) == (*table.identity, table.size_bytes)
