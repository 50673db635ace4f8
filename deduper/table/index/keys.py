"""Keys of rows: their digests and buckets, in order, and with their files as the entries of pieces. PURE.

The bucket of a key is the exact value of a partition column, and not a hash. A piece of the bucket store has a digest
once in a bucket. A table may have a key in several files all the same: after foreign commits. The first file's entry
goes into one layer, the second one's into the next: each layer is a piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from bucket_store.pieces.piece import BucketEntries, Entries
from deduper.core.digest_kernels import array_digest
from deduper.table.columns import KeyColumn, KeyColumns, PartitionValue
from deduper.table.formats.protocol import DataFile

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C")
_DIGESTS = types.Array(types.uint64, 2, "C")

_HALF = np.uint64(32)
_MOVES_A_KEY = 8
_DENSE = 1 << 16
"""So many buckets have numbers of their own, without a look at which there are."""
FileNumbers = NDArray[np.uint32]


@kernel(types.boolean(_I64_IN, types.int64, _U64_IN, _U64_IN, types.uint64, types.uint64, _I64, _I64, _DIGESTS))
def _sort(
    bucket: Int64s,
    least: int,
    hi: UInt64s,
    lo: UInt64s,
    least_hi: int,
    shift: int,
    starts: Int64s,
    rows: Int64s,
    digests: UInt64s,
) -> bool:
    """Fills `starts` (where each bucket from `least` on begins, and the end), `rows` and `digests`; False: gave up.

    `hi - least_hi`, shifted left by `shift`, spreads over 64 bits.
    """
    count = bucket.shape[0]
    for row in range(count):
        starts[bucket[row] - least + 1] += 1
    for code in range(1, starts.shape[0]):
        starts[code] += starts[code - 1]
    ends = np.zeros(count + 1, np.uint32)
    for row in range(count):
        begin = starts[bucket[row] - least]
        width = np.uint64(starts[bucket[row] - least + 1] - begin)
        ends[begin + np.int64(((((hi[row] - least_hi) << shift) >> _HALF) * width) >> _HALF) + 1] += 1
    for place in range(1, count + 1):
        ends[place] += ends[place - 1]
    for row in range(count):  # from here on `ends` has the end of the rows that a place has so far
        begin = starts[bucket[row] - least]
        width = np.uint64(starts[bucket[row] - least + 1] - begin)
        place = begin + np.int64(((((hi[row] - least_hi) << shift) >> _HALF) * width) >> _HALF)
        at = ends[place]
        ends[place] = at + 1
        rows[at], digests[at, 0], digests[at, 1] = row, hi[row], lo[row]
    moves = 0
    begin = 0
    for place in range(count):
        end = np.int64(ends[place])
        for at in range(begin + 1, end):
            row, high, low = rows[at], digests[at, 0], digests[at, 1]
            to = at
            while to > begin and (
                digests[to - 1, 0] > high or (digests[to - 1, 0] == high and digests[to - 1, 1] > low)
            ):
                rows[to], digests[to, 0], digests[to, 1] = rows[to - 1], digests[to - 1, 0], digests[to - 1, 1]
                to -= 1
            rows[to], digests[to, 0], digests[to, 1] = row, high, low
            moves += at - to
        if moves > _MOVES_A_KEY * count:
            return False
        begin = end
    return True


def sorted_rows(bucket: Int64s, hi: UInt64s, lo: UInt64s) -> tuple[Int64s, Int64s, UInt64s]:
    """(rows by (bucket, hi, lo), their buckets, their digests as uint64[n, 2]); equal keys in the order of the rows.

    Digests spread evenly, so within a bucket each has its place nearly by its share of the range of all `hi`. Rows are
    counted by these places, dealt out to them, and then sorted by insertion within each place, which has a key or two
    on average. That takes a quarter of the time of sorting by comparisons. Keys that do not spread, or that repeat one
    another too often, are left to those.
    """
    bucket, hi, lo = np.ascontiguousarray(bucket), np.ascontiguousarray(hi), np.ascontiguousarray(lo)
    count = len(bucket)
    rows, digests = np.empty(count, np.int64), np.empty((count, 2), np.uint64)
    if not count:
        return rows, bucket, digests
    least, greatest = int(bucket.min()), int(bucket.max())
    different: Int64s | None = None
    codes = bucket
    if greatest - least >= max(count, _DENSE):
        different, codes = np.unique(bucket, return_inverse=True)
        least, greatest = 0, len(different) - 1
    starts = np.zeros(greatest - least + 2, np.int64)
    least_hi = int(hi.min())
    shift = min(64 - (int(hi.max()) - least_hi).bit_length(), 63)
    if not _sort(codes, least, hi, lo, least_hi, shift, starts, rows, digests):
        rows = np.lexsort((lo, hi, bucket))
        digests[:, 0], digests[:, 1] = hi[rows], lo[rows]
        return rows, bucket[rows], digests
    found = np.arange(least, greatest + 1) if different is None else different
    return rows, np.repeat(found, np.diff(starts)), digests


def row_keys(arrays: Sequence[pa.Array], columns: KeyColumns, salt: bytes) -> tuple[Int64s, UInt64s, UInt64s]:
    """(bucket, hi, lo) of every row; `arrays` are those of `columns.digested`. Rows with a null have any."""
    hi, lo = digests_of(arrays, columns.digested, salt)
    by = columns.bucket_column
    bucket = np.zeros(len(hi), np.int64) if by is None else buckets_of(arrays[columns.digested.index(by)], by)
    return bucket, hi, lo


def without_null(arrays: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Whether each row has no null."""
    whole = np.ones(len(arrays[0]), np.bool_)
    for array in arrays:
        if array.null_count:
            whole &= array.is_valid().to_numpy(zero_copy_only=False)
    return whole


