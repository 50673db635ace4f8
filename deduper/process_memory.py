"""How much memory a job's processes hold, by what they are: the driver, its housekeeping, Spark's JVM, its workers.

Read from /proc, as resident bytes (RSS). Pages that several processes share, such as those of resident tables and of
what a worker has from the daemon it was forked from, count in each of them.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(driver: int | None = None) -> dict[str, int]:
    """RSS of the driver (`driver`, a process id; this process without one), its `jvm`, and the JVM's `workers`.

    `housekeeping` is the driver's other children: the one that deletes and merges pieces. Zeros where there is no such
    process, or no /proc.
    """
    return _by_process(driver, lambda resident, _: resident)


def anonymous_bytes(driver: int | None = None) -> dict[str, int]:
    """As `resident_bytes`, without pages of files and of shared memory: what a leak of a process would be among."""
    return _by_process(driver, lambda resident, of_files: resident - of_files)


def _by_process(driver: int | None, measured: Callable[[int, int], int]) -> dict[str, int]:
    pid = os.getpid() if driver is None else driver
    children: defaultdict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    for child, parent, name in _processes():
        children[parent].append(child)
        names[child] = name
    found = {"driver": measured(*_pages(pid)), "housekeeping": 0, "jvm": 0, "workers": 0}
    for child in children[pid]:
        if names[child] == "java":
            found["jvm"] += measured(*_pages(child))
            found["workers"] += sum(measured(*_pages(worker)) for worker in _descendants(child, children))
        else:
            found["housekeeping"] += measured(*_pages(child))
    return found


def _descendants(pid: int, children: dict[int, list[int]]) -> list[int]:
    found = list(children.get(pid, ()))
    for child in found:
        found.extend(children.get(child, ()))
    return found


def _processes() -> list[tuple[int, int, str]]:
    """(process, its parent, its name) of all that run."""
    found = []
    with contextlib.suppress(OSError):
        for entry in _PROC.iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    name, _, rest = (entry / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
                    found.append((int(entry.name), int(rest.split()[1]), name))
    return found


def _pages(pid: int) -> tuple[int, int]:
    """Resident bytes, and those of them that are pages of files or shared memory."""
    try:
        resident, of_files = (_PROC / str(pid) / "statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0, 0
    return int(resident) * _PAGE_BYTES, int(of_files) * _PAGE_BYTES
