"""Room on the file systems that a job writes to: of the store and of each port of files."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from deduper.sinks.names import HasFilePorts

LEAST_FREE_BYTES = 256 * 2**20
"""A job with less room, for the store or for a port of files, is not well: some windows of the usual size."""


class DiskSpace(NamedTuple):
    """Bytes of a file system."""

    free: int
    size: int


def disk_room(config: HasFilePorts) -> dict[str, DiskSpace]:
    """By `store` and the name of the port; a folder that cannot be looked at is left out."""
    store = config.store_place
    places: dict[str, Path] = {"store": store.local} if store.names.scheme == "file" else {}
    places |= {port: sink.path for port, sink in config.file_ports.items() if sink.is_local}
    found = {}
    for place, path in places.items():
        # Before the first window a port's folder need not be there.
        there = next((one for one in (path, *path.parents) if one.exists()), path)
        with contextlib.suppress(OSError):
            room = shutil.disk_usage(there)
            found[place] = DiskSpace(room.free, room.total)
    return found
