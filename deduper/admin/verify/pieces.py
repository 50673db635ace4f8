"""The pieces against their records: each one is read whole, and its index is rebuilt from its entries.

Besides the bytes (checksums, order, shard) that means everything that is known of a piece without reading it, because a
look-up trusts it: the buckets and expiry keys it spans, its entries, and for every window the buckets and the greatest
expiry key that its record keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bucket_store.errors import StoreError
from bucket_store.log.records import LogState, WindowInfo
from bucket_store.pieces.piece import BucketEntries, PieceHeader, PieceRef, decode_piece
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.findings import Check, Finding, Findings
from deduper.admin.verify.log import KnownCommit, LogHistory, overdue_commits
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import VERSION_REASON, bucket_key
from deduper.window import policy

PIECES_CHECKS = (Check.PIECES_BYTES, Check.PIECES_ORDER, Check.PIECES_INDEX)


@dataclass(frozen=True, slots=True)
class Block:
    """One bucket of a sound piece, as `keys.twice` wants it.

    `at` is where its digests begin in the piece. `cuts`: how many digests lie below each edge of the shard's slices.
    """

    piece: PieceRef
    bucket: int
    at: int
    count: int
    has_expiry: bool
    is_float: bool
    has_origin: bool
    has_window: bool
    cuts: tuple[int, ...]


@dataclass
class SoundPieces:
    """The contents of the readable pieces. `read` counts all that were tried."""

    read: int = 0
    entries: int = 0
    size_bytes: int = 0
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    unread: int = 0


@dataclass
class _Rebuilt:
    """A window's index as the entries of its pieces give it."""

    buckets: set[int] = field(default_factory=set)
    timestamp: int | float | None = None
    has_expiry: bool = True
    entries: int = 0


def check_pieces(
    store: OpenStore,
    state: LogState,
    history: LogHistory,
    source_rows: dict[int, list[int]],
    edges: dict[int, np.ndarray[tuple[int], np.dtype[np.uint64]]],
    findings: Findings,
) -> SoundPieces:
    """Reads every live piece of `state`. `edges`: the slices of each shard, see `admin.verify.keys`.

    A finding counts only if the log still names the piece: beside a running job one may be deleted while it is read.
    """
    findings.run(*PIECES_CHECKS)
    sound = SoundPieces()
    windows: dict[int, _Rebuilt] = {}
    broken: set[int] = set()
    for shard, refs in sorted(state.pieces.items()):
        for ref in refs:
            sound.read += 1
            sound.entries += ref.entries
            sound.size_bytes += ref.length
            own = Findings()
            blocks = _check_piece(store, state, ref, source_rows, edges[shard], windows, own)
            if blocks is None:
                broken.add(ref.first_window)
                sound.unread += 1
            else:
                sound.blocks.setdefault(shard, []).extend(blocks)
            if own.found and ref in store.log.refresh().pieces.get(shard, ()):
                findings.join(own)
    for window, info in sorted(state.windows.items()):
        if window not in broken and window in windows:
            _check_window(store, window, info, windows[window], history.commits.get(window), findings)
    return sound


def check_listed(store: OpenStore, state: LogState, listed: set[tuple[str, str]], findings: Findings) -> None:
    """Every live piece is found by listing its file; one that is not would never be deleted."""
    findings.run(Check.PIECES_LISTED)
    for shard, refs in sorted(state.pieces.items()):
        for ref in refs:
            if (ref.file, ref.name) not in listed and ref in store.log.refresh().pieces.get(shard, ()):
                findings.wrong(
                    Check.PIECES_LISTED,
                    f"piece {ref.name}",
                    file=store.root / ref.file,
                    offset=ref.offset,
                    expected="a file, or a key of a database, that lists it",
                    found="none",
                )


