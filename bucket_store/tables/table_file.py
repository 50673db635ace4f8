"""One bucket's resident table: a mapped file, made whole before it gets its name.

A large table is cut by the first bits of the digest into slices, each of which grows by itself, when it is full: so no
window pays for the growth of more than a few. Digests spread evenly, so slices of one size would all be full at once:
each has sizes of its own (`grown_capacity`), so that they take turns, also after a window in which all of them grew.

Layout, version 2, integers in the machine's order (a table never leaves the machine):

      0  magic       8 bytes  "BSTABLE\n"
      8  version     u32      2
     12  columns     u32      bit 0 expiry, bit 1 origin and window, bit 2 fingerprint
     16  nonce       16 bytes of the generation the file belongs to
     32  bucket      i64
     40  slices      u64      1 or 64: how many, by the first bits of the digest
     48  checksum    u64      xxh3_64 of the 48 bytes before
     64  directory   slices x (begin, capacity (homes), slots (capacity and slack), keys), u64
   4096  slices, each at a multiple of 4096:
         digests     slots x (hi u64, lo u64), see `kernels`
         expiry      slots x i64 in order of the expiry key        if bit 0
         fingerprint slots x u64, 0 for an unknown one              if bit 2
         origin      slots x i64, then window slots x u32          if bit 1

The directory changes while the generation is dirty: keys with every apply, all of a slice when it grows. A slice that
has grown leaves a hole. The file is longer than its slices, so that they can grow under the mappings that there are.
The contents carry no checksum: they are a cache of the pieces, dropped after any doubt (see `generation`). A header
that does not fit makes the file count as absent.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from bucket_store.pieces.piece import BucketEntries
from bucket_store.tables.kernels import (
    MAX_CAPACITY,
    WORD,
    apply_sorted,
    copy_live,
    count_live,
    find_sorted,
    ordered_expiry,
)
from bucket_store.tables.kernels import float_expiry as as_floats
from bucket_store.tables.matches import Matches, TableLayout, no_matches

_MAGIC = b"BSTABLE\n"
_VERSION = 2
_FIXED = struct.Struct("=8sII16sqQ")
_CHECKSUM = struct.Struct("=Q")
_DIRECTORY_AT = 64
_BEGIN, _CAPACITY, _SLOTS, _KEYS = range(4)
_PAGE = 4096
_SLICES = 64
_ROOM_TO_GROW = 3
"""How often the bytes of its slices a file with slices is long, holes included."""

LEAST_LOAD = 0.62
GREATEST_LOAD = 0.8
LIKELY_LOAD = 0.72
_LEAST_CAPACITY = 1024
_SLICED_FROM = 1 << 21
"""Homes of a table that begins with slices: below, it grows as a whole in a few tens of milliseconds."""
LEAST_SLACK = 512

_HOLE = 0x03
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE."""


class Slice(NamedTuple):
    """The columns of a slice, and its homes."""

    slots: NDArray[np.uint64]
    expiry: NDArray[np.int64]
    origin: NDArray[np.int64]
    window: NDArray[np.uint32]
    fingerprint: NDArray[np.uint64]
    capacity: int


