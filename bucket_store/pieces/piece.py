"""PURE. One piece: a shard's new keys of one window (or of several merged windows), as immutable bytes.

Layout, version 1. Integers are little endian; checksums are xxh3_64.

    fixed part, 80 bytes
      0  magic        8 bytes  "BSPIECE\\n"
      8  version      u16      1; any other: UnknownFormatError
     10  columns      u16      bit 0 expiry, 1 expiry is float64, 2 origin, 3 window, 4 fingerprint
     12  buckets      u32      number of directory rows, at least 1
     16  store id     16 bytes
     32  shard        u32
     36  epoch        u32
     40  attempt      u32
     44  zero         u32
     48  first window u64
     56  last window  u64
     64  entries      u64      sum of the counts below
     72  length       u64      of the whole piece, header and blocks
    bucket directory ("bucket positions"), 64 bytes a row, bucket keys ascending
      0  bucket key   i64
      8  start        u64      number of entries in the buckets before
     16  count        u64      at least 1
     24  offset       u64      of the block, from the beginning of the piece
     32  block length u64
     40  checksum     u64      of the block, padding and all
     48  min expiry   i64 or f64, zero without the column
     56  max expiry   the same
    header checksum   u64      of everything before it; it covers the block checksums, so it names the whole piece
    blocks, one a bucket, in the order of the directory, touching one another
         digests      count x (hi u64, lo u64), strictly ascending by (hi, lo) unsigned
         expiry       count x i64 or f64        if bit 0
         origin       count x i64               if bit 2
         window       count x u32, zero padded to 8 bytes, if bit 3; otherwise every entry is of the first window
         fingerprint  count x u64               if bit 4

Every byte is covered by the header's checksum or by a block's. A wrong magic, checksum or length is a CorruptionError
that names file and offset.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bucket_store.errors import CorruptionError, UnknownFormatError

MAGIC = b"BSPIECE\n"
VERSION = 1

_FIXED = struct.Struct("<8sHHI16sIIIIQQQQ")
_CHECKSUM = struct.Struct("<Q")
_DIRECTORY = np.dtype(
    [
        ("bucket", "<i8"),
        ("start", "<u8"),
        ("count", "<u8"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("checksum", "<u8"),
        ("min_expiry", "<i8"),
        ("max_expiry", "<i8"),
    ]
)
FIXED_BYTES = _FIXED.size

_EXPIRY, _FLOAT_EXPIRY, _ORIGIN, _WINDOW, _FINGERPRINT = 1, 2, 4, 8, 16
_ALL_COLUMNS = _EXPIRY | _FLOAT_EXPIRY | _ORIGIN | _WINDOW | _FINGERPRINT

ExpiryKeys = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PieceRef:
    """A commit record's reference to a piece, with everything known of it without reading it.

    `checksum` is the piece's header checksum. `max_expiry` is None when the piece carries no expiry column.
    """

    shard: int
    file: str
    name: str
    offset: int
    length: int
    checksum: int
    first_window: int
    last_window: int
    entries: int
    min_bucket: int
    max_bucket: int
    max_expiry: int | float | None


@dataclass(frozen=True, slots=True)
class Entries:
    """A shard's new keys, sorted by (bucket, hi, lo), no (bucket, hi, lo) twice; n entries in k buckets.

    `bucket_keys` int64[k] ascending, `bucket_starts` int64[k+1] with 0 first and n last, no bucket empty.
    `digests` uint64[n, 2]; (0, 0) never occurs. `window` is for merged pieces, and those with entries of earlier
    windows: without it all entries are of the piece's first window.
    """

    bucket_keys: NDArray[np.int64]
    bucket_starts: NDArray[np.int64]
    digests: NDArray[np.uint64]
    expiry: ExpiryKeys | None = None
    origin: NDArray[np.int64] | None = None
    window: NDArray[np.uint32] | None = None
    fingerprint: NDArray[np.uint64] | None = None

    def bucket(self, index: int) -> BucketEntries:
        """The entries of the bucket with this place among `bucket_keys`, as views."""
        rows = slice(int(self.bucket_starts[index]), int(self.bucket_starts[index + 1]))
        whole = BucketEntries(
            int(self.bucket_keys[index]), self.digests, self.expiry, self.origin, self.window, self.fingerprint
        )
        return whole.chosen(rows)


@dataclass(frozen=True, slots=True)
class BucketEntries:
    """The entries of one bucket of one piece: columns of equal length, digests strictly ascending. Read-only arrays."""

    bucket: int
    digests: NDArray[np.uint64]
    expiry: ExpiryKeys | None
    origin: NDArray[np.int64] | None
    window: NDArray[np.uint32] | None
    fingerprint: NDArray[np.uint64] | None

    def fingerprints_since(self, window: int, only_window: int) -> NDArray[np.uint64]:
        """The fingerprints of the entries from a window on, 0 for all others, and where there is no such column.

        `only_window` is the window of entries without a window column.
        """
        if self.fingerprint is None or (self.window is None and only_window < window):
            return np.zeros(len(self.digests), np.uint64)
        if self.window is None:
            return self.fingerprint
        return np.where(self.window >= window, self.fingerprint, np.uint64(0))

    def chosen(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> BucketEntries:
        """These rows: of a slice, a mask, or places."""
        return BucketEntries(
            bucket=self.bucket,
            digests=self.digests[rows],
            expiry=None if self.expiry is None else self.expiry[rows],
            origin=None if self.origin is None else self.origin[rows],
            window=None if self.window is None else self.window[rows],
            fingerprint=None if self.fingerprint is None else self.fingerprint[rows],
        )


@dataclass(frozen=True, slots=True)
class PieceHeader:
    """A piece's header with its bucket directory; the arrays have one row a bucket and are read-only."""

    columns: int
    store_id: bytes
    shard: int
    epoch: int
    attempt: int
    first_window: int
    last_window: int
    entries: int
    length: int
    checksum: int
    buckets: NDArray[np.int64]
    starts: NDArray[np.uint64]
    counts: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    checksums: NDArray[np.uint64]
    min_expiry: ExpiryKeys | None
    max_expiry: ExpiryKeys | None

    @property
    def header_length(self) -> int:
        """Bytes before the first block."""
        return _header_length(len(self.buckets))

    def index_of(self, bucket: int) -> int | None:
        """Directory row of a bucket key, None when the piece has no entry of it."""
        at = int(np.searchsorted(self.buckets, bucket))
        return at if at < len(self.buckets) and self.buckets[at] == bucket else None

    def block_range(self, index: int) -> tuple[int, int]:
        """(offset from the beginning of the piece, length) of a directory row's block."""
        return int(self.offsets[index]), int(self.lengths[index])

    def to_ref(self, *, file: str, name: str, offset: int) -> PieceRef:
        """The reference for a commit record to the piece at `offset` of `file`."""
        return PieceRef(
            shard=self.shard,
            file=file,
            name=name,
            offset=offset,
            length=self.length,
            checksum=self.checksum,
            first_window=self.first_window,
            last_window=self.last_window,
            entries=self.entries,
            min_bucket=int(self.buckets[0]),
            max_bucket=int(self.buckets[-1]),
            max_expiry=None if self.max_expiry is None else self.max_expiry.max().item(),
        )


