"""Settings of the C library's allocator for the driver and its child processes, so that their memory does not grow.

A job with Kafka ports opens RocksDB, reads Parquet and sends records on dozens of short-lived threads. By default each
may allocate in an arena of its own, and an arena keeps the most memory that any thread has ever needed in it. A few
shared arenas are reused. They still come to hold twice what is in use, in pieces between blocks that live on: a running
driver returns those pages every minute, otherwise it grows for half an hour.

A worker is the other case: one thread that needs the same megabytes for every window. By default it returns them after
each column, and gets them page by page, zeroed, for the next.
"""

from __future__ import annotations

import ctypes
import os
import time

_ARENAS = 4
_M_ARENA_MAX, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -8, -1, -3  # glibc's malloc.h
_LARGEST_IN_HEAP, _KEPT = 32 << 20, 128 << 20
"""A block above the first has pages of its own, which are returned with it; glibc allows no more than this. More free
memory than the second at the heap's end is returned."""


def keep_few_arenas() -> None:
    """For this process from now on, and for those it starts. To be called before Arrow is loaded, on the first thread.

    Settings in the environment stay as they are.
    """
    # Arrow's own allocator keeps ten times what is in use, for threads that come and go.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    os.environ["MALLOC_ARENA_MAX"] = str(_ARENAS)
    # glibc has read the variable before Python began.
    _mallopt(_M_ARENA_MAX, _ARENAS)


def keep_heap() -> None:
    """For this process from now on, and for those that it forks: memory that was freed is kept for the next window.

    Settings in the environment stay as they are.
    """
    if not {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        _mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT)


class FreeMemory:
    """Returns this process's free memory to the system once in `every_s`. For one thread."""

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._due = time.monotonic() + every_s

    def return_when_due(self) -> None:
        """Called often; some milliseconds when it is due, and other threads wait meanwhile only for their own arena."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            _of_libc("malloc_trim", 0)


def _mallopt(parameter: int, value: int) -> None:
    _of_libc("mallopt", parameter, value)


def _of_libc(name: str, *arguments: int) -> None:
    # Another C library has no such call, and none of these arenas.
    call = getattr(ctypes.CDLL(None), name, None)
    if call is not None:
        call(*arguments)
