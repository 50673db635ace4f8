"""A shard's table directory: its lock, and the contents of its tables.

    <disk dir>/<folder>/<shard, 4 digits>/<generation>/header, lock, t<bucket>.table …
    <memory dir>/<folder>/<shard, 4 digits>/<generation>/<nonce, hex>.nonce, t<bucket>.table …

The folder is named for the store's id and path, so that copies of a store do not take each other's tables away.

The lock is a flock: it ends with its holder. Only the highest generation counts. A task that does not get its lock in
time puts the next generation in place by renaming a directory that it has already locked; a holder that thaws later
continues in files that no process reads any more. Lower generations are deleted when their locks are free.

The `.nonce` file ties a header to one memory directory. Containers of a host may share a disk directory, with a
/dev/shm each: what one of them applies to its tables, the tables of the other do not have. The holder that draws a
nonce makes the file, empty, in its own memory directory; every other one finds a header whose file it does not have,
deletes its tables and draws another nonce. Headers never go back to an old nonce, so a file that is left does no harm.
A name is there or it is not: a holder that is killed before it has made the file leaves a header without one, which
makes the tables worthless once more.

Layout of `header`, version 4, integers in the machine's order, rewritten whole:

      0  magic     8 bytes  "BSTABGEN"
      8  version   u16      4
     10  length    u16      of the body
     12  body      msgpack array of the fields of `GenerationHeader`
         checksum  u64      xxh3_64 of everything before
         zeros              to 512 bytes

A header that is damaged, dirty, of another version, boot, layout, history or memory directory, or of a later expiry
point than the view's, makes all tables worthless; they are deleted. Nothing here is synced: after a power cut the boot
id differs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import xxhash

from bucket_store.errors import StaleViewError
from bucket_store.lineage import Lineage, history_at
from bucket_store.places.place import Place
from bucket_store.tables.matches import TableLayout
from bucket_store.tables.view import ShardView
from bucket_store.wire import decode, encode

_MAGIC = b"BSTABGEN"
_VERSION = 4
_HEAD = struct.Struct("=8sHH")
_CHECKSUM = struct.Struct("=Q")
_HEADER_BYTES = 512
_POLL_S = 0.01
_LINEAGE_KEPT = 10
"""The entries of a lineage in a header: as many as fit, and more owners than a task ever outlives."""


@dataclass(frozen=True, slots=True)
class GenerationHeader:
    """Describes the tables of a generation; the first four fields change only when all tables are deleted.

    The tables hold exactly the committed windows below `next_window`, of the history in `lineage`: the end of the
    lineage of the last view applied. They may lack entries that were dead at `expiry_point`, the last view's.
    `is_dirty`: a holder is changing tables; if the next holder finds it set, that holder has died. `nonce`, 16 bytes,
    is in every table file too, and names a file in memory.
    """

    store_id: str
    boot_id: str
    nonce: bytes
    columns: int
    lineage: Lineage
    next_window: int
    is_dirty: bool
    expiry_point: int | float | None


@dataclass(frozen=True, slots=True)
class ShardDirectories:
    """The two directories of one shard's generations."""

    memory: Path
    disk: Path

    @classmethod
    def of(cls, memory_dir: str, disk_dir: str, folder: str, shard: int) -> ShardDirectories:
        """Their paths, without creating them. `folder` as in `ShardView`."""
        below = Path(folder) / f"{shard:04d}"
        return cls(Path(memory_dir) / below, Path(disk_dir) / below)


def table_folder(store_id: str, root: Place) -> str:
    """The folder name for the tables of the store at `root`: a copy of the store has another one."""
    return f"{store_id}-{hashlib.blake2b(os.fsencode(str(root.resolved())), digest_size=4).hexdigest()}"