def piece_name(*, window: int, epoch: int, attempt: int, shard: int) -> str:
    """A new name for a piece: window, epoch, attempt, shard and 8 random hex digits. Never the same twice."""
    return f"{window:012d}-{epoch:06d}-{attempt:03d}-{shard:04d}-{secrets.token_hex(4)}"


def window_of(name: str) -> int | None:
    """The first window of a piece, by its name; None for another name."""
    first = name.partition("-")[0]
    return int(first) if first.isdecimal() else None


def encode_piece(
    entries: Entries,
    *,
    store_id: bytes,
    shard: int,
    first_window: int,
    last_window: int,
    epoch: int,
    attempt: int,
) -> bytes:
    """The bytes of a piece. `store_id` is 16 bytes.

    Raises:
        ValueError: no entries, an empty bucket, a column of another length, digests out of order or (0, 0): a fault of
            the caller that must not become durable.
    """
    _check(entries)
    if len(store_id) != 16:
        raise ValueError(f"a store id has 16 bytes, not {len(store_id)}")
    if not 0 <= first_window <= last_window:
        raise ValueError(f"windows {first_window} to {last_window} are no range")
    directory = np.zeros(len(entries.bucket_keys), _DIRECTORY)
    starts = entries.bucket_starts
    directory["bucket"] = entries.bucket_keys
    directory["start"] = starts[:-1]
    directory["count"] = np.diff(starts)
    if entries.expiry is not None:
        directory["min_expiry"] = np.minimum.reduceat(entries.expiry, starts[:-1]).view(np.int64)
        directory["max_expiry"] = np.maximum.reduceat(entries.expiry, starts[:-1]).view(np.int64)
    parts: list[memoryview] = []
    at = _header_length(len(directory))
    for row in range(len(directory)):
        directory[row]["offset"] = at
        checksum = xxhash.xxh3_64()
        for part in _block_parts(entries, int(starts[row]), int(starts[row + 1])):
            checksum.update(part)
            parts.append(part)
            at += len(part)
        directory[row]["length"] = at - int(directory[row]["offset"])
        directory[row]["checksum"] = checksum.intdigest()
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        _columns(entries),
        len(directory),
        store_id,
        shard,
        epoch,
        attempt,
        0,
        first_window,
        last_window,
        len(entries.digests),
        at,
    )
    covered = fixed + directory.tobytes()
    return b"".join((covered, _CHECKSUM.pack(xxhash.xxh3_64_intdigest(covered)), *parts))


