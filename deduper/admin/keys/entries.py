"""The entries of one key in a store's live pieces, and the places of their records. Locks nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store.errors import StoreError
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import SourcePartition
from bucket_store.pieces.piece import BucketEntries, PieceHeader, PieceRef, decode_bucket
from bucket_store.pieces.reader import PieceReader
from deduper.admin.keys.forecast import StoredEntry
from deduper.admin.open_store import OpenStore
from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType
from deduper.core.clock import POSITION_BITS
from deduper.core.digest_kernels import array_digest
from deduper.core.digests import KeyValue, plain_value
from deduper.core.versions import version_digests
from deduper.payload import MOST_VERSIONS
from deduper.window.policy import FINGERPRINT

_WIDE = Context(prec=40)


def find_key(store: OpenStore, values: Sequence[KeyValue]) -> tuple[tuple[int, int], int, tuple[StoredEntry, ...]]:
    """(digest, shard, entries by window) of a key, by binary search in every bucket of its shard's live pieces.

    The entries are those of all its versions; one that has moved is there twice.

    Raises:
        CorruptionError: a piece is damaged.
        ValueError: a value that is none of its column's type.
    """
    settings = store.settings
    hi, lo = key_digest(
        values,
        [column.type for column in store.key_columns],
        store.log.manifest.salt,
        secure=settings["digest"] == "secure",
    )
    shard = lo % settings["shards"]
    buckets = {hi % settings["expiry.buckets"]} if settings["expiry.by"] == "never" else None
    own = digests_of(store, (hi, lo))
    entries = [
        StoredEntry(
            window=piece.first_window if found.window is None else int(found.window[row]),
            bucket=found.bucket,
            piece=piece.name,
            expiry=None if found.expiry is None else found.expiry[row].item(),
            origin=None if found.origin is None else int(found.origin[row]),
        )
        for piece in store.log.state.pieces.get(shard, ())
        for found in _buckets_of(store, piece, buckets)
        for digest in own
        for row in [_row_of(found.digests, *digest)]
        if row is not None
    ]
    return (hi, lo), shard, tuple(sorted(entries, key=lambda entry: entry.window))


def key_digest(
    values: Sequence[KeyValue], kinds: Sequence[ColumnType], salt: bytes, *, secure: bool
) -> tuple[int, int]:
    """(hi, lo), unsigned, of one key.

    Raises:
        ValueError: a value that is none of its type.
    """
    columns = [_column_of(value, kind) for value, kind in zip(values, kinds, strict=True)]
    hi, lo = array_digest(columns, kinds, salt, secure=secure)
    return int(hi[0]), int(lo[0])


def _column_of(value: KeyValue, kind: ColumnType) -> pa.Array:
    """A column of one row."""
    arrow = arrow_type(kind)
    if value is None:
        return pa.nulls(1, arrow)
    plain = plain_value(value, kind)
    match kind.name:
        case "decimal":
            return pa.array([Decimal(int(plain)).scaleb(-(kind.scale or 0), _WIDE)], arrow)
        case "date":
            return pa.array([plain], pa.int32()).view(arrow)
        case "timestamp" | "timestamp_ntz":
            return pa.array([plain], pa.int64()).view(arrow)
        case "string":
            return pa.array([value], arrow)
        case _:
            return pa.array([bool(plain) if kind.name == "boolean" else plain], arrow)


def digests_of(store: OpenStore, digest: tuple[int, int]) -> list[list[int]]:
    """[hi, lo] of a key, and then of all versions that it may have had."""
    spread = store.settings["expiry.buckets"] if store.settings["expiry.by"] == "never" else 1
    most = MOST_VERSIONS if FINGERPRINT in store.log.state.extra else 1
    repeated = np.array([digest], np.uint64).repeat(most, axis=0)
    digests: list[list[int]] = version_digests(repeated, np.arange(1, most + 1), spread).tolist()
    return digests


def _row_of(digests: NDArray[np.uint64], hi: int, lo: int) -> int | None:
    """Row of a digest in ascending digests, by binary search; None when it is not there."""
    first = int(np.searchsorted(digests[:, 0], np.uint64(hi), side="left"))
    last = int(np.searchsorted(digests[:, 0], np.uint64(hi), side="right"))
    row = first + int(np.searchsorted(digests[first:last, 1], np.uint64(lo)))
    return row if row < last and int(digests[row, 1]) == lo else None


def origin_of(store: OpenStore, window: int, origin: int) -> tuple[str | None, int | None]:
    """Name of the source partition and number of the record in it: from 0 for files, the offset for topics."""
    partitions = sources_of_window(store, window)
    ordinal, position = origin >> POSITION_BITS, origin & ((1 << POSITION_BITS) - 1)
    if partitions is None or ordinal >= len(partitions):
        return None, position
    return partitions[ordinal].name, position + partitions[ordinal].start


def sources_of_window(store: OpenStore, window: int) -> tuple[SourcePartition, ...] | None:
    """The source partitions of a window; None when its file is gone."""
    state = store.log.state
    try:
        return SourcesReader(store.root, state).of(window)
    except StoreError:
        if store.log.refresh().sources_of(window) == state.sources_of(window):
            raise
        return SourcesReader(store.root, store.log.state).of(window)  # folded or forgotten meanwhile


def piece_header(store: OpenStore, piece: PieceRef) -> PieceHeader:
    """The header of a piece, which is the one that the log names; one ranged read, two when its directory is long."""
    return PieceReader(store.pieces, store.log.manifest.store_id).header(piece)


def _buckets_of(store: OpenStore, piece: PieceRef, wanted: set[int] | None) -> Iterator[BucketEntries]:
    """The buckets of a piece, or those wanted, each read and checked as it is taken."""
    header = piece_header(store, piece)
    for index, bucket in enumerate(header.buckets.tolist()):
        if wanted is None or bucket in wanted:
            start, length = header.block_range(index)
            block = store.pieces.read(piece, start, length)
            yield decode_bucket(header, index, block, file=piece.file, offset=piece.offset)