def digests_of(columns: Sequence[pa.Array], kinds: Sequence[KeyColumn], salt: bytes) -> tuple[UInt64s, UInt64s]:
    """(hi, lo) of every row; columns of the kinds' own Arrow types."""
    return array_digest(columns, [kind.kind for kind in kinds], salt)


def buckets_of(column: pa.Array, kind: KeyColumn) -> Int64s:
    """The bucket of every value of an integer or date column: the number itself, a date's days. Nulls get any."""
    buckets: Int64s = partition_values(column, kind).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return buckets


def partition_values(column: pa.Array, kind: KeyColumn) -> pa.Array:
    """A partition column as `PartitionValue`s: a date is its days."""
    return column.view(pa.int32()) if kind.type == "date" else column


def wide(values: pa.Array) -> pa.Array:
    """Texts and bytes with offsets of 64 bits: all those of a column may take more than 2 GiB."""
    kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return values.cast(kinds.get(values.type, values.type))


def array_of(value: PartitionValue, kind: KeyColumn, rows: int) -> pa.Array:
    """A column with the value of a partition in every row."""
    values = pa.repeat(pa.scalar(value, pa.int32() if kind.type == "date" else kind.arrow), rows)
    return values.cast(kind.arrow)


@dataclass(frozen=True, slots=True)
class FileKeys:
    """Keys of files, in any order: columns of equal length."""

    bucket: Int64s
    hi: UInt64s
    lo: UInt64s
    file: FileNumbers

    @property
    def count(self) -> int:
        return len(self.hi)

    def chosen(self, rows: NDArray[np.bool_]) -> FileKeys:
        """Those of a mask."""
        return FileKeys(self.bucket[rows], self.hi[rows], self.lo[rows], self.file[rows])


NO_KEYS = FileKeys(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint32))