def header_length(data: bytes | memoryview, *, file: str, offset: int) -> int:
    """Bytes of the whole header, from its fixed part: the bytes to fetch before `decode_header`.

    The number is not yet covered by a checksum; a wrong one makes `decode_header` fail.
    Raises CorruptionError or UnknownFormatError as `decode_header` does.
    """
    if len(data) < FIXED_BYTES:
        raise CorruptionError("truncated piece header", file=file, offset=offset, expected=FIXED_BYTES, found=len(data))
    magic, version, _, buckets = struct.unpack_from("<8sHHI", data)
    if magic != MAGIC:
        raise CorruptionError("piece magic", file=file, offset=offset, expected=MAGIC, found=bytes(magic))
    if version != VERSION:
        raise UnknownFormatError(f"{file}: at byte {offset + 8}: piece version {version}, this release reads {VERSION}")
    return _header_length(buckets)


def decode_header(data: bytes | memoryview, *, file: str, offset: int) -> PieceHeader:
    """The header of the piece that begins with `data` (the whole piece or at least its header).

    `file` and `offset` say where the piece begins, for the errors.

    Raises:
        CorruptionError: wrong magic or checksum, too short, or a directory that contradicts itself.
        UnknownFormatError: another version.
    """
    length = header_length(data, file=file, offset=offset)
    if len(data) < length:
        raise CorruptionError("truncated piece directory", file=file, offset=offset, expected=length, found=len(data))
    covered = memoryview(data)[: length - _CHECKSUM.size]
    (expected,) = _CHECKSUM.unpack_from(data, length - _CHECKSUM.size)
    found = xxhash.xxh3_64_intdigest(covered)
    if found != expected:
        raise CorruptionError(
            "piece header checksum", file=file, offset=offset, expected=hex(expected), found=hex(found)
        )
    fields = _FIXED.unpack_from(data)
    columns, buckets = fields[2], fields[3]
    directory = np.frombuffer(data, _DIRECTORY, buckets, FIXED_BYTES)
    offsets, lengths = directory["offset"], directory["length"]
    _check_layout(fields, directory, header_bytes=length, file=file, offset=offset)
    has_expiry = bool(columns & _EXPIRY)
    return PieceHeader(
        columns=columns,
        store_id=fields[4],
        shard=fields[5],
        epoch=fields[6],
        attempt=fields[7],
        first_window=fields[9],
        last_window=fields[10],
        entries=fields[11],
        length=fields[12],
        checksum=expected,
        buckets=np.ascontiguousarray(directory["bucket"]),
        starts=directory["start"],
        counts=directory["count"],
        offsets=offsets,
        lengths=lengths,
        checksums=directory["checksum"],
        min_expiry=_expiry_column(directory["min_expiry"].tobytes(), columns, buckets, 0) if has_expiry else None,
        max_expiry=_expiry_column(directory["max_expiry"].tobytes(), columns, buckets, 0) if has_expiry else None,
    )