def check_overdue(store: OpenStore, state: LogState, history: LogHistory, findings: Findings) -> None:
    """No dead piece is kept that was due for deletion after the last window but one.

    The owner releases dead pieces in batches, and deletes their bytes after a grace; both once a window. It may be
    doing now, or do at its next window, what is due since the newest one.
    """
    config = store.config
    if config is None:
        findings.skip("the period stands in the job's config", Check.PIECES_OVERDUE)
        return
    settled = next(overdue_commits(history), None)
    newest = history.commits.get(state.next_window - 1)
    if settled is None or newest is None:
        findings.skip("needs two windows of one owner", Check.PIECES_OVERDUE)
        return
    if {settled.record.settings_hash, newest.record.settings_hash} != {policy.settings_hash(config)}:
        findings.skip("the newest windows were judged with other settings than the config's", Check.PIECES_OVERDUE)
        return
    findings.run(Check.PIECES_OVERDUE)
    then = LogState(latest_point=settled.record.latest_point, extra=settled.record.extra, pieces=state.pieces)
    dead = policy.dead_pieces(config, then)
    if len(dead) >= policy.DELETION_BATCH * config.store.shards:
        findings.wrong(
            Check.PIECES_OVERDUE,
            f"pieces that were dead after window {settled.record.window}",
            file=store.root / dead[0].file,
            offset=dead[0].offset,
            expected=f"fewer than {policy.DELETION_BATCH * config.store.shards} of them live",
            found=f"{len(dead)}, the first {dead[0].name}",
        )
    if settled.record.window <= history.last_ahead:
        return
    for retired in state.retired:
        if retired.wall_us + policy.DELETION_GRACE_US <= settled.record.wall_us:
            findings.wrong(
                Check.PIECES_OVERDUE,
                f"piece {retired.ref.name}, which left the store in record {retired.at_number}",
                file=store.root / retired.ref.file,
                offset=retired.ref.offset,
                expected=f"its bytes gone after window {settled.record.window}",
                found="no record says so",
            )


def _check_piece(
    store: OpenStore,
    state: LogState,
    ref: PieceRef,
    source_rows: dict[int, list[int]],
    edges: np.ndarray[tuple[int], np.dtype[np.uint64]],
    windows: dict[int, _Rebuilt],
    findings: Findings,
) -> list[Block] | None:
    """The blocks of a piece; None when it cannot be read."""
    file = store.root / ref.file
    blocks: list[Block] = []
    rebuilt = _Rebuilt()
    try:
        header, buckets = decode_piece(store.pieces.read(ref), file=str(file), offset=ref.offset)
        for index, entries in enumerate(buckets):
            where = _Where(store, state, ref, header, index)
            for finding in _entry_faults(where, entries, source_rows):
                findings.add(finding)
            hi = np.ascontiguousarray(entries.digests[:, 0])
            start, _ = header.block_range(index)
            blocks.append(
                Block(
                    ref,
                    entries.bucket,
                    start,
                    len(hi),
                    entries.expiry is not None,
                    entries.expiry is not None and entries.expiry.dtype == np.float64,
                    entries.origin is not None,
                    entries.window is not None,
                    tuple(np.searchsorted(hi, edges).tolist()),
                )
            )
            _add(rebuilt, entries)
    except (StoreError, OSError) as error:
        findings.failed(Check.PIECES_BYTES, error, f"piece {ref.name}", file=file)
        return None
    for finding in _header_faults(store, state, ref, header, rebuilt):
        findings.add(finding)
    if ref.first_window == ref.last_window:
        _merge(windows.setdefault(ref.first_window, _Rebuilt()), rebuilt)
    return blocks


@dataclass(frozen=True, slots=True)
class _Where:
    """The bucket that is checked."""

    store: OpenStore
    state: LogState
    ref: PieceRef
    header: PieceHeader
    index: int

    def finding(self, check: Check, what: str, *, row: int = 0, expected: object, found: object) -> Finding:
        """A finding at the digest of a row."""
        start, _ = self.header.block_range(self.index)
        return Finding.of(
            check,
            f"piece {self.ref.name}, bucket {int(self.header.buckets[self.index])}: {what}",
            file=self.store.root / self.ref.file,
            offset=self.ref.offset + start + 16 * row,
            expected=expected,
            found=found,
        )


