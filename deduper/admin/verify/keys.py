"""No key twice where it is looked up: every digest of every live piece is compared, a slice at a time.

With `own_bucket` (and by category, and for ever) no digest may stand twice in a bucket. With `all_live` it may stand
twice only when the earlier copy was at or before the expiry point by the time the later one came, so that it was unique
again, or when the later one is of a seed from outputs, where it counts whatever the clock. If keys have had versions,
entries have moved while they lived: only that no two have one expiry key is checked then.

A shard's digests are cut into slices by their upper word, each small enough to be sorted in memory; digests are spread
evenly, so slices are alike. One word a digest is sorted; only where words are equal are digests compared. The
blocks have been read and checked before: `admin.verify.pieces` gives them with their cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import StoreError
from bucket_store.log.records import ExpiryKey, LogState
from bucket_store.pieces.store import PieceStore
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.findings import Check, Findings
from deduper.admin.verify.log import LogHistory
from deduper.admin.verify.pieces import Block
from deduper.core.verdict import VERSION_REASON, expiry_point
from deduper.window.completeness import outputs_through

SLICE_ENTRIES = 1 << 21
"""Digests that are held at once: some 100 MB with all that goes with them."""

UInt64s = NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def slice_edges(state: LogState, *, slice_entries: int = SLICE_ENTRIES) -> dict[int, UInt64s]:
    """The edges between the slices of each shard: upper words, ascending; none for a shard that is one slice."""
    edges = {}
    for shard, refs in state.pieces.items():
        slices = -(-sum(ref.entries for ref in refs) // slice_entries)
        edges[shard] = np.array([(1 << 64) * number // slices for number in range(1, slices)], np.uint64)
    return edges


def check_keys(
    store: OpenStore, state: LogState, history: LogHistory, blocks: dict[int, list[Block]], findings: Findings
) -> None:
    """Compares the digests of these blocks, of all live pieces that could be read."""
    findings.run(Check.KEYS_TWICE)
    is_all_live = store.settings["expiry.lookup"] == "all_live"
    clock = _clock(store, state, history) if is_all_live else None
    if is_all_live and store.period is None:
        findings.skip(
            "the period stands in the job's config: only the order of two copies was checked", Check.KEYS_TWICE
        )
    for shard, of_shard in sorted(blocks.items()):
        slices = len(of_shard[0].cuts) + 1
        for number in range(slices):
            try:
                part = _slice(store.pieces, of_shard, number, with_age=is_all_live)
            except StoreError:
                # Deleted meanwhile, with its piece.
                live = set(store.log.refresh().pieces.get(shard, ()))
                part = _slice(
                    store.pieces, [block for block in of_shard if block.piece in live], number, with_age=is_all_live
                )
            rows = _equal_rows(part, is_all_live=is_all_live)
            if rows.size:
                _compare(store, part, rows, clock, findings)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Digests of some blocks: `block` is the number of each one's in `blocks`, `row` its place there."""

    blocks: Sequence[Block]
    hi: UInt64s
    lo: UInt64s
    block: NDArray[np.int32]
    row: NDArray[np.int64]
    expiry: NDArray[Any] | None
    window: NDArray[np.uint32] | None


def _slice(pieces: PieceStore, blocks: Sequence[Block], number: int, *, with_age: bool) -> _Slice:
    digests, numbers, rows, expiries, windows = [], [], [], [], []
    for at, block in enumerate(blocks):
        begin = block.cuts[number - 1] if number else 0
        end = block.cuts[number] if number < len(block.cuts) else block.count
        if begin == end:
            continue
        count = end - begin
        data = pieces.read(block.piece, block.at + 16 * begin, 16 * count)
        digests.append(np.frombuffer(data, np.uint64).reshape(count, 2))
        numbers.append(np.full(count, at, np.int32))
        rows.append(np.arange(begin, end, dtype=np.int64))
        if with_age:
            expiries.append(_column(pieces, block, block.at + 16 * block.count, begin, end))
            windows.append(_windows(pieces, block, begin, end))
    whole = np.concatenate(digests) if digests else np.empty((0, 2), np.uint64)
    return _Slice(
        blocks,
        np.ascontiguousarray(whole[:, 0]),
        np.ascontiguousarray(whole[:, 1]),
        np.concatenate(numbers) if numbers else np.empty(0, np.int32),
        np.concatenate(rows) if rows else np.empty(0, np.int64),
        np.concatenate(expiries) if expiries else None,
        np.concatenate(windows) if windows else None,
    )


def _column(pieces: PieceStore, block: Block, at: int, begin: int, end: int) -> NDArray[Any]:
    if not block.has_expiry:
        return np.zeros(end - begin, np.int64)
    data = pieces.read(block.piece, at + 8 * begin, 8 * (end - begin))
    return np.frombuffer(data, np.float64 if block.is_float else np.int64)


