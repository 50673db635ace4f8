"""Limits the bytes of tables in a directory, over all shards and processes of a store on this machine.

Bytes are counted from the directory. Who counts them and then takes some holds the lock of that directory meanwhile
(`taking_room`): two that count at one moment would both take what is free. The least recently used table goes first, by
the file's modification time (set when a table is pinned). A table of another shard is evicted only under that shard's
lock, taken without waiting; tables of a shard at work stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from bucket_store.tables.generation import try_lock
from bucket_store.tables.table_file import copy_file, held_bytes

_ROOM_WAIT_S, _ROOM_LOOK_S = 10.0, 0.002


@dataclass(frozen=True, slots=True)
class _Table:
    path: Path
    size_bytes: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class Room:
    """Whether there is room now, and the number of tables deleted for it."""

    fits: bool
    evicted: int


@dataclass(frozen=True, slots=True)
class Tier:
    """The tables of one store below one directory: `<root>/<shard>/<generation>/t<bucket>.table`.

    `locks` has the same form and holds the generations' locks. An evicted table moves to the tier `below`, while that
    has room, or is deleted.
    """

    root: Path
    locks: Path
    limit_bytes: int
    below: Tier | None = None

    def used_bytes(self) -> int:
        """Bytes of all tables, finished or not."""
        return sum(table.size_bytes for table in self._tables())

    def has_room(self, need_bytes: int) -> bool:
        """Whether this many more bytes fit without an eviction."""
        return self.used_bytes() + need_bytes <= self.limit_bytes

    def make_room(self, need_bytes: int, *, own: str, keep: Collection[Path] = ()) -> Room:
        """Evicts until this many more bytes fit, or no table is left that may go.

        `own` is "<shard>/<generation>" of the lock that the caller holds; its tables may go too, except those in
        `keep`.
        """
        if need_bytes > self.limit_bytes:
            return Room(False, 0)
        tables = list(self._tables())
        excess = sum(table.size_bytes for table in tables) + need_bytes - self.limit_bytes
        evicted = 0
        for table in sorted(tables, key=lambda table: table.used_ns):
            if excess <= 0:
                break
            if table.path.suffix == ".table" and table.path not in keep:
                deleted = self._evict(table, own)
                if deleted is not None:
                    excess -= table.size_bytes
                    evicted += deleted
        return Room(excess <= 0, evicted)

    def _evict(self, table: _Table, own: str) -> int | None:
        """The number of tables deleted for it; None when its shard is at work."""
        shard_generation = table.path.parent.relative_to(self.root)
        if shard_generation == Path(own):
            return self._move_down(table, own)
        lock = try_lock(self.locks / shard_generation)
        if lock is None:
            return None
        try:
            return self._move_down(table, own)
        finally:
            os.close(lock)

    def _move_down(self, table: _Table, own: str) -> int:
        deleted = 1
        if self.below is not None:
            room = self.below.make_room(table.size_bytes, own=own)
            deleted = room.evicted
            target = self.below.root / table.path.relative_to(self.root)
            if not room.fits or not _copy(table, target):
                deleted += 1
        table.path.unlink(missing_ok=True)
        return deleted

    def _tables(self) -> Iterator[_Table]:
        for shard in _entries(self.root):
            for generation in _entries(Path(shard.path)):
                for entry in _entries(Path(generation.path)):
                    if entry.name.endswith((".table", ".building")):
                        try:
                            status = entry.stat()
                        except FileNotFoundError:
                            continue
                        yield _Table(Path(entry.path), held_bytes(status), status.st_mtime_ns)


@contextlib.contextmanager
def taking_room(directory: Path) -> Iterator[None]:
    """Locks the counting and the taking of bytes of a store's tables, over all processes of this machine.

    A frozen holder blocks others for `_ROOM_WAIT_S` at most. Then the limit may be passed by the bytes that it takes
    when it resumes.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # the tables are being removed, and nothing is counted
        yield
        return
    try:
        until = time.monotonic() + _ROOM_WAIT_S
        while not _locked(fd) and time.monotonic() < until:
            time.sleep(_ROOM_LOOK_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _copy(table: _Table, target: Path) -> bool:
    """Copies a table whole or not at all. The caller holds its lock; the copy keeps its time of last use."""
    making = target.with_name(f"{target.stem}.{secrets.token_hex(4)}.building")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(table.path, making)
        os.utime(making, ns=(table.used_ns, table.used_ns))
        making.rename(target)
    except OSError:
        making.unlink(missing_ok=True)
        return False
    return True


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
