"""Few arenas for many threads, here and in what is started; what the user has set stays."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library's allocator")

# Threads that allocate at the same time get an arena each, as long as there may be more: 64 MB of addresses, aligned.
_MANY_THREADS = """
import ctypes, os, threading
{first}
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
together = threading.Barrier(13)
def allocate():
    together.wait()
    assert malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads: thread.start()
together.wait(); together.wait()
for thread in threads: thread.join()
lines = [line.split() for line in open("/proc/self/maps")]
starts = [int(words[0].split("-")[0], 16) for words in lines if words[1] == "rw-p" and len(words) == 5]
print(sum(start % (64 << 20) == 0 for start in starts), os.environ.get("MALLOC_ARENA_MAX"))
print(os.environ.get("ARROW_DEFAULT_MEMORY_POOL"))
"""
_CALL = "from deduper.spark.allocator import keep_few_arenas; keep_few_arenas()"


def arenas(first: str, **environment: str) -> tuple[int, str, str]:
    """How many a process has for its threads besides the first one's, and what it hands on to its children."""
    clean = {name: value for name, value in os.environ.items() if name not in _NAMES}
    reported = subprocess.run(
        [sys.executable, "-c", _MANY_THREADS.format(first=first)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return int(reported[0]), reported[1], reported[2]


_NAMES = ("MALLOC_ARENA_MAX", "ARROW_DEFAULT_MEMORY_POOL")


@of_glibc
def test_few_arenas_for_many_threads() -> None:
    """Four in all, where there were more; children hear of it."""
    without, *_ = arenas("")
    count, limit, pool = arenas(_CALL)
    assert count <= 3 < without
    assert (limit, pool) == ("4", "system")


def test_what_the_user_has_set_stays() -> None:
    """One arena, and Arrow's own allocator."""
    count, limit, pool = arenas(_CALL, MALLOC_ARENA_MAX="1", ARROW_DEFAULT_MEMORY_POOL="mimalloc")
    assert (count, limit, pool) == (0, "1", "mimalloc")


# A block as large as a window's column: freed and allocated again, does it need pages anew?
_SAME_BLOCK_AGAIN = """
import ctypes, resource
{first}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(20 << 20)
    libc.memset(block, 1, 20 << 20)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@of_glibc
def test_a_worker_keeps_its_heap_for_the_next_window() -> None:
    """5,120 pages are asked for once, not again and again; what the user has set stays."""

    def pages_again(first: str, **environment: str) -> int:
        code = _SAME_BLOCK_AGAIN.format(first=first)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        return int(subprocess.check_output([sys.executable, "-c", code], env={**clean, **environment}, text=True))

    call = "from deduper.spark.allocator import keep_heap; keep_heap()"
    assert pages_again(call) < 500
    assert pages_again(call, MALLOC_TRIM_THRESHOLD_="65536", MALLOC_MMAP_THRESHOLD_="65536") > 4000


# 50 MB in blocks that lie among others which live on.
_HOLES = """
import ctypes
{first}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
blocks = [libc.malloc(20_000) for _ in range(2_500)]
for block in blocks:
    libc.memset(block, 1, 20_000)
for number, block in enumerate(blocks):
    if number % 10:
        libc.free(block)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
FreeMemory(every_s={every_s}).return_when_due()
print(before - resident())
"""


@of_glibc
def test_free_memory_between_blocks_in_use_is_returned_when_it_is_due() -> None:
    """Whole pages of it; before the time nothing is returned."""

    def returned(every_s: float) -> int:
        code = _HOLES.format(first="from deduper.spark.allocator import FreeMemory", every_s=every_s)
        return int(subprocess.check_output([sys.executable, "-c", code], text=True))

    assert returned(0.0) > 20e6
    assert returned(3600.0) < 1e6  # the system may take and give pages meanwhile
