"""Compacts many small pieces of a shard into one: which pieces are worth it, and the piece that takes their place.

A window of one second leaves one piece per shard, and every window's view lists all live pieces: after a day of such
windows 86,400 per shard, which took a second of each window. So pieces that die together are merged, as in a
log-structured merge tree: a piece is rewritten when about as many bytes have come beside it, so that an entry is
rewritten as often as the pieces double, and not with every window.

Only pieces of one *time bucket* are merged (see `choose`): the new piece dies when they would have died, and whole.
`choose` and `merge` are pure; `compact_pieces` reads and appends pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.pieces.cache import PieceCache
from bucket_store.pieces.piece import BucketEntries, Entries, ExpiryKeys, PieceRef
from bucket_store.pieces.reader import decode_named
from bucket_store.pieces.store import PieceStore, append_piece

FEWEST_LIVE = 64
"""Views of fewer pieces cost next to nothing, and merging would only write more."""
FEWEST = 16
"""The fewest pieces worth a record in the time bucket that still gets pieces."""
FEWEST_LEFT = 4
"""The same in an older time bucket of which a larger piece stays, or where one more piece would be too large."""
MOST_BYTES = 32 << 20
MOST_PIECES = 256
MOST_TASKS = 64
MOST_TASKS_BYTES = 384 << 20
"""Of the merges that begin after one window: 384 MiB take 12 s of one core."""
_READERS = 8
_ALIKE = 4
"""Pieces of one size are at most this many times as large as the mean of those below: a merged one is 16 times."""
_LEFT_GROWTH = 4
"""A piece of an older time bucket is rewritten when it is at most this many times as large as all smaller ones."""


def fewest_live(place: int, shards: int) -> int:
    """The live pieces at which the shard at this place of all begins to merge.

    Of more shards than are merged after one window each has a number of its own, from half of `FEWEST_LIVE` on: else
    all would begin with the same window.
    """
    return FEWEST_LIVE if shards <= MOST_TASKS else FEWEST_LIVE // 2 + FEWEST_LIVE * place // (2 * shards)


def choose(
    pieces: Sequence[PieceRef], time_bucket: Callable[[PieceRef], int], *, fewest: int | None = None
) -> tuple[PieceRef, ...]:
    """The pieces of a shard to compact next, ascending by window; none when too few are alike, or fewer live.

    Pieces of equal `time_bucket` die together; the greatest bucket is the stream's current one. Older ones come first,
    the newest of them before the others: what is merged there stays merged for longest.
    """
    if len(pieces) < (FEWEST_LIVE if fewest is None else fewest):
        return ()
    groups: defaultdict[int, list[PieceRef]] = defaultdict(list)
    for piece in pieces:
        groups[time_bucket(piece)].append(piece)
    current = max(groups, default=0)
    chosen: Sequence[PieceRef] = ()
    for bucket in sorted(groups.keys() - {current}, reverse=True):
        chosen = _rest(_by_size(groups[bucket]))
        if chosen:
            break
    chosen = chosen or _alike(_by_size(groups.get(current, ())))
    return tuple(sorted(chosen, key=lambda piece: (piece.first_window, piece.last_window)))


def _by_size(group: Sequence[PieceRef]) -> list[PieceRef]:
    """Those that are not too large to be merged, the smallest first."""
    small = [piece for piece in group if 2 * piece.length <= MOST_BYTES]
    return sorted(small, key=lambda piece: (piece.length, piece.first_window))


def _rest(group: Sequence[PieceRef]) -> Sequence[PieceRef]:
    """The pieces to merge of a time bucket that gets no more, as a rule: all, but for one that dwarfs the others."""
    size = count = 0
    is_full = False
    for number, piece in enumerate(group, start=1):
        is_full = size + piece.length > MOST_BYTES or number > MOST_PIECES
        if is_full:
            break
        if piece.length <= _LEFT_GROWTH * size:
            count = number
        size += piece.length
    return group[:count] if count >= (2 if is_full or count == len(group) else FEWEST_LEFT) else ()


def _alike(group: Sequence[PieceRef]) -> Sequence[PieceRef]:
    """The smallest pieces of one size of which there are enough.

    Larger ones stay: so while a time bucket is the current one, an entry is merged once for each level of pieces, and a
    level ends when there is no room for more pieces of it.
    """
    run: list[PieceRef] = []
    size = 0
    for piece in group:
        is_full = size + piece.length > MOST_BYTES or len(run) == MOST_PIECES
        if run and (is_full or piece.length * len(run) > _ALIKE * size):
            if len(run) >= (FEWEST_LEFT if is_full else FEWEST):
                return run
            run, size = [], 0
        run.append(piece)
        size += piece.length
    return run if len(run) >= FEWEST else ()


def merge(
    pieces: Sequence[tuple[PieceRef, Iterable[BucketEntries]]],
    *,
    live_from_bucket: int | None,
    expiry_point: int | float | None,
) -> Entries | None:
    """The live entries of pieces as the entries of one piece; None when all are dead.

    Pieces have equal columns, but for fingerprints: entries of pieces without any get 0, an unknown one.

    An entry is dead in a bucket below `live_from_bucket`, or with an expiry key at or below `expiry_point` (None: no
    entry is). Of two entries for a key in a bucket the one with the greater expiry key is kept, of equal ones that of
    the earlier window; without expiry keys that of the later window. So do tables.
    """
    by_bucket: defaultdict[int, list[_Run]] = defaultdict(list)
    for ref, blocks in pieces:
        for block in blocks:
            if live_from_bucket is None or block.bucket >= live_from_bucket:
                by_bucket[block.bucket].append((ref.first_window, block))
    keys: list[int] = []
    merged: list[BucketEntries] = []
    for bucket, runs in sorted(by_bucket.items()):
        one = _merge_bucket(bucket, runs, expiry_point)
        if len(one.digests):
            keys.append(bucket)
            merged.append(one)
    if not keys:
        return None
    starts = np.concatenate(([0], np.cumsum([len(one.digests) for one in merged])))
    return Entries(
        bucket_keys=np.array(keys, np.int64),
        bucket_starts=starts.astype(np.int64),
        digests=np.concatenate([one.digests for one in merged]),
        expiry=_joined([one.expiry for one in merged]),
        origin=_joined([one.origin for one in merged]),
        window=_joined([one.window for one in merged]),
        fingerprint=_fingerprints(merged),
    )


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Pieces of one shard to compact into one of this epoch, ascending by window, and their dead entries."""

    pieces: tuple[PieceRef, ...]
    store_id: str
    epoch: int
    live_from_bucket: int | None
    expiry_point: int | float | None