class MappedTable:
    """A mapped table. Not thread-safe; a writer holds the generation's lock and has marked it dirty.

    Slices are named by their number. A process that has it mapped sees what another one changes.
    """

    def __init__(self, path: Path, layout: TableLayout, bucket: int, *, slices: int, fd: int) -> None:
        """Maps an open file; use `create_table` or `open_table`. The descriptor stays the caller's."""
        self.path = path
        self.layout = layout
        self.bucket = bucket
        self.slices = slices
        self._shared = slices.bit_length() - 1
        self._map(fd)

    def _map(self, fd: int) -> None:
        status = os.fstat(fd)
        self.identity = (status.st_dev, status.st_ino)
        self.size_bytes = status.st_size
        self._mapped = mmap.mmap(fd, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        directory = np.frombuffer(self._mapped, np.uint64, 4 * self.slices, _DIRECTORY_AT)
        self._directory = directory.reshape(self.slices, 4)

    @property
    def keys(self) -> int:
        """Number of keys in the table."""
        return int(self._directory[:, _KEYS].sum())

    @property
    def capacity(self) -> int:
        """Homes of all slices."""
        return int(self._directory[:, _CAPACITY].sum())

    def slack(self, number: int) -> int:
        """Slots of a slice behind its last home."""
        return int(self._directory[number, _SLOTS] - self._directory[number, _CAPACITY])

    def has_room(self, number: int, more: int) -> bool:
        """Whether that many new keys keep the load of a slice in bounds."""
        return int(self._directory[number, _KEYS]) + more <= GREATEST_LOAD * int(self._directory[number, _CAPACITY])

    def live_keys(self, expiry_point: int | None, number: int | None = None) -> int:
        """Number of keys that a copy of a slice, or of all, would keep."""
        if number is None:
            return sum(self.live_keys(expiry_point, number) for number in range(self.slices))
        if expiry_point is None or not self.layout.has_expiry:
            return int(self._directory[number, _KEYS])
        columns = self.columns(number)
        return count_live(columns.slots, columns.expiry, expiry_point)

    def rows_of(self, digests: NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
        """(slice, first row, row behind its last) of ascending digests, for each slice that has any."""
        if self.slices == 1:
            bounds = [0, len(digests)]
        else:
            firsts = np.arange(1, self.slices, dtype=np.uint64) << np.uint64(64 - self._shared)
            bounds = [0, *np.searchsorted(digests[:, 0], firsts).tolist(), len(digests)]
        for number, (first, end) in enumerate(pairwise(bounds)):
            if first < end:
                yield number, first, end

    def apply(self, number: int, entries: BucketEntries, only_window: int, first: int, end: int) -> int:
        """Enters rows [first, end) of sorted entries, all of a slice; gives the first row without room, `end` when none
        is.

        `only_window` is the window of entries without a window column.
        """
        columns = self.columns(number)
        rows, since = entries.chosen(slice(first, end)), self.layout.fingerprints_since
        nothing = np.empty(0, np.uint64)
        entered, added = apply_sorted(
            columns.slots,
            columns.expiry,
            columns.origin,
            columns.window,
            columns.fingerprint,
            capacity=columns.capacity,
            digests=rows.digests,
            new_expiry=_column(None if rows.expiry is None else ordered_expiry(rows.expiry)),
            new_origin=_column(rows.origin),
            new_window=np.empty(0, np.uint32) if rows.window is None else rows.window,
            new_fingerprint=nothing if since is None else rows.fingerprints_since(since, only_window),
            only_window=only_window,
            start=0,
            shared=self._shared,
        )
        self._directory[number, _KEYS] += np.uint64(added)
        return first + entered

    def copy_into(self, other: MappedTable, expiry_point: int | None) -> bool:
        """Copies the live keys into an empty table; False when its slack is too short: then that table is worthless."""
        for number in range(other.slices):
            first, last = _range_of(number, other._shared)
            to, free, copied = other.columns(number), 0, 0
            for source in range(self.slices):
                least, greatest = _range_of(source, self._shared)
                if least <= last and first <= greatest:
                    more, free = self._copy(source, to, other._shared, expiry_point, (first, last), free)
                    if more < 0:
                        return False
                    copied += more
            other._directory[number, _KEYS] = copied
        return True

    def _copy(
        self, source: int, to: Slice, shared: int, expiry_point: int | None, within: tuple[int, int], free: int = 0
    ) -> tuple[int, int]:
        """Copies the live keys of a slice `within` a range of hi; see `copy_live`."""
        columns = self.columns(source)
        first, last = within
        begin = max(first, _range_of(source, self._shared)[0])
        return copy_live(
            columns.slots,
            columns.expiry,
            columns.origin,
            columns.window,
            columns.fingerprint,
            expiry_point=expiry_point,
            new_slots=to.slots,
            new_expiry=to.expiry,
            new_origin=to.origin,
            new_window=to.window,
            new_fingerprint=to.fingerprint,
            capacity=to.capacity,
            shared=shared,
            begin=(begin << self._shared & WORD) * columns.capacity >> 64,
            first_hi=first,
            last_hi=last,
            free=free,
        )

    def reserve(self, slots: int) -> int:
        """Allocates room for a slice of that many slots, all empty; gives where it begins, for `move`.

        Raises:
            OSError: no room; nothing changes.
        """
        size = slice_bytes(self.layout, slots)
        begin = self._gap(size)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if begin + size > self.size_bytes:
                os.ftruncate(fd, begin + _ROOM_TO_GROW * size)
                self._map(fd)
            os.posix_fallocate(fd, begin, size)
        finally:
            os.close(fd)
        return begin

    def move(self, number: int, begin: int, capacity: int, slack: int, expiry_point: int | None) -> bool:
        """Moves the live keys of a slice to reserved room; False when the slack is too short, and nothing changes."""
        slots = capacity + slack
        copied, _ = self._copy(number, self._view(begin, capacity, slots), self._shared, expiry_point, (0, WORD))
        if copied < 0:
            self._free(begin, slots)
            return False
        before = self._directory[number].tolist()
        self._directory[number] = begin, capacity, slots, copied
        self._free(before[_BEGIN], before[_SLOTS])
        return True

    def _free(self, begin: int, slots: int) -> None:
        """Gives the room of a slice back, empty: the next slice there finds no keys of this one.

        Where the file system makes no holes, the room stays taken until the table is rebuilt.
        """
        size = slice_bytes(self.layout, slots)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None).fallocate(fd, _HOLE, ctypes.c_int64(begin), ctypes.c_int64(size)):
                np.frombuffer(self._mapped, np.uint8, size, begin)[:] = 0
        finally:
            os.close(fd)

    def _gap(self, size: int) -> int:
        """Where so many bytes are free between slices, or behind the last."""
        at = _PAGE
        for begin, _, slots, _ in sorted(self._directory.tolist()):
            if begin - at >= size:
                break
            at = begin + slice_bytes(self.layout, slots)
        return at

    def find(self, digests: NDArray[np.uint64], expiry_point: int | None) -> Matches:
        """The matches of ascending digests; entries at or below `expiry_point` are not found."""
        matches = no_matches(len(digests), self.layout)
        for number, first, end in self.rows_of(digests):
            self._find(self.columns(number), digests, first, end, expiry_point, matches)
        return matches

    def _find(
        self,
        columns: Slice,
        digests: NDArray[np.uint64],
        first: int,
        end: int,
        expiry_point: int | None,
        matches: Matches,
    ) -> None:
        rows = find_sorted(columns.slots, columns.capacity, digests[first:end], self._shared)
        found = np.flatnonzero(rows >= 0)
        # Each row read of a column is a cache miss: only found rows are read.
        rows = rows[found]
        found += first
        if matches.expiry is not None:
            expiry = columns.expiry[rows]
            if expiry_point is not None:
                live = expiry > expiry_point
                found, rows, expiry = found[live], rows[live], expiry[live]
            matches.expiry[found] = as_floats(expiry) if self.layout.float_expiry else expiry
        matches.found[found] = True
        if matches.origin is not None and matches.window is not None:
            matches.origin[found] = columns.origin[rows]
            matches.window[found] = columns.window[rows]
        if matches.fingerprint is not None:
            matches.fingerprint[found] = columns.fingerprint[rows]

    def columns(self, number: int) -> Slice:
        """The columns of a slice as they are now; the next `move` takes them elsewhere."""
        begin, capacity, slots, _ = self._directory[number].tolist()
        return self._view(begin, capacity, slots)

    def _view(self, begin: int, capacity: int, slots: int) -> Slice:
        with_expiry, with_origin = slots * self.layout.has_expiry, slots * self.layout.has_origin
        with_fingerprint = slots * self.layout.has_fingerprint
        fingerprint = begin + 16 * slots + 8 * with_expiry
        origin = fingerprint + 8 * with_fingerprint
        return Slice(
            np.frombuffer(self._mapped, np.uint64, 2 * slots, begin).reshape(slots, 2),
            np.frombuffer(self._mapped, np.int64, with_expiry, begin + 16 * slots if with_expiry else 0),
            np.frombuffer(self._mapped, np.int64, with_origin, origin if with_origin else 0),
            np.frombuffer(self._mapped, np.uint32, with_origin, origin + 8 * slots if with_origin else 0),
            np.frombuffer(self._mapped, np.uint64, with_fingerprint, fingerprint if with_fingerprint else 0),
            capacity,
        )


def _range_of(number: int, shared: int) -> tuple[int, int]:
    """The least and the greatest hi of a slice."""
    width = 64 - shared
    return number << width, (number + 1 << width) - 1


def _column(column: NDArray[np.int64] | None) -> NDArray[np.int64]:
    return np.empty(0, np.int64) if column is None else column


def capacity_for(keys: int) -> int:
    """Homes for a table that begins with this many keys and grows further.

    Raises ValueError beyond 2^32 homes, 2.6 thousand million keys: use more shards.
    """
    capacity = max(_LEAST_CAPACITY, math.ceil(keys / LEAST_LOAD))
    if capacity > MAX_CAPACITY:
        raise ValueError(f"a table of {keys} keys is too large; the store needs more shards")
    return capacity


def grown_capacity(number: int, keys: int) -> int:
    """Homes for a slice that has grown to this many keys.

    From one size of a slice to its next is the step from `GREATEST_LOAD` to `LEAST_LOAD`. The sizes of two slices
    differ by a part of that step, so that they are full at different times, also after a window in which both grew.

    Raises ValueError beyond 2^32 homes.
    """
    step, turn = GREATEST_LOAD / LEAST_LOAD, _turn(number)
    size = math.ceil(math.log(max(keys, _LEAST_CAPACITY) / LIKELY_LOAD, step) - turn)
    capacity = math.ceil(math.pow(step, size + turn))
    if capacity > MAX_CAPACITY:
        raise ValueError(f"a slice of {keys} keys is too large; the store needs more shards")
    return capacity


def _turn(number: int) -> float:
    """The part of a step by which the sizes of a slice differ from those of others; neighbours are far apart."""
    return number * 29 % _SLICES / _SLICES


def likely_capacity(keys: int) -> int:
    """Homes for a table that probably reaches this many keys, give or take a tenth."""
    load = LIKELY_LOAD if keys < LIKELY_LOAD * _SLICED_FROM else LEAST_LOAD
    return min(max(_LEAST_CAPACITY, math.ceil(keys / load)), MAX_CAPACITY)


def slice_bytes(layout: TableLayout, slots: int) -> int:
    """Bytes of a slice with this many slots, whole pages."""
    slot = 16 + 8 * layout.has_expiry + 12 * layout.has_origin + 8 * layout.has_fingerprint
    return -(-slots * slot // _PAGE) * _PAGE


def file_bytes(layout: TableLayout, capacity: int, slack: int = LEAST_SLACK, *, even: bool = False) -> int:
    """What a table made with these homes takes, without its holes."""
    return _PAGE + sum(slice_bytes(layout, homes + slack) for homes in _homes(capacity, even))


def _homes(capacity: int, even: bool) -> list[int]:
    """The homes of each slice of a new table, for so many keys as have `LEAST_LOAD` in them.

    Loads up to `GREATEST_LOAD`, so that slices grow at different times; `even`: none but the least.
    """
    if capacity < _SLICED_FROM:
        return [capacity]
    ratio, each = 1.0 if even else LEAST_LOAD / GREATEST_LOAD, capacity / _SLICES
    return [math.ceil(each * ratio ** _turn(number)) for number in range(_SLICES)]


def create_table(
    path: Path,
    layout: TableLayout,
    nonce: bytes,
    bucket: int,
    *,
    capacity: int,
    slack: int = LEAST_SLACK,
    even: bool = False,
) -> MappedTable:
    """An empty table in a new file, every byte of its slices allocated: a mapped page without disk behind it is a
    SIGBUS.

    Raises:
        OSError: no room, among others; the file is removed again.
    """
    homes = _homes(capacity, even)
    size = file_bytes(layout, capacity, slack, even=even)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        if len(homes) > 1:
            os.ftruncate(fd, _ROOM_TO_GROW * size)
        fixed = _FIXED.pack(_MAGIC, _VERSION, _column_bits(layout), nonce, bucket, len(homes))
        os.pwrite(fd, fixed + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fixed)), 0)
        table = MappedTable(path, layout, bucket, slices=len(homes), fd=fd)
        at = _PAGE
        for number, home in enumerate(homes):
            table._directory[number] = at, home, home + slack, 0
            at += slice_bytes(layout, home + slack)
        return table
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def open_table(path: Path, layout: TableLayout, nonce: bytes, bucket: int) -> MappedTable | None:
    """The table in a file; None for no table, or one of another generation, layout or bucket."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = _described(fd)
        if found is None or found.fixed[2:5] != (_column_bits(layout), nonce, bucket):
            return None
        return MappedTable(path, layout, bucket, slices=len(found.extents) - 1, fd=fd)
    finally:
        os.close(fd)


def held_bytes(status: os.stat_result) -> int:
    """The bytes that a table's file takes of its file system, without its holes."""
    return 512 * status.st_blocks


