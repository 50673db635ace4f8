"""The lock of a table's writers on one machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bucket_store.filesystem import LOCAL, make_directories
from deduper.table.errors import TableHeldError
from deduper.table.formats.protocol import PRIVATE

logger = logging.getLogger(__name__)

_SAY_AFTER_S = 1.0
"""Small loads wait for each other as a rule, and not for as long."""


@contextmanager
def locked(root: Path, timeout_s: float) -> Iterator[None]:
    """One write, or one rebuilding of the index, at a time on this machine.

    Raises:
        TableHeldError: not in time.
    """
    make_directories(LOCAL, root / PRIVATE)
    began = time.monotonic()
    is_said = False
    with LOCAL.open(root / PRIVATE / "lock", create=True) as lock:
        while not lock.try_lock():
            waited_s = time.monotonic() - began
            if waited_s >= timeout_s:
                held = f"{root}: another write or rebuild has held the table for {timeout_s:g} s"
                raise TableHeldError(f"{held}; repeat the command when it is done")
            if waited_s >= _SAY_AFTER_S and not is_said:
                logger.warning("%s: another write or rebuild holds the table; waiting up to %g s", root, timeout_s)
                is_said = True
            time.sleep(0.05)
        yield