def _entry_faults(where: _Where, entries: BucketEntries, source_rows: dict[int, list[int]]) -> Iterator[Finding]:
    hi, lo = entries.digests[:, 0], entries.digests[:, 1]
    is_behind = (hi[1:] < hi[:-1]) | ((hi[1:] == hi[:-1]) & (lo[1:] <= lo[:-1]))
    if is_behind.any():
        row = int(is_behind.argmax()) + 1
        yield where.finding(
            Check.PIECES_ORDER,
            f"{int(is_behind.sum())} digests out of order",
            row=row,
            expected=f"above {_digest(entries, row - 1)}",
            found=_digest(entries, row),
        )
    yield from _strays(where, entries, "shard", lo % np.uint64(where.store.settings["shards"]), where.ref.shard)
    yield from _bucket_faults(where, entries)
    if entries.expiry is not None:
        stated = (where.header.min_expiry, where.header.max_expiry)
        assert stated[0] is not None
        assert stated[1] is not None
        said = stated[0][where.index].item(), stated[1][where.index].item()
        found = entries.expiry.min().item(), entries.expiry.max().item()
        if said != found:
            yield where.finding(
                Check.PIECES_INDEX, "least and greatest expiry key", expected=found, found=f"{said} in the directory"
            )
    if entries.window is not None:
        first, last = int(entries.window.min()), int(entries.window.max())
        # An entry that a version has moved is older than its piece.
        least = 0 if VERSION_REASON in where.state.reason_totals else where.ref.first_window
        if not least <= first <= last <= where.ref.last_window:
            yield where.finding(
                Check.PIECES_INDEX,
                "windows of the entries",
                expected=f"{least} to {where.ref.last_window}",
                found=f"{first} to {last}",
            )
    elif entries.origin is not None and where.ref.first_window in source_rows:
        sources = len(source_rows[where.ref.first_window])
        ordinal = entries.origin >> POSITION_BITS
        if int(ordinal.min()) < 0 or int(ordinal.max()) >= sources:
            row = int(((ordinal < 0) | (ordinal >= sources)).argmax())
            yield where.finding(
                Check.PIECES_INDEX,
                "origin",
                row=row,
                expected=f"one of the window's {sources} source partitions",
                found=f"number {int(ordinal[row])}",
            )


def _strays(
    where: _Where, entries: BucketEntries, kind: str, homes: np.ndarray[tuple[int], np.dtype[np.uint64]], home: int
) -> Iterator[Finding]:
    """Digests that belong to another shard or bucket than `home`; all of them do when it is below 0."""
    is_stray = homes != np.uint64(home) if home >= 0 else np.ones(len(homes), np.bool_)
    if is_stray.any():
        row = int(is_stray.argmax())
        yield where.finding(
            Check.PIECES_ORDER,
            f"{int(is_stray.sum())} digests of other {kind}s",
            row=row,
            expected=f"{kind} {home}",
            found=f"{_digest(entries, row)} of {kind} {int(homes[row])}",
        )


def _bucket_faults(where: _Where, entries: BucketEntries) -> Iterator[Finding]:
    """Whether the entries belong into the bucket they lie in."""
    settings = where.store.settings
    by, bucket = settings["expiry.by"], entries.bucket
    if by == "never":
        yield from _strays(
            where, entries, "bucket", entries.digests[:, 0] % np.uint64(settings["expiry.buckets"]), bucket
        )
    elif by == "category":
        places = policy.category_state(where.state).next_place
        if not 0 <= bucket < places:
            yield where.finding(Check.PIECES_INDEX, "place of the category", expected=f"below {places}", found=bucket)
    elif entries.expiry is not None:
        # Bucket keys never decrease, so the ends stand for all between them.
        for row in (int(entries.expiry.argmin()), int(entries.expiry.argmax())):
            found = bucket_key(entries.expiry[row].item(), settings["expiry.span"])
            if found != bucket:
                yield where.finding(
                    Check.PIECES_ORDER,
                    "an entry of another bucket",
                    row=row,
                    expected=f"bucket {bucket}",
                    found=f"expiry key {entries.expiry[row].item()} of bucket {found}",
                )
                return