def copy_file(source: Path, target: Path) -> None:
    """Copies the file of a table, all that it holds allocated.

    Raises:
        OSError: no room, among others.
    """
    with source.open("rb") as read, target.open("xb") as written:
        found = _described(read.fileno())
        if found is None:
            raise OSError(errno.EINVAL, "no table", str(source))
        os.ftruncate(written.fileno(), os.fstat(read.fileno()).st_size)
        for begin, length in found.extents:
            os.posix_fallocate(written.fileno(), begin, length)
            os.lseek(written.fileno(), begin, os.SEEK_SET)
            at, end = begin, begin + length
            while at < end:
                at += os.sendfile(written.fileno(), read.fileno(), at, end - at)


class _Description(NamedTuple):
    """The fields of a header, and (begin, bytes) of all that the file holds: its first page, then its slices."""

    fixed: tuple[Any, ...]
    extents: list[tuple[int, int]]


def _described(fd: int) -> _Description | None:
    """What the first page of a file says; None of one that is no table, or not the whole of one."""
    head, size = os.pread(fd, _PAGE, 0), os.fstat(fd).st_size
    if len(head) < _PAGE or _CHECKSUM.unpack_from(head, _FIXED.size)[0] != xxhash.xxh3_64_intdigest(
        head[: _FIXED.size]
    ):
        return None
    fixed = _FIXED.unpack_from(head)
    magic, version, columns, *_, slices = fixed
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    since = 0 if columns & 4 else None
    layout = TableLayout(bool(columns & 1), False, bool(columns & 2), one_table=False, fingerprints_since=since)
    directory = np.frombuffer(head, np.uint64, 4 * slices, _DIRECTORY_AT).reshape(slices, 4).tolist()
    extents = [(0, _PAGE), *((begin, slice_bytes(layout, slots)) for begin, _, slots, _ in directory)]
    ends = [begin + length for begin, length in extents]
    # A full table of one slice is rebuilt, so its file ends with it.
    is_whole = max(ends) <= size if slices > 1 else ends[-1] == size
    return _Description(fixed, extents) if is_whole else None


def table_name(bucket: int) -> str:
    """File name of a bucket's table."""
    return f"t{bucket}.table"


def bucket_of(name: str) -> int | None:
    """Bucket key of a table's file name; None for any other name."""
    return int(name[1:-6]) if name.startswith("t") and name.endswith(".table") else None


def building_name(bucket: int) -> str:
    """A new file name for an unfinished table. Never the same twice."""
    return f"t{bucket}.{secrets.token_hex(4)}.building"


def _column_bits(layout: TableLayout) -> int:
    return int(layout.has_expiry) | int(layout.has_origin) << 1 | int(layout.has_fingerprint) << 2
