"""The lock of a table's writers on one machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bucket_store.filesystem import LOCAL, make_directories
from deduper.table.errors import TableHeldError
from deduper.table.formats.protocol import PRIVATE


@contextmanager
def locked(root: Path, timeout_s: float) -> Iterator[None]:
    """One write, or one rebuilding of the index, at a time on this machine.

    Raises:
        TableHeldError: not in time.
    """
    make_directories(LOCAL, root / PRIVATE)
    deadline = time.monotonic() + timeout_s
    with LOCAL.open(root / PRIVATE / "lock", create=True) as lock:
        while not lock.try_lock():
            if time.monotonic() >= deadline:
                raise TableHeldError(f"{root}: another write or rebuild has held the table for {timeout_s:g} s")
            time.sleep(0.05)
        yield
