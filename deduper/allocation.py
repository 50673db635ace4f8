"""How the driver and the processes below it get memory from the C library, so that what a job holds does not creep up.

A job of Kafka ports opens RocksDB, reads Parquet and sends records on dozens of threads that come and go. Left to
itself, every one of them may allocate in an arena of its own, and each of those keeps the most that any thread has ever
needed in it. Few arenas, shared, are reused.
"""

from __future__ import annotations

import ctypes
import os

_ARENAS = 4
_M_ARENA_MAX = -8  # glibc's malloc.h


def keep_few_arenas() -> None:
    """For this process from now on, and for those it starts. To be called before Arrow is loaded, on the first thread.

    What the environment says already stays as it is.
    """
    # Arrow's own allocator keeps ten times what is in use, for threads that come and go.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    os.environ["MALLOC_ARENA_MAX"] = str(_ARENAS)
    # glibc has read the variable before Python began. Another C library has no such call, and no arenas.
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if limit is not None:
        limit(_M_ARENA_MAX, _ARENAS)
