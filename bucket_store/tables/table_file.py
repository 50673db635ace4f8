"""One bucket's resident table: a mapped file, made whole before it gets its name.

Layout, version 1, integers in the machine's order (a table never leaves the machine):

      0  magic       8 bytes  "BSTABLE\\n"
      8  version     u32      1
     12  columns     u32      bit 0 expiry, bit 1 origin and window
     16  nonce       16 bytes of the generation the file belongs to
     32  bucket      i64
     40  capacity    u64      homes
     48  slots       u64      capacity and slack
     56  checksum    u64      xxh3_64 of the 56 bytes before
     64  keys        u64      how many; the only field that changes, sound unless the generation is dirty
   4096  digests     slots x (hi u64, lo u64), see `kernels`
         expiry      slots x i64 in order of the expiry key        if bit 0
         origin      slots x i64, then window slots x u32          if bit 1

The contents carry no checksum: they are a cache of the pieces, dropped after any doubt (see `generation`). A header
that does not fit makes the file count as absent.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
import struct
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from bucket_store.pieces.piece import BucketEntries
from bucket_store.tables.kernels import MAX_CAPACITY, apply_sorted, copy_live, count_live, find_sorted, ordered_expiry
from bucket_store.tables.kernels import float_expiry as as_floats
from bucket_store.tables.matches import Matches, TableLayout, no_matches

_MAGIC = b"BSTABLE\n"
_VERSION = 1
_FIXED = struct.Struct("=8sII16sqQQ")
_CHECKSUM = struct.Struct("=Q")
_KEYS_AT = 64
_DATA_AT = 4096

LEAST_LOAD = 0.62
GREATEST_LOAD = 0.8
LIKELY_LOAD = 0.72
_LEAST_CAPACITY = 1024
LEAST_SLACK = 512


class TableFile:
    """A mapped table. Not thread-safe; a writer holds the generation's lock and has marked it dirty."""

    def __init__(
        self, path: Path, layout: TableLayout, bucket: int, *, capacity: int, slots: int, fd: int, size_bytes: int
    ) -> None:
        """Maps an open file; use `create_table` or `open_table`. The descriptor stays the caller's."""
        status = os.fstat(fd)
        mapped = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.path = path
        self.layout = layout
        self.bucket = bucket
        self.capacity = capacity
        self.identity = (status.st_dev, status.st_ino)
        self._keys = np.frombuffer(mapped, np.uint64, 1, _KEYS_AT)
        at = _DATA_AT
        self.slots = np.frombuffer(mapped, np.uint64, 2 * slots, at).reshape(slots, 2)
        at += 16 * slots
        with_expiry, with_origin = slots * layout.has_expiry, slots * layout.has_origin
        self.expiry = np.frombuffer(mapped, np.int64, with_expiry, at if with_expiry else 0)
        at += 8 * with_expiry
        self.origin = np.frombuffer(mapped, np.int64, with_origin, at if with_origin else 0)
        at += 8 * with_origin
        self.window = np.frombuffer(mapped, np.uint32, with_origin, at if with_origin else 0)

    @property
    def keys(self) -> int:
        """Number of keys in the table."""
        return int(self._keys[0])

    @property
    def slack(self) -> int:
        return len(self.slots) - self.capacity

    def has_room(self, more: int) -> bool:
        """Whether that many new keys keep the load in bounds."""
        return self.keys + more <= GREATEST_LOAD * self.capacity

    def live_keys(self, expiry_point: int | None) -> int:
        """Number of keys that a copy would keep."""
        if expiry_point is None or not self.layout.has_expiry:
            return self.keys
        return count_live(self.slots, self.expiry, expiry_point)

    def apply(self, entries: BucketEntries, only_window: int, start: int = 0) -> int:
        """Enters rows [start, n) of sorted entries; gives the first row without room, n when all have entered.

        `only_window` is the window of entries without a window column.
        """
        entered, added = apply_sorted(
            self.slots,
            self.expiry,
            self.origin,
            self.window,
            capacity=self.capacity,
            digests=entries.digests,
            new_expiry=_column(None if entries.expiry is None else ordered_expiry(entries.expiry)),
            new_origin=_column(entries.origin),
            new_window=np.empty(0, np.uint32) if entries.window is None else entries.window,
            only_window=only_window,
            start=start,
        )
        self._keys[0] += added
        return entered

    def copy_into(self, other: TableFile, expiry_point: int | None) -> bool:
        """Copies the live keys into an empty table; False when its slack is too short: then that table is worthless."""
        copied = copy_live(
            self.slots,
            self.expiry,
            self.origin,
            self.window,
            expiry_point=expiry_point,
            new_slots=other.slots,
            new_expiry=other.expiry,
            new_origin=other.origin,
            new_window=other.window,
            capacity=other.capacity,
        )
        other._keys[0] = max(copied, 0)
        return copied >= 0

    def find(self, digests: NDArray[np.uint64], expiry_point: int | None) -> Matches:
        """The matches of ascending digests; entries at or below `expiry_point` are not found."""
        matches = no_matches(len(digests), self.layout)
        rows = find_sorted(self.slots, self.capacity, digests)
        found = np.flatnonzero(rows >= 0)
        # Each row read of a column is a cache miss: only found rows are read.
        rows = rows[found]
        if matches.expiry is not None:
            expiry = self.expiry[rows]
            if expiry_point is not None:
                live = expiry > expiry_point
                found, rows, expiry = found[live], rows[live], expiry[live]
            matches.expiry[found] = as_floats(expiry) if self.layout.float_expiry else expiry
        matches.found[found] = True
        if matches.origin is not None and matches.window is not None:
            matches.origin[found] = self.origin[rows]
            matches.window[found] = self.window[rows]
        return matches


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