@dataclass(frozen=True, slots=True)
class SortedKeys:
    """Keys by (bucket, hi, lo): `digests` is uint64[n, 2]."""

    bucket: Int64s
    digests: UInt64s

    @property
    def count(self) -> int:
        return len(self.bucket)

    def runs(self) -> Int64s:
        """Where each bucket begins, and the end."""
        return _run_starts(self.bucket)

    def chosen(self, rows: NDArray[np.bool_]) -> SortedKeys:
        """Those of a mask."""
        if rows.all():
            return self
        places = np.flatnonzero(rows)
        return SortedKeys(self.bucket[places], self.digests.take(places, axis=0))

    def between(self, rows: slice) -> SortedKeys:
        """Those of a range, without a copy."""
        return SortedKeys(self.bucket[rows], self.digests[rows])

    def again(self) -> NDArray[np.bool_]:
        """Whether each key is that of the row before."""
        again = np.zeros(self.count, np.bool_)
        again[1:] = self.bucket[1:] == self.bucket[:-1]
        for half in self.digests.T:
            again[1:] &= half[1:] == half[:-1]
        return again

    def entries(self, file: FileNumbers) -> Entries:
        """As entries with their files; no key twice."""
        starts = self.runs()
        return Entries(self.bucket[starts[:-1]], starts, self.digests, window=file)


def joined(parts: Sequence[FileKeys]) -> FileKeys:
    """The keys of all parts."""
    if len(parts) <= 1:
        return parts[0] if parts else NO_KEYS
    return FileKeys(
        np.concatenate([part.bucket for part in parts]),
        np.concatenate([part.hi for part in parts]),
        np.concatenate([part.lo for part in parts]),
        np.concatenate([part.file for part in parts]),
    )


def keys_of(entries: BucketEntries) -> FileKeys:
    """The entries of a bucket as keys."""
    assert entries.window is not None
    return FileKeys(
        np.full(len(entries.digests), entries.bucket, np.int64),
        entries.digests[:, 0],
        entries.digests[:, 1],
        entries.window,
    )


def in_order(bucket: Int64s, hi: UInt64s, lo: UInt64s) -> tuple[Int64s, SortedKeys]:
    """(rows by (bucket, hi, lo), the keys in that order); equal keys in the order of their rows."""
    rows, bucket, digests = sorted_rows(bucket, hi, lo)
    return rows, SortedKeys(bucket, digests)


def layers(keys: FileKeys) -> Iterator[Entries]:
    """The keys as pieces' entries; the first has each key once, with the file of the lowest number."""
    order, found = in_order(keys.bucket, keys.hi, keys.lo)
    again = found.again()
    if not again.any():
        if found.count:
            yield found.entries(keys.file[order])
        return
    file = keys.file[np.lexsort((keys.file, keys.lo, keys.hi, keys.bucket))]
    while found.count:
        yield found.chosen(~again).entries(file[~again])
        # One entry for one file: a file with a key twice has nothing more to say.
        again[1:] &= file[1:] != file[:-1]
        found, file = found.chosen(again), file[again]
        again = found.again()


def bucket_of(file: DataFile, columns: KeyColumns) -> int:
    """The bucket of a file's keys; with a null partition it has none, and any bucket."""
    by = columns.bucket_column
    bucket = 0 if by is None else file.partition[columns.partition_by.index(by)]
    return bucket if isinstance(bucket, int) else 0


def files_of_buckets(files: Sequence[DataFile], keys: SortedKeys, columns: KeyColumns) -> Int64s | None:
    """The place of each key's file among the files of a load; None unless each bucket of the keys has one file."""
    place = {bucket_of(file, columns): place for place, file in enumerate(files)}
    starts = keys.runs()
    buckets = keys.bucket[starts[:-1]].tolist()
    if not files or len(place) < len(files) or set(place) != set(buckets):
        return None
    return np.repeat(np.array([place[bucket] for bucket in buckets], np.int64), np.diff(starts))


def counted_files(files: NDArray[np.integer]) -> Counter[int]:
    """How often each number is there."""
    number, count = np.unique(files, return_counts=True)
    return Counter(dict(zip(number.tolist(), count.tolist(), strict=True)))


def _run_starts(bucket: Int64s) -> Int64s:
    if not len(bucket):
        return np.zeros(1, np.int64)
    starts: Int64s = np.concatenate(([0], np.flatnonzero(bucket[1:] != bucket[:-1]) + 1, [len(bucket)]))
    return starts
