"""Checks of the machine: Java, Python, Spark, compiled code, memory."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from deduper import DISTRIBUTION
from deduper.config.load import ENV_PREFIX
from deduper.diagnostics import note, warning
from deduper.errors import UsageError
from deduper.preflight.results import Results, Start
from deduper.spark.installed import (
    RELEASE,
    heap_bytes,
    installed_pyspark,
    require_java,
    require_own_spark,
    require_user_name,
)
from deduper.spark_promises import DEFAULT_MASTER, is_one_process
from deduper.units import approximate_size
from deduper.window import table_folder

_NEAR = 0.9
_HEAP, _OF_MACHINE = "spark.driver.memory", "of this machine or container"
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def java(_: Start) -> Results:
    """A Java that Spark runs on."""
    found = require_java()
    yield note("java", "java", f"{found.path} is {found.shown}")


def user(_: Start) -> Results:
    """A user with a name."""
    require_user_name()
    yield from ()


def variables(start: Start) -> Results:
    """Variables of the environment that look like settings and are none: with one `_` where two are needed."""
    paths = [(ENV_PREFIX.strip("_"), *path) for path in _paths(start.config.model_dump(mode="json"))]
    known = {"_".join(path).upper(): "__".join(path).upper() for path in paths}
    for name in sorted(os.environ):
        # Of one that is near to none, such as Kubernetes' for a service of this name, nothing is known.
        close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=_NEAR)
        if close and not name.upper().startswith(ENV_PREFIX):
            yield warning("variables", name, "is no setting, and is not read", f"write `{known[close[0]]}`")


def _paths(settings: object) -> Iterator[tuple[str, ...]]:
    """The paths of the settings of a section."""
    for name, value in settings.items() if isinstance(settings, dict) else ():
        yield (name,)
        yield from ((name, *inner) for inner in _paths(value))


def spark(_: Start) -> Results:
    """The Spark of the installed PySpark, and that one the release that the tests run on."""
    require_own_spark()
    installed = installed_pyspark()
    if installed != RELEASE:
        what = f"PySpark {installed} is installed, and this release is tested with {RELEASE}"
        yield warning("java", "spark", what, f"pip install '{DISTRIBUTION}[service]'")


def python(_: Start) -> Results:
    """One Python for the driver and the workers."""
    own = _version_of(sys.executable)
    other = os.environ.get("PYSPARK_PYTHON", sys.executable)
    found = own if other == sys.executable else _version_of(other)
    if found != own:
        raise UsageError(
            f"PYSPARK_PYTHON is `{other}`, which is {found}, and the job runs on {own}; unset PYSPARK_PYTHON"
        )
    yield note("python", "python", f"{sys.executable} is {own}")


def _version_of(program: str) -> str:
    if program == sys.executable:
        return "Python {}.{}".format(*sys.version_info)
    code = "import sys; print('Python %d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "no Python that runs"
    return done.stdout.strip() if done.returncode == 0 else "no Python"


def kernels(_: Start) -> Results:
    """A folder for compiled code."""
    from bucket_store.compiled import cache_folder
    from deduper.core.kernels import is_expired

    folder = cache_folder(is_expired)
    if folder is None:
        what = "neither the package nor the home can be written to: each process compiles its kernels again"
        yield warning("kernels", "numba", what, "name a folder of this user's in NUMBA_CACHE_DIR")
    else:
        yield note("kernels", "numba", f"compiled code is kept in {folder}")


def memory(start: Start) -> Results:
    """`store.memory` against /dev/shm, and Java's heap and it against the machine; tables without room are on the disk.

    On a cluster the tables are on other hosts, and of the driver's the heap alone is known.
    """
    config, machine = start.config, _machine_bytes()
    heap = heap_bytes(config.spark)
    if not is_one_process(str(config.spark.get("spark.master", DEFAULT_MASTER))):
        if heap > machine:
            what = f"{approximate_size(heap)} is more than the {approximate_size(machine)} {_OF_MACHINE}"
            yield warning("memory", _HEAP, f"{what}: with a full heap the kernel may end the job", f"lower {_HEAP}")
        return
    place, wanted, shared = "store.memory", config.store.memory, table_folder.SHARED_MEMORY
    if shared.is_dir():
        room = shutil.disk_usage(shared)
        free = room.free + _size(Path(table_folder.table_settings(config).memory_dir))
        if min(room.total, free) < wanted:
            what = (
                f"{approximate_size(wanted)} is more than {shared} has: {approximate_size(room.total)}, of them "
                f"{approximate_size(free)} for tables; the others are on the disk, which is slower"
            )
            yield warning("memory", place, what, f"enlarge {shared} (Docker: shm_size), or lower store.memory")
        else:
            yield note("memory", place, f"{shared} has room for {approximate_size(wanted)} of tables")
    else:
        yield note("memory", place, f"there is no {shared}: tables are on the disk")
    if heap + wanted > machine:
        what = (
            f"with the {approximate_size(heap)} of {_HEAP} it is more than the {approximate_size(machine)} "
            f"{_OF_MACHINE}: with a full store the kernel may end the job"
        )
        yield warning("memory", place, what, f"lower store.memory or {_HEAP}")


def _machine_bytes() -> int:
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such group, or `max`
        return total


def _size(folder: Path) -> int:
    """Bytes of the files below a folder; other jobs may remove some of them, and folders, meanwhile."""
    size = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(above, name).stat().st_size
    return size


def file_system_of(path: Path) -> str:
    """The kind of the file system that holds a path; empty when none is known."""
    holding = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    # Of two mounts at one point the later one covers the earlier.
    return max(reversed(holding), key=lambda mount: len(Path(mount.mountpoint).parts)).fstype if holding else ""