def _check_layout(
    fields: tuple[Any, ...], directory: NDArray[Any], *, header_bytes: int, file: str, offset: int
) -> None:
    """Checks the numbers of a header as `encode_piece` writes them, so that no reader allocates by wrong ones.

    Bounds come first: within them no u64 wraps around.
    """
    columns, first_window, last_window, entries, length = fields[2], fields[9], fields[10], fields[11], fields[12]
    buckets, starts, counts = directory["bucket"], directory["start"], directory["count"]
    floats_alone = columns & (_EXPIRY | _FLOAT_EXPIRY) == _FLOAT_EXPIRY
    wrong = None
    if columns & ~_ALL_COLUMNS or floats_alone or fields[8] != 0 or first_window > last_window:
        wrong = f"columns {columns:#b}, zero {fields[8]}, windows {first_window} to {last_window}"
    elif not len(directory) or not header_bytes <= length < 1 << 56 or not 0 < entries <= length >> 4:
        wrong = f"{entries} entries in {len(directory)} buckets and {length} bytes"
    elif (buckets[1:] <= buckets[:-1]).any():
        wrong = "bucket keys that do not ascend"
    elif (counts == 0).any() or (counts > entries).any() or (starts[1:] <= starts[:-1]).any():
        wrong = "counts and starts that do not fit"
    elif (np.append(starts, np.uint64(entries)) != _ends(counts)).any():
        wrong = "counts that do not split the entries"
    else:
        lengths = _block_lengths(columns, counts)
        if (directory["length"] != lengths).any():
            wrong = "a block of another length than its entries have"
        elif (np.append(directory["offset"], np.uint64(length)) != header_bytes + _ends(lengths)).any():
            wrong = "a gap"
    if wrong is not None:
        raise CorruptionError(
            "piece directory", file=file, offset=offset, expected="buckets that ascend, blocks that touch", found=wrong
        )


