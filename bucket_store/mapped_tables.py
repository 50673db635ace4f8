"""The table files this process has mapped, kept from batch to batch.

The first touch of a mapped page costs more than the look-up in it: a table of 40 million keys answers 2.6 M look-ups/s
when mapped anew and 17 M/s when it was mapped before. The price: a table deleted by another process keeps its memory
until this one next opens or closes a shard's tables, so both let go of what is gone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from bucket_store.matches import TableLayout
from bucket_store.table_file import TableFile, open_table

_KEPT = 64

# Least recently used first. Mappings are shared memory, so a fork may keep them.
_mapped: OrderedDict[Path, TableFile] = OrderedDict()
_lock = threading.Lock()


def mapped_table(path: Path, layout: TableLayout, nonce: bytes, bucket: int) -> TableFile | None:
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


def keep_mapped(table: TableFile) -> None:
    """Keeps a table that has just got its name."""
    with _lock:
        _mapped[table.path] = table
        _mapped.move_to_end(table.path)
        if len(_mapped) > _KEPT:
            _mapped.popitem(last=False)


def let_go_of_deleted() -> None:
    """Unmaps tables whose files were deleted or replaced."""
    with _lock:
        for path in [path for path, table in _mapped.items() if not _is_at(table, path)]:
            del _mapped[path]


def _is_at(table: TableFile, path: Path) -> bool:
    # The mapping holds the inode, so its number cannot have gone to another file.
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == table.identity
