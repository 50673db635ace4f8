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
from numpy.typing import NDArray

from bucket_store.pieces.piece import BucketEntries, Entries
from deduper.core.digest_kernels import array_digest
from deduper.table.columns import KeyColumn, KeyColumns, PartitionValue
from deduper.table.formats.protocol import DataFile

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

FileNumbers = NDArray[np.uint32]


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
    rows = np.argsort(hi, kind="stable")
    if len(bucket) and bucket.min() != bucket.max():
        rows = rows[np.argsort(bucket[rows], kind="stable")]
    # Two halves of a digest are a third pass, which digests need only if they have the first half alone in common.
    bucket_of_row, high, low = bucket[rows], hi[rows], lo[rows]
    is_before = (bucket_of_row[1:] == bucket_of_row[:-1]) & (high[1:] == high[:-1]) & (low[1:] < low[:-1])
    if is_before.any():
        rows = np.lexsort((lo, hi, bucket))
        bucket_of_row, high, low = bucket[rows], hi[rows], lo[rows]
    return rows, SortedKeys(bucket_of_row, np.stack((high, low), axis=1))


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