def _header_faults(
    store: OpenStore, state: LogState, ref: PieceRef, header: PieceHeader, rebuilt: _Rebuilt
) -> Iterator[Finding]:
    def finding(check: Check, what: str, expected: object, found: object) -> Finding:
        return Finding.of(
            check,
            f"piece {ref.name}: {what}",
            file=store.root / ref.file,
            offset=ref.offset,
            expected=expected,
            found=found,
        )

    if header.store_id.hex() != store.log.manifest.store_id:
        yield finding(Check.PIECES_BYTES, "store", store.log.manifest.store_id, header.store_id.hex())
    actual = header.to_ref(file=ref.file, name=ref.name, offset=ref.offset)
    for name in ("shard", "length", "checksum", "first_window", "last_window", "entries"):
        if getattr(actual, name) != getattr(ref, name):
            yield finding(Check.PIECES_BYTES, name, f"{getattr(ref, name)} as its record says", getattr(actual, name))
    index = (
        ("entries", rebuilt.entries, ref.entries),
        ("least bucket", min(rebuilt.buckets), ref.min_bucket),
        ("greatest bucket", max(rebuilt.buckets), ref.max_bucket),
        ("greatest expiry key", rebuilt.timestamp if rebuilt.has_expiry else None, ref.max_expiry),
    )
    for what, expected, stated in index:
        if expected != stated:
            yield finding(Check.PIECES_INDEX, what, expected, f"{stated} in its record")
    if header.epoch > state.epoch or ref.last_window >= state.next_window:
        yield finding(
            Check.PIECES_INDEX,
            "epoch and window",
            f"up to epoch {state.epoch}, window {state.next_window - 1}",
            f"epoch {header.epoch}, window {ref.last_window}",
        )


def _check_window(
    store: OpenStore,
    window: int,
    info: WindowInfo,
    rebuilt: _Rebuilt,
    known: KnownCommit | None,
    findings: Findings,
) -> None:
    """*Window to buckets* and *window to timestamp*; of a window that has lost pieces only that they span the rest."""
    own = [ref for refs in store.log.state.pieces.values() for ref in refs if ref.first_window == window]
    if known is not None:
        is_whole = {ref.name for ref in known.record.pieces} <= {ref.name for ref in own}
    else:
        # A window of versions may have moved entries: their number does not say whether it has lost any.
        moves = VERSION_REASON in store.log.state.reason_totals
        is_whole = rebuilt.entries == info.counts.get("unique") and not moves
    stated = set(info.buckets)
    file = known.file if known is not None else store.root / "log"
    if (
        not rebuilt.buckets <= stated
        or (is_whole and rebuilt.buckets != stated)
        or list(info.buckets) != sorted(stated)
    ):
        findings.wrong(
            Check.PIECES_INDEX,
            f"window {window}: buckets of the window",
            file=file,
            expected=sorted(rebuilt.buckets),
            found=list(info.buckets),
        )
    if not rebuilt.has_expiry or rebuilt.timestamp is None:
        return
    is_low = info.timestamp is None or info.timestamp < rebuilt.timestamp
    if is_low or (is_whole and info.timestamp != rebuilt.timestamp):
        findings.wrong(
            Check.PIECES_INDEX,
            f"window {window}: greatest expiry key of the window",
            file=file,
            expected=rebuilt.timestamp,
            found=info.timestamp,
        )


def _add(rebuilt: _Rebuilt, entries: BucketEntries) -> None:
    rebuilt.buckets.add(entries.bucket)
    rebuilt.entries += len(entries.digests)
    if entries.expiry is None:
        rebuilt.has_expiry = False
    else:
        rebuilt.timestamp = _greatest((rebuilt.timestamp, entries.expiry.max().item()))


def _merge(window: _Rebuilt, piece: _Rebuilt) -> None:
    window.buckets |= piece.buckets
    window.entries += piece.entries
    window.has_expiry &= piece.has_expiry
    window.timestamp = _greatest((window.timestamp, piece.timestamp))


def _greatest(points: Iterable[int | float | None]) -> int | float | None:
    return max((point for point in points if point is not None), default=None)


def _digest(entries: BucketEntries, row: int) -> str:
    hi, lo = entries.digests[row].tolist()
    return f"{hi:016x}{lo:016x}"