def likely_capacity(keys: int) -> int:
    """Homes for a table that probably reaches this many keys, give or take a tenth."""
    return min(max(_LEAST_CAPACITY, math.ceil(keys / LIKELY_LOAD)), MAX_CAPACITY)


def file_bytes(layout: TableLayout, slots: int) -> int:
    """Size of the file of a table with this many slots."""
    return _DATA_AT + slots * (16 + 8 * layout.has_expiry + 12 * layout.has_origin)


def create_table(
    path: Path, layout: TableLayout, nonce: bytes, bucket: int, *, capacity: int, slack: int = LEAST_SLACK
) -> TableFile:
    """An empty table in a new file, every byte of it allocated: a mapped page without disk behind it is a SIGBUS.

    Raises:
        OSError: no room, among others; the file is removed again.
    """
    slots = capacity + slack
    size = file_bytes(layout, slots)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        fixed = _FIXED.pack(_MAGIC, _VERSION, _column_bits(layout), nonce, bucket, capacity, slots)
        os.pwrite(fd, fixed + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fixed)), 0)
        return TableFile(path, layout, bucket, capacity=capacity, slots=slots, fd=fd, size_bytes=size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def open_table(path: Path, layout: TableLayout, nonce: bytes, bucket: int) -> TableFile | None:
    """The table in a file; None for no table, or one of another generation, layout or bucket."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        fixed = os.pread(fd, _FIXED.size + _CHECKSUM.size, 0)
        if len(fixed) < _FIXED.size + _CHECKSUM.size:
            return None
        (checksum,) = _CHECKSUM.unpack_from(fixed, _FIXED.size)
        magic, version, columns, of_nonce, of_bucket, capacity, slots = _FIXED.unpack_from(fixed)
        wanted = (_MAGIC, _VERSION, _column_bits(layout), nonce, bucket, file_bytes(layout, slots))
        if (magic, version, columns, of_nonce, of_bucket, size) != wanted:
            return None
        if checksum != xxhash.xxh3_64_intdigest(fixed[: _FIXED.size]):
            return None
        return TableFile(path, layout, bucket, capacity=capacity, slots=slots, fd=fd, size_bytes=size)
    finally:
        os.close(fd)


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
    return int(layout.has_expiry) | int(layout.has_origin) << 1
