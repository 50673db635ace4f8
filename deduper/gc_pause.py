"""Python's garbage collection, paused while records are fetched from topics, or made to be sent. PURE.

Every record is some small objects that die with the next batch, in no cycle. Searching them again and again for cycles
took half of the time of making them.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_under_way = 0
_was_on = False


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing while any thread is within. Not for work of hours: objects in cycles stay so long."""
    global _under_way, _was_on
    with _lock:
        if not _under_way:
            _was_on = gc.isenabled()
            gc.disable()
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if not _under_way and _was_on:
                gc.enable()