def compact_pieces(store: PieceStore, task: CompactionTask, cache: PieceCache | None = None) -> PieceRef | None:
    """Reads the pieces, appends their live entries as one piece, durable on return; None when no entry lives.

    Safe to repeat: each call makes a piece of its own, of the same bytes. Reads the host's copies in `cache` first, and
    leaves one there.

    Raises:
        CorruptionError: one of them is damaged, or is not the piece that the record names.
        SpaceError: no room; nothing that was there before is harmed.
    """

    def entries_of(ref: PieceRef) -> Iterable[BucketEntries]:
        copied = None if cache is None else _of_copy(cache, ref, task.store_id)
        return decode_named(ref, store.read(ref), task.store_id) if copied is None else copied

    with ThreadPoolExecutor(_READERS if store.is_remote else 1, thread_name_prefix="compaction-reader") as pool:
        read = list(zip(task.pieces, pool.map(entries_of, task.pieces), strict=True))
    entries = merge(read, live_from_bucket=task.live_from_bucket, expiry_point=task.expiry_point)
    if entries is None:
        return None
    added = append_piece(
        store,
        entries,
        store_id=bytes.fromhex(task.store_id),
        shard=task.pieces[0].shard,
        first_window=task.pieces[0].first_window,
        last_window=max(ref.last_window for ref in task.pieces),
        epoch=task.epoch,
        attempt=0,
        cache=cache,
    )
    failpoints.hit("compact.merged")
    return added


def _of_copy(cache: PieceCache, ref: PieceRef, store_id: str) -> list[BucketEntries] | None:
    """The entries of the host's copy of a piece; None without a sound one."""
    copy = cache.read(ref, 0, ref.length)
    if copy is None:
        return None
    try:
        return decode_named(ref, copy, store_id)
    except (CorruptionError, UnknownFormatError):  # the copy's, not the piece's
        cache.drop(ref)
        return None


_Run = tuple[int, BucketEntries]


def _merge_bucket(bucket: int, runs: list[_Run], expiry_point: int | float | None) -> BucketEntries:
    digests = np.concatenate([block.digests for _, block in runs])
    window = np.concatenate([_windows(first, block) for first, block in runs])
    expiry = _joined([block.expiry for _, block in runs])
    origin = _joined([block.origin for _, block in runs])
    fingerprint = _fingerprints([block for _, block in runs])
    hi, lo = digests[:, 0], digests[:, 1]
    order = np.lexsort((window, lo, hi) if expiry is None else (~window, expiry, lo, hi))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (np.diff(hi[order]) != 0) | (np.diff(lo[order]) != 0)
    kept = order[is_last]
    if expiry is not None and expiry_point is not None:
        kept = kept[expiry[kept] > expiry_point]
    return BucketEntries(bucket, digests, expiry, origin, window, fingerprint).chosen(kept)


def _windows(first_window: int, block: BucketEntries) -> NDArray[np.uint32]:
    """The window of every entry; a piece of one window has no column of them."""
    if block.window is not None:
        return block.window
    return np.full(len(block.digests), first_window, np.uint32)


def _joined(columns: Sequence[ExpiryKeys | NDArray[np.uint64] | NDArray[np.uint32] | None]) -> NDArray[Any] | None:
    present = [column for column in columns if column is not None]
    if present and len(present) != len(columns):
        raise ValueError("pieces of one store have the same columns")
    return np.concatenate(present) if present else None


def _fingerprints(blocks: Sequence[BucketEntries]) -> NDArray[np.uint64] | None:
    """The fingerprints of all entries, 0 for those of blocks without any; None if no block has some."""
    if all(block.fingerprint is None for block in blocks):
        return None
    return np.concatenate(
        [np.zeros(len(one.digests), np.uint64) if one.fingerprint is None else one.fingerprint for one in blocks]
    )