class Generation:
    """A locked generation. The lock is held until `close` or the death of the process."""

    def __init__(self, directories: ShardDirectories, number: int, lock: int, header: GenerationHeader) -> None:
        self.number = number
        self.memory = directories.memory / str(number)
        self.disk = directories.disk / str(number)
        self.header = header
        self._lock = lock

    def tie_memory(self) -> None:
        """Makes or touches the file that ties the header to this memory directory; before the first table of its nonce.

        Raises:
            OSError: no room, or no right to write.
        """
        self.memory.mkdir(parents=True, exist_ok=True)
        _nonce_file(self.memory, self.header).touch()

    def mark_dirty(self) -> None:
        """Marks the tables as not sound until `mark_at`."""
        self._write(replace(self.header, is_dirty=True))

    def mark_at(self, view: ShardView) -> None:
        """Marks the tables as holding the windows of the view."""
        lineage = view.lineage[-_LINEAGE_KEPT:]
        point = view.expiry_point
        self._write(
            replace(self.header, lineage=lineage, next_window=view.next_window, is_dirty=False, expiry_point=point)
        )

    def _write(self, header: GenerationHeader) -> None:
        self.header = header
        _write_header(self.disk, header)

    def close(self) -> None:
        """Releases the lock. Safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_generation(
    directories: ShardDirectories, view: ShardView, layout: TableLayout, *, lock_timeout_s: float
) -> Generation:
    """The shard's highest generation, locked, its tables sound for windows below its header's `next_window`.

    Those windows are of the view's history. Worthless tables have been deleted.

    Raises:
        StaleViewError: the owner that handed out the view has brought the tables beyond it; nothing was touched.
        OSError: the directories cannot be made or written.
    """
    directories.disk.mkdir(parents=True, exist_ok=True)
    deadline, waiting_for = time.monotonic() + lock_timeout_s, 0
    fresh = GenerationHeader(
        view.store_id,
        boot_id(),
        secrets.token_bytes(16),
        _column_bits(layout),
        view.lineage[-_LINEAGE_KEPT:],
        view.next_window,
        False,
        view.expiry_point,
    )
    while True:
        number = max(_numbers(directories.disk), default=0)
        if number != waiting_for:  # a new generation: its holder gets the same time
            deadline, waiting_for = time.monotonic() + lock_timeout_s, number
        if number == 0:
            generation = _place(directories, 1, fresh)
        else:
            generation = _enter(directories, number, fresh, view)
            if generation is None and time.monotonic() >= deadline:
                _refuse_if_overtaken(_read_header(directories.disk / str(number)), view)
                generation = _place(directories, number + 1, fresh)
        if generation is not None:
            _delete_lower(directories, generation.number)
            return generation
        time.sleep(_POLL_S)


def try_lock(directory: Path) -> int | None:
    """A generation's lock, taken without waiting, as a descriptor to close; None when it is held, or gone."""
    try:
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def last_used_us(directories: ShardDirectories) -> int | None:
    """When a shard's tables were last in use, µs since the epoch; None when they are of no use on this boot.

    A header in another disk directory is not seen. Files in memory are as old as the boot at most, so they count by
    their own times: a table is touched when it is used, a `.nonce` file when its generation is opened.
    """
    try:
        return max(_used_us(directories), default=None)
    except FileNotFoundError:
        return time.time_ns() // 1000  # a process removes files at this moment, so it uses them


def _used_us(directories: ShardDirectories) -> Iterator[int]:
    if directories.memory != directories.disk:
        yield from map(_modified_us, directories.memory.glob("*/*"))
    for number in _numbers(directories.disk) if directories.disk.is_dir() else ():
        header = _read_header(directories.disk / str(number))
        if header is not None and header.boot_id == boot_id():
            yield _modified_us(directories.disk / str(number) / "header")


def _modified_us(path: Path) -> int:
    return path.stat().st_mtime_ns // 1000


def remove_tables(directories: ShardDirectories) -> bool:
    """Delete a shard's tables that no process holds; whether those were all. They are rebuilt when needed."""
    with contextlib.suppress(FileNotFoundError):  # absent, or another process removes it now
        _delete_lower(directories, 1 << 63)
        if any(directories.disk.iterdir()):
            return False
    shutil.rmtree(directories.memory, ignore_errors=True)
    with contextlib.suppress(OSError):
        directories.disk.rmdir()
    return True


@cache
def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _column_bits(layout: TableLayout) -> int:
    """The flags of a layout, and from bit 4 on the window since when fingerprints count, plus one; 0 without any."""
    flags = (layout.has_expiry, layout.float_expiry, layout.has_origin, layout.one_table)
    since = 0 if layout.fingerprints_since is None else layout.fingerprints_since + 1
    return sum(int(flag) << bit for bit, flag in enumerate(flags)) | since << len(flags)


def _numbers(directory: Path) -> Iterator[int]:
    return (int(name) for name in os.listdir(directory) if name.isdecimal())  # noqa: PTH208  # names suffice


def _enter(directories: ShardDirectories, number: int, fresh: GenerationHeader, view: ShardView) -> Generation | None:
    """The generation if its lock is free and no higher one exists by then."""
    path = directories.disk / str(number)
    lock = try_lock(path)
    if lock is None:
        return None
    try:
        if max(_numbers(directories.disk), default=0) != number:
            os.close(lock)
            return None
        header = _read_header(path)
        _refuse_if_overtaken(header, view)
        memory = directories.memory / str(number)
        if header is not None and _is_sound(header, fresh, view) and _nonce_file(memory, header).exists():
            generation = Generation(directories, number, lock, header)
            generation.tie_memory()
        else:
            generation = Generation(directories, number, lock, fresh)
            generation.mark_dirty()
            _delete_tables(generation.memory)
            _delete_tables(generation.disk)
            generation.tie_memory()
            generation.mark_at(view)
    except BaseException:
        os.close(lock)
        raise
    return generation


