"""A table of the judged files: it distinguishes new files of the source from judged ones.

Layout of `folded/<through window, 12 digits>-<epoch, 6>-<8 hex>.judged` (framed, magic `BSJUDGED`, version 1). Integers
are little endian:

    0  magic     8 bytes
    8  version   u16
   10  through   u64          the last window whose files stand here
   18  count     u64          n, number of files
   26  folder    u32, bytes   length and UTF-8 of the folder of the source, for files that were moved with it
    …  hi        n x u64      digests of the paths, ascending by hi, then lo
    …  lo        n x u64
    …  modified  n x i64      modification time, ms, when it was judged
    …  size      n x i64      bytes, when it was judged
    …  missing   n x i64      wall clock, µs, of the first fold that did not find the file in the source; 0: it is there
   -8  checksum  u64          xxh3_64 of all bytes before it

40 bytes a file. A path stands once. It is placed durably before the record that names it (`SourcesFoldRecord`); one
that no record names belongs to a fold cut short. A damaged file is a CorruptionError.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from bucket_store.log.records import JudgedRef
from bucket_store.log.sources_file import FOLDED_DIRECTORY, read_named, stated_checksum
from bucket_store.places.place import Place

MAGIC = b"BSJUDGED"
VERSION = 1

_HEAD = struct.Struct("<QQI")
_COLUMNS = 5
_WORD = 8

Digest = tuple[int, int]
"""The digest of a path: hi and lo, 64 bits each."""


@dataclass(frozen=True, slots=True)
class JudgedFiles:
    """Columns of equal length, rows ascending by digest; never changed.

    `folder` is the folder of the source at that time.
    """

    folder: str
    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    modified_ms: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    missing_since_us: NDArray[np.int64]

    @classmethod
    def empty(cls, folder: str) -> JudgedFiles:
        """No file."""
        words, numbers = np.empty(0, np.uint64), np.empty(0, np.int64)
        return cls(folder, words, words, numbers, numbers, numbers)

    def __len__(self) -> int:
        return len(self.hi)

    def find(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The row of each digest, -1 where there is none."""
        row = np.searchsorted(self.hi, hi)
        found = np.full(len(hi), -1, np.int64)
        open_ = np.flatnonzero(row < len(self.hi))
        # More than one step only where the first words of different paths are equal.
        while open_.size:
            open_ = open_[self.hi[row[open_]] == hi[open_]]
            is_same = self.lo[row[open_]] == lo[open_]
            found[open_[is_same]] = row[open_[is_same]]
            open_ = open_[~is_same]
            row[open_] += 1
            open_ = open_[row[open_] < len(self.hi)]
        return found

    def joined(self, later: Mapping[Digest, tuple[int, int]], folder: str) -> JudgedFiles:
        """With files judged later: modification time and size by digest. The later file of a path counts."""
        digests = np.array([*later], np.uint64).reshape(-1, 2)
        values = np.array([*later.values()], np.int64).reshape(-1, 2)
        hi = np.concatenate((digests[:, 0], self.hi))
        lo = np.concatenate((digests[:, 1], self.lo))
        order = np.lexsort((lo, hi))  # stable: of equal digests the later file's comes first
        hi, lo = hi[order], lo[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
        kept = order[is_first]
        return JudgedFiles(
            folder,
            hi[is_first],
            lo[is_first],
            np.concatenate((values[:, 0], self.modified_ms))[kept],
            np.concatenate((values[:, 1], self.size_bytes))[kept],
            np.concatenate((np.zeros(len(later), np.int64), self.missing_since_us))[kept],
        )

    def seen(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64], *, now_us: int, forget_after_us: int) -> JudgedFiles:
        """After a listing of the source with these digests: files missing for `forget_after_us` are forgotten."""
        rows = self.find(hi, lo)
        is_there = np.zeros(len(self), bool)
        is_there[rows[rows >= 0]] = True
        # A clock that was once ahead must not keep a file for ever.
        since = np.where(self.missing_since_us == 0, now_us, np.minimum(self.missing_since_us, now_us))
        missing = np.where(is_there, 0, since)
        stays = is_there | (now_us - missing < forget_after_us)
        return JudgedFiles(
            self.folder,
            self.hi[stays],
            self.lo[stays],
            self.modified_ms[stays],
            self.size_bytes[stays],
            missing[stays],
        )


def encode_judged(through_window: int, files: JudgedFiles) -> bytes:
    """The bytes of the table."""
    folder = files.folder.encode("utf-8", "surrogateescape")
    columns = (files.hi, files.lo, files.modified_ms, files.size_bytes, files.missing_since_us)
    packed = b"".join(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes() for column in columns)
    return frame(MAGIC, VERSION, _HEAD.pack(through_window, len(files), len(folder)) + folder + packed)


def judged_ref(name: str, through_window: int, files: JudgedFiles, data: bytes) -> JudgedRef:
    """A record's reference to a table, encoded as `data`."""
    return JudgedRef(name, through_window, len(files), stated_checksum(data), len(data))


def decode_judged(data: bytes, *, file: str) -> tuple[int, JudgedFiles]:
    """The last window whose files the table holds, and the table.

    Raises:
        CorruptionError: not what was written.
        UnknownFormatError: of a later release.
    """
    body = unframe(data, magic=MAGIC, version=VERSION, file=file)
    try:
        through, count, folder_bytes = _HEAD.unpack_from(body)
        start = _HEAD.size + folder_bytes
        if len(body) != start + _COLUMNS * _WORD * count:
            raise ValueError(f"{len(body)} bytes for {count} files")
        folder = body[_HEAD.size : start].decode("utf-8", "surrogateescape")
        words = np.frombuffer(body, "<u8", 2 * count, start).astype(np.uint64)
        numbers = np.frombuffer(body, "<i8", 3 * count, start + 2 * _WORD * count).astype(np.int64)
        hi, lo = words[:count], words[count:]
        if not np.all((hi[:-1] < hi[1:]) | ((hi[:-1] == hi[1:]) & (lo[:-1] < lo[1:]))):
            raise ValueError("digests that do not ascend")
    except (ValueError, struct.error) as exc:
        raise CorruptionError(
            "table of judged files", file=file, offset=BODY_OFFSET, expected="five columns", found=str(exc)
        ) from exc
    return through, JudgedFiles(folder, hi, lo, numbers[:count], numbers[count : 2 * count], numbers[2 * count :])


def read_judged(root: Place, ref: JudgedRef) -> JudgedFiles:
    """The table that a record names.

    Raises:
        CorruptionError: it is missing, damaged, or another one.
        UnknownFormatError: of a later release.
    """
    path = root / FOLDED_DIRECTORY / ref.name
    through, files = decode_judged(read_named(path, ref.length, ref.checksum), file=str(path))
    if (through, len(files)) != (ref.through_window, ref.count):
        raise CorruptionError(
            "table of judged files",
            file=str(path),
            offset=BODY_OFFSET,
            expected=f"{ref.count} files through window {ref.through_window}",
            found=f"{len(files)} through window {through}",
        )
    return files
