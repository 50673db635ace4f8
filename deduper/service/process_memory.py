"""Memory of a job's processes by kind: the driver, its maintenance worker, Spark's JVM, its Python workers.

Resident bytes (RSS) as psutil reads them. Pages that several processes share, such as those of resident tables and
those a worker has from the daemon it was forked from, count in each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def resident_bytes(driver: int | None = None) -> dict[str, int]:
    """RSS of the driver (`driver`, a process id; this process without one), its `jvm`, and the JVM's `workers`.

    `maintenance` is the driver's other children: the maintenance worker. Zeros for processes that do not run.
    """
    return summed_by_process(_resident, driver)


def memory_room() -> dict[str, int]:
    """Bytes that are `available` and the `limit`: of the container if it has one, else of the machine."""
    machine = psutil.virtual_memory()
    room = {"available": machine.available, "limit": machine.total}
    with contextlib.suppress(OSError, ValueError, KeyError):
        limit = int((_CGROUP / "memory.max").read_text())  # "max" without a limit
        used = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        # The kernel takes back cached files that were not used lately before it kills.
        reclaimable = int(dict(line.split() for line in lines)["inactive_file"])
        room = {"available": min(machine.available, max(0, limit - used + reclaimable)), "limit": limit}
    return room


def summed_by_process(measured: Callable[[psutil.Process], int], driver: int | None = None) -> dict[str, int]:
    """As `resident_bytes`, by another measure of a process, in units of its own."""
    found = {"driver": 0, "maintenance": 0, "jvm": 0, "workers": 0}
    with contextlib.suppress(psutil.Error):
        job = psutil.Process(driver)
        found["driver"] = measured(job)
        for child in job.children():
            is_jvm = _is_java(child)
            found["jvm" if is_jvm else "maintenance"] += measured(child)
            if is_jvm:
                found["workers"] += sum(map(measured, _descendants(child)))
    return found


def _is_java(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "java"
    return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0