def _is_sound(header: GenerationHeader, fresh: GenerationHeader, view: ShardView) -> bool:
    """Whether the tables are whole, readable as they are, and hold windows of the view's history only."""
    like_fresh = replace(
        header,
        nonce=fresh.nonce,
        lineage=fresh.lineage,
        next_window=fresh.next_window,
        expiry_point=fresh.expiry_point,
    )
    history = history_at(header.lineage, header.next_window)
    has_all_live = header.expiry_point is None or (
        view.expiry_point is not None and header.expiry_point <= view.expiry_point
    )
    return like_fresh == fresh and has_all_live and history == view.history_at(header.next_window) != b""


def _refuse_if_overtaken(header: GenerationHeader | None, view: ShardView) -> None:
    """Protects tables of later windows, of the view's owner or of a later one, from a task of an earlier window.

    Their lineage then has the claim of the view's owner. Tables ahead of the view without that claim are of another
    history: the store was put back to an older copy, and they are of no use to it.
    """
    if header is None or header.is_dirty or header.boot_id != boot_id():
        return
    if header.next_window > view.next_window and view.lineage[-1] in header.lineage:
        raise StaleViewError(
            f"the tables hold the windows below {header.next_window}, the view only those below {view.next_window}"
        )


def _place(directories: ShardDirectories, number: int, header: GenerationHeader) -> Generation | None:
    """A new empty generation, locked before it is visible; None when another process was faster."""
    making = directories.disk / f".{number}-{secrets.token_hex(4)}"
    making.mkdir()
    # Another process may take it for an orphan and delete it at any moment before it is locked.
    try:
        (making / "lock").touch()
    except FileNotFoundError:
        return None
    lock = try_lock(making)
    if lock is None:
        return None
    try:
        _write_header(making, header)
        making.rename(directories.disk / str(number))
    except BaseException as error:
        os.close(lock)
        shutil.rmtree(making, ignore_errors=True)
        if isinstance(error, OSError) and (directories.disk / str(number)).exists():
            return None
        raise
    generation = Generation(directories, number, lock, header)
    try:
        if directories.memory != directories.disk:
            # Left from a time with another disk directory; no process but this holder would use it.
            shutil.rmtree(directories.memory if number == 1 else generation.memory, ignore_errors=True)
        generation.tie_memory()
    except BaseException:
        generation.close()
        raise
    return generation


def _delete_lower(directories: ShardDirectories, number: int) -> None:
    """Deletes lower generations, and half-made ones, that no process holds."""
    for name in os.listdir(directories.disk):  # noqa: PTH208  # names suffice
        plain = name.lstrip(".").split("-")[0]
        if not plain.isdecimal() or (int(plain) >= number and not name.startswith(".")):
            continue
        lock = try_lock(directories.disk / name)
        if lock is not None:
            if name.isdecimal():
                shutil.rmtree(directories.memory / name, ignore_errors=True)
            shutil.rmtree(directories.disk / name, ignore_errors=True)
            os.close(lock)
        elif not name.isdecimal():
            with contextlib.suppress(OSError):  # locked, or gone; else its maker was killed before it had a lock
                (directories.disk / name).rmdir()


def _nonce_file(memory: Path, header: GenerationHeader) -> Path:
    return memory / f"{header.nonce.hex()}.nonce"


def _delete_tables(directory: Path) -> None:
    for path in (*directory.glob("t*"), *directory.glob("*.nonce")):
        path.unlink(missing_ok=True)


def _write_header(directory: Path, header: GenerationHeader) -> None:
    body = encode(header)
    covered = _HEAD.pack(_MAGIC, _VERSION, len(body)) + body
    data = covered + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(covered))
    fd = os.open(directory / "header", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # One write of one size: a process that is killed leaves the old bytes or the new.
        os.pwrite(fd, data.ljust(_HEADER_BYTES, b"\0"), 0)
    finally:
        os.close(fd)


def _read_header(directory: Path) -> GenerationHeader | None:
    """None: absent, damaged, or of another version."""
    try:
        data = (directory / "header").read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, version, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if magic != _MAGIC or version != _VERSION or len(data) < end + _CHECKSUM.size:
        return None
    if _CHECKSUM.unpack_from(data, end)[0] != xxhash.xxh3_64_intdigest(data[:end]):
        return None
    try:
        return decode(GenerationHeader, data[_HEAD.size : end])
    except ValueError:
        return None