def _ends(sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """0, then the end of each of these sizes laid end to end."""
    return np.concatenate((np.zeros(1, np.uint64), np.cumsum(sizes, dtype=np.uint64)))


def decode_bucket(
    header: PieceHeader, index: int, block: bytes | memoryview, *, file: str, offset: int
) -> BucketEntries:
    """The entries of directory row `index`; the arrays are views of `block`.

    `offset` says where the piece (not the block) begins in `file`, for the errors.

    Raises:
        CorruptionError: the block is not of the length or checksum that the directory gives.
    """
    start, length = header.block_range(index)
    count = int(header.counts[index])
    at = offset + start
    if len(block) != length:
        raise CorruptionError("block length", file=file, offset=at, expected=length, found=len(block))
    found = xxhash.xxh3_64_intdigest(block)
    expected = int(header.checksums[index])
    if found != expected:
        raise CorruptionError("block checksum", file=file, offset=at, expected=hex(expected), found=hex(found))
    digests = np.frombuffer(block, np.uint64, 2 * count).reshape(count, 2)
    position = 16 * count
    expiry: ExpiryKeys | None = None
    origin = window = fingerprint = None
    if header.columns & _EXPIRY:
        expiry = _expiry_column(block, header.columns, count, position)
        position += 8 * count
    if header.columns & _ORIGIN:
        origin = np.frombuffer(block, np.int64, count, position)
        position += 8 * count
    if header.columns & _WINDOW:
        window = np.frombuffer(block, np.uint32, count, position)
        position += _padded(4 * count)
    if header.columns & _FINGERPRINT:
        fingerprint = np.frombuffer(block, np.uint64, count, position)
    return BucketEntries(int(header.buckets[index]), digests, expiry, origin, window, fingerprint)


def decode_piece(data: bytes | memoryview, *, file: str, offset: int) -> tuple[PieceHeader, Iterator[BucketEntries]]:
    """A whole piece: its header, then its buckets in order, each checked when it is taken.

    Raises CorruptionError when `data` has another length than the header gives, and what the parts raise.
    """
    header = decode_header(data, file=file, offset=offset)
    if len(data) != header.length:
        raise CorruptionError("piece length", file=file, offset=offset, expected=header.length, found=len(data))
    return header, _buckets(header, memoryview(data), file, offset)


def dump_piece(data: bytes | memoryview, *, file: str = "piece", offset: int = 0) -> str:
    """A piece as text, a line a field, bucket and entry: for people and for golden files. Checks everything."""
    header, buckets = decode_piece(data, file=file, offset=offset)
    lines = [
        f"piece version {VERSION} checksum {header.checksum:016x} length {header.length}",
        f"store {header.store_id.hex()} shard {header.shard} epoch {header.epoch} attempt {header.attempt}",
        f"windows {header.first_window}..{header.last_window} entries {header.entries} columns {header.columns:05b}",
    ]
    for bucket in buckets:
        lines.append(f"bucket {bucket.bucket} entries {len(bucket.digests)}")
        columns = {
            "expiry": bucket.expiry,
            "origin": bucket.origin,
            "window": bucket.window,
            "fingerprint": bucket.fingerprint,
        }
        for row, (hi, lo) in enumerate(bucket.digests.tolist()):
            rest = "".join(f" {name} {column[row]}" for name, column in columns.items() if column is not None)
            lines.append(f"  {hi:016x}{lo:016x}{rest}")
    return "\n".join(lines) + "\n"


def _buckets(header: PieceHeader, data: memoryview, file: str, offset: int) -> Iterator[BucketEntries]:
    for index in range(len(header.buckets)):
        start, length = header.block_range(index)
        yield decode_bucket(header, index, data[start : start + length], file=file, offset=offset)


def _expiry_column(data: bytes | memoryview, columns: int, count: int, position: int) -> ExpiryKeys:
    if columns & _FLOAT_EXPIRY:
        return np.frombuffer(data, np.float64, count, position)
    return np.frombuffer(data, np.int64, count, position)


def _header_length(buckets: int) -> int:
    return FIXED_BYTES + buckets * _DIRECTORY.itemsize + _CHECKSUM.size


def _padded(size: int) -> int:
    return (size + 7) & ~7


def _columns(entries: Entries) -> int:
    columns = 0
    if entries.expiry is not None:
        columns |= _EXPIRY | (_FLOAT_EXPIRY if entries.expiry.dtype == np.float64 else 0)
    if entries.origin is not None:
        columns |= _ORIGIN
    if entries.window is not None:
        columns |= _WINDOW
    if entries.fingerprint is not None:
        columns |= _FINGERPRINT
    return columns


def _block_lengths(columns: int, counts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = 2 + bool(columns & _EXPIRY) + bool(columns & _ORIGIN) + bool(columns & _FINGERPRINT)
    lengths: NDArray[np.uint64] = 8 * words * counts
    if columns & _WINDOW:
        lengths += (counts + counts % np.uint64(2)) * np.uint64(4)  # windows are padded to 8 bytes
    return lengths


def _block_parts(entries: Entries, start: int, end: int) -> Iterator[memoryview]:
    """The bytes of a block, column by column, without a copy: a piece is copied once."""
    for column in (entries.digests, entries.expiry, entries.origin, entries.window, entries.fingerprint):
        if column is None:
            continue
        part = np.ascontiguousarray(column[start:end]).view(np.uint8).reshape(-1)
        yield part.data
        if column is entries.window:
            yield memoryview(bytes(_padded(part.size) - part.size))


def _check(entries: Entries) -> None:
    keys, starts, digests = entries.bucket_keys, entries.bucket_starts, entries.digests
    count = len(digests)
    if count == 0:
        raise ValueError("a piece has at least one entry")
    if digests.shape != (count, 2) or digests.dtype != np.uint64:
        raise ValueError(f"digests are uint64[n, 2], not {digests.dtype}{list(digests.shape)}")
    if len(starts) != len(keys) + 1 or starts[0] != 0 or starts[-1] != count or (np.diff(starts) <= 0).any():
        raise ValueError(f"bucket starts do not split {count} entries into {len(keys)} buckets that have some")
    # Not by their difference, which may lie beyond int64.
    if (keys[1:] <= keys[:-1]).any():
        raise ValueError("bucket keys do not ascend")
    hi, lo = digests[:, 0], digests[:, 1]
    ascending = (hi[1:] > hi[:-1]) | ((hi[1:] == hi[:-1]) & (lo[1:] > lo[:-1]))
    ascending[starts[1:-1] - 1] = True
    if not ascending.all():
        raise ValueError("digests do not ascend inside a bucket")
    if not digests[starts[:-1]].any(axis=1).all():
        raise ValueError("digest (0, 0) stands for an empty slot and is never stored")
    expected = {
        "expiry": (entries.expiry, (np.int64, np.float64)),
        "origin": (entries.origin, (np.int64,)),
        "window": (entries.window, (np.uint32,)),
        "fingerprint": (entries.fingerprint, (np.uint64,)),
    }
    for name, (column, types) in expected.items():
        if column is not None and (column.shape != (count,) or column.dtype not in types):
            raise ValueError(f"column {name} is {column.dtype}{list(column.shape)}, not {types[0].__name__}[{count}]")
