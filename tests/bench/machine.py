"""The machine of a run: its facts, its load, and the versions of packages that matter."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from deduper.preflight.machine import file_system_of

_PACKAGES = ("deduper", "pyspark", "pyarrow", "numpy", "numba", "rocksdict")


def machine_facts(work: Path) -> dict[str, Any]:
    """CPU, memory, disk of the working directory, operating system, Python, Java, packages; no host name."""
    memory = psutil.virtual_memory()
    return {
        "cpu": _cpu() or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_kib": memory.total >> 10,
        "free_kib": memory.available >> 10,
        "file_system": file_system_of(work.resolve()) or "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def drop_pages(folder: Path) -> None:
    """Takes the files of a folder out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cpu() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return None


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    with contextlib.suppress(OSError):
        reported = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
        return reported.strip().split("\n", 1)[0]
    return "none"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