def _windows(pieces: PieceStore, block: Block, begin: int, end: int) -> NDArray[np.uint32]:
    if not block.has_window:
        return np.full(end - begin, block.piece.first_window, np.uint32)
    at = block.at + (16 + 8 * block.has_expiry + 8 * block.has_origin) * block.count
    return np.frombuffer(pieces.read(block.piece, at + 4 * begin, 4 * (end - begin)), np.uint32)


def _equal_rows(part: _Slice, *, is_all_live: bool) -> NDArray[np.int64]:
    """The rows whose digest may stand elsewhere in the scope too, by one word each."""
    if is_all_live:
        words = part.hi
    else:
        buckets = np.array([block.bucket for block in part.blocks], np.int64).view(np.uint64) * _MIX
        words = part.hi ^ buckets[part.block]
    ordered = np.sort(words)
    equal = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.flatnonzero(np.isin(words, equal)) if equal.size else np.empty(0, np.int64)


Clock = Callable[[int], ExpiryKey | None]
"""(window) -> a clock that no tuple of the window met a later one than; None when none is known."""


def _clock(store: OpenStore, state: LogState, history: LogHistory) -> Clock:
    """By arrival the latest point after the window; otherwise exactly the clock that the window was judged by."""
    by = store.settings["expiry.by"]
    config = store.config
    is_batch = config is not None and config.clock == "batch"

    def of_window(window: int) -> ExpiryKey | None:
        known = history.commits.get(window)
        if by == "processing_time" and window in state.windows:
            # All its tuples have one expiry key.
            return state.windows[window].timestamp
        if known is not None and is_batch and by != "processing_time":
            return known.latest_before
        if known is not None:
            return known.record.latest_point
        # The records are folded away: the clock has only moved forward since.
        later = min((number for number in history.commits if number > window), default=None)
        return state.latest_point if later is None else history.commits[later].record.latest_point

    return of_window


def _compare(store: OpenStore, part: _Slice, rows: NDArray[np.int64], clock: Clock | None, findings: Findings) -> None:
    hi, lo, block = part.hi[rows], part.lo[rows], part.block[rows]
    buckets = np.array([each.bucket for each in part.blocks], np.int64)[block]
    if clock is None:
        windows = np.array([each.piece.first_window for each in part.blocks], np.int64)[block]
        order = np.lexsort((windows, buckets, lo, hi))
    else:
        assert part.window is not None
        windows = part.window[rows].astype(np.int64)
        assert part.expiry is not None
        moves = VERSION_REASON in store.log.state.reason_totals
        order = np.lexsort((part.expiry[rows] if moves else windows, lo, hi))
    rows, hi, lo, buckets, windows = rows[order], hi[order], lo[order], buckets[order], windows[order]
    is_same = (hi[1:] == hi[:-1]) & (lo[1:] == lo[:-1])
    if clock is None:
        # Words hold the bucket already; only by chance are two alike.
        is_same &= buckets[1:] == buckets[:-1]
    else:
        assert part.expiry is not None
        renewed = np.diff(part.expiry[rows]) > 0 if moves else _renewed(store, part, rows, windows, clock)
        is_same &= ~renewed
    for at in np.flatnonzero(is_same).tolist():
        first, second = int(rows[at]), int(rows[at + 1])
        earlier, later = part.blocks[int(part.block[first])], part.blocks[int(part.block[second])]
        scope = f"in bucket {later.bucket}" if clock is None else "among the living"
        findings.wrong(
            Check.KEYS_TWICE,
            f"key {int(hi[at]):016x}{int(lo[at]):016x} of window {int(windows[at + 1])}"
            + ("" if part.expiry is None else f", expiry key {part.expiry[second].item()}"),
            file=store.root / later.piece.file,
            offset=later.piece.offset + later.at + 16 * int(part.row[second]),
            expected=f"not {scope} already",
            found=f"of window {int(windows[at])} in piece {earlier.piece.name}"
            + ("" if part.expiry is None else f", expiry key {part.expiry[first].item()}"),
        )


def _renewed(
    store: OpenStore, part: _Slice, rows: NDArray[np.int64], windows: NDArray[np.int64], clock: Clock
) -> NDArray[np.bool_]:
    """For each neighbouring pair, whether the later one may have been unique: the earlier was dead by then."""
    assert part.expiry is not None
    expiry = part.expiry[rows]
    before, after = expiry[:-1], expiry[1:]
    dead = (windows[1:] > windows[:-1]) & (after > before)
    period = store.period
    if period is None:
        return dead
    taken = outputs_through(store.log.state)
    for window in np.unique(windows[1:][windows[1:] > taken]).tolist():
        point = expiry_point(clock(window), period)
        in_window = windows[1:] == window
        dead &= ~in_window | (False if point is None else before <= point)
    return dead
