"""Ways to damage a job's directory in exactly one way, checksums put right where the damage shall not show there."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from bucket_store.log.records import CommitRecord
from bucket_store.log.sources_file import SourcePartition, encode_sources, read_sources
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef, decode_piece
from bucket_store.pieces.store import append_piece
from tests.deduper.whole_job import WholeJob

DIRECTORY_AT, ROW_BYTES = 80, 64


def flip(file: Path, offset: int, bit: int = 0) -> Path:
    """One bit."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 1 << bit
    file.write_bytes(data)
    return file


def piece_of(job: WholeJob, window: int, *, at_least: int = 2) -> PieceRef:
    """A live piece of a window with a bucket of some entries."""
    for refs in job.log.state.pieces.values():
        for ref in refs:
            if ref.first_window == window and ref.entries >= at_least:
                return ref
    raise KeyError(window)


class PieceBytes:
    """A piece of the `file:` backend taken apart, changed, and put back with every checksum right."""

    def __init__(self, job: WholeJob, ref: PieceRef) -> None:
        self.job, self.ref = job, ref
        self.file = job.log.root.local / ref.file
        self.data = bytearray(self.file.read_bytes()[ref.offset : ref.offset + ref.length])

    def bucket(self, *, at_least: int = 2) -> int:
        """The directory row of a bucket with some entries."""
        rows = struct.unpack_from("<I", self.data, 12)[0]
        return next(row for row in range(rows) if self.field(row, 16) >= at_least)

    def field(self, row: int, at: int) -> int:
        """A number of the directory."""
        found: int = struct.unpack_from("<Q", self.data, DIRECTORY_AT + ROW_BYTES * row + at)[0]
        return found

    def block(self, row: int) -> int:
        """Where the block of a directory row begins."""
        return self.field(row, 24)

    def put_back(self) -> Path:
        """Checksums of all blocks and of the header; the record and the state's index say the same."""
        rows = struct.unpack_from("<I", self.data, 12)[0]
        for row in range(rows):
            begin, length = self.field(row, 24), self.field(row, 32)
            checksum = xxhash.xxh3_64_intdigest(bytes(self.data[begin : begin + length]))
            struct.pack_into("<Q", self.data, DIRECTORY_AT + ROW_BYTES * row + 40, checksum)
        end = DIRECTORY_AT + ROW_BYTES * rows
        header = xxhash.xxh3_64_intdigest(bytes(self.data[:end]))
        struct.pack_into("<Q", self.data, end, header)
        whole = bytearray(self.file.read_bytes())
        whole[self.ref.offset : self.ref.offset + self.ref.length] = self.data
        self.file.write_bytes(whole)
        change_ref(self.job, self.ref, lambda ref: replace(ref, checksum=header))
        return self.file


def change_ref(job: WholeJob, piece: PieceRef, change: Callable[[PieceRef], PieceRef]) -> Path:
    """Another reference to a piece in its commit record: gives the record's file."""

    def with_ref(record: CommitRecord) -> CommitRecord:
        return replace(record, pieces=tuple(change(ref) if ref == piece else ref for ref in record.pieces))

    return job.change_window(piece.first_window, with_ref)


def change_sources(
    job: WholeJob, window: int, change: Callable[[tuple[SourcePartition, ...]], list[SourcePartition]]
) -> Path:
    """Other source partitions of a window, its record saying the same: gives the sources file."""
    ref = job.log.state.sources[window]
    data = encode_sources(window, change(read_sources(job.log.root, window, ref)))
    file = job.log.root.local / "sources" / ref.name
    file.write_bytes(data)
    checksum = struct.unpack("<Q", data[-8:])[0]
    changed = replace(ref, checksum=checksum, length=len(data))
    job.change_window(window, lambda record: replace(record, sources=changed))
    return file


def remember_again(job: WholeJob, window: int, *, later_by: int = 0) -> tuple[Path, int]:
    """A new window that remembers the keys of an old one's piece once more: the file and place of the first of them.

    `later_by`: how much later their expiry keys are.
    """
    piece = piece_of(job, window, at_least=1)
    backend = open_backend(job.config.store.url)
    _, buckets = decode_piece(backend.read(piece), file=piece.file, offset=piece.offset)
    *_, first = buckets
    expiry = None if first.expiry is None else first.expiry + later_by
    count = _in_one_bucket(job, expiry, len(first.digests))
    expiry = None if expiry is None else expiry[:count]
    ref = append_piece(
        backend,
        Entries(
            bucket_keys=_bucket(job, first.bucket, expiry),
            bucket_starts=_array([0, count]),
            digests=first.digests[:count],
            expiry=expiry,
            origin=None if first.origin is None else _array([0] * count),
        ),
        store_id=bytes.fromhex(job.log.manifest.store_id),
        shard=piece.shard,
        first_window=job.log.state.next_window,
        last_window=job.log.state.next_window,
        epoch=1,
        attempt=9,
    )
    new = job.log.state.next_window
    job.run_window(
        change=lambda record: replace(
            record,
            pieces=(ref,),
            buckets=(ref.min_bucket,),
            timestamp=ref.max_expiry,
            counts={**dict.fromkeys(record.counts, 0), "unique": ref.entries},
            reasons={},
            outputs=(),
        )
    )
    change_sources(job, new, lambda partitions: [replace(partitions[0], rows=ref.entries), *_empty(partitions[1:])])
    header_bytes = DIRECTORY_AT + ROW_BYTES + 8
    return job.log.root.local / ref.file, ref.offset + header_bytes


def _empty(partitions: tuple[SourcePartition, ...]) -> list[SourcePartition]:
    return [replace(partition, rows=0) for partition in partitions]


def _in_one_bucket(job: WholeJob, expiry: Any, count: int) -> int:
    """How many of the first keys lie in one bucket: a later expiry key may be the next one's."""
    if expiry is None or job.config.span_steps is None:
        return count
    buckets = [int(key // job.config.span_steps) for key in expiry.tolist()]
    return next((number for number, bucket in enumerate(buckets) if bucket != buckets[0]), count)


def _bucket(job: WholeJob, bucket: int, expiry: Any) -> Any:
    if expiry is None or job.config.span_steps is None:
        return _array([bucket])
    return _array([int(expiry[0] // job.config.span_steps)])


def _array(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, np.int64)
