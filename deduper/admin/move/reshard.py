"""`reshard`: divides the keys of a store among another number of shards, in place.

a  claim an epoch, as a start does: no job runs, and no older owner can commit anything
b  part by part, pieces of one time bucket up to a number of bytes: read them, merge them as compaction does, write
   their entries as one piece a new shard, and note the part (`admin.move.progress`)
c  read back all new pieces: count and checksum are those of b, and every key lies in its shard
d  one rebase record: the new pieces and the new number of shards count, the old pieces are retired
e  remove the notes

Every entry keeps its bucket, expiry key, origin and window, so verdicts, first copies and expiry stay as they are.
Broken off before d, the store is as it was, and the next run continues with the next part. Memory is bounded by a part,
or by the largest piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.pieces.compaction import merge
from bucket_store.pieces.piece import BucketEntries, Entries, PieceRef
from bucket_store.pieces.reader import PieceReader, decode_named
from bucket_store.pieces.store import append_piece
from deduper.admin.move.key_sum import KeySum, sum_of, sum_of_all
from deduper.admin.move.owning import OwnedStore, owning, with_pieces
from deduper.admin.move.progress import MovedPart, Progress
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.core.digests import shards_of
from deduper.errors import IntegrityError, UsageError
from deduper.window.owner_alive import owner_lives
from deduper.window.policy import time_bucket_of

PART_BYTES = 32 << 20
"""Bytes of pieces in a part."""
MEMORY_PER_PART_BYTE = 16
"""A process takes about so much memory for each."""
_LEAST_PIECE_BYTES = 256 << 10
"""Of many new shards a part has more, so that pieces do not become tiny."""

OnPart = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ReshardReport(AsJson):
    """What is moved, and the proof.

    `parts_finished`: of an interrupted run before. `before` and `after` are None in a plan. `superseded` are entries
    for whose key a later one is remembered in the same bucket: compaction leaves them out too.
    """

    json_names = (
        *("is_executed", "shards_before", "shards_after", "pieces_before", "pieces_after", "keys", "size_bytes"),
        *("parts", "parts_finished", "before", "superseded", "after", "is_sound"),
    )

    shards_before: int
    shards_after: int
    pieces_before: int
    keys: int
    size_bytes: int
    parts: int
    parts_finished: int
    pieces_after: int = 0
    before: KeySum | None = None
    superseded: KeySum | None = None
    after: KeySum | None = None

    @property
    def is_executed(self) -> bool:
        """The new shards count."""
        return self.after is not None

    @property
    def is_needed(self) -> bool:
        """The number of shards changes."""
        return self.shards_before != self.shards_after

    @property
    def is_sound(self) -> bool | None:
        """Whether all keys before are there after; None in a plan."""
        if self.before is None or self.superseded is None:
            return None
        return self.before - self.superseded == self.after


def plan_reshard(store: OpenStore, shards: int, *, part_bytes: int = PART_BYTES) -> ReshardReport:
    """What `reshard` is to do. Changes nothing; safe beside a running job.

    Raises:
        UsageError: no such number of shards.
    """
    if not 1 <= shards <= 4096:
        raise UsageError(f"--shards {shards}: write a number from 1 to 4096")
    state = store.log.state
    refs = [ref for of_shard in state.pieces.values() for ref in of_shard]
    now = store.settings["shards"]
    return ReshardReport(
        shards_before=now,
        shards_after=shards,
        pieces_before=len(refs),
        keys=sum(ref.entries for ref in refs),
        size_bytes=sum(ref.length for ref in refs),
        parts=len(_parts(store, shards, part_bytes)) if now != shards else 0,
        parts_finished=_progress(store, shards, part_bytes).finished(state.epoch),
    )


def reshard(
    store: OpenStore,
    shards: int,
    *,
    part_bytes: int = PART_BYTES,
    on_part: OnPart | None = None,
    now_us: int | None = None,
) -> ReshardReport:
    """Divides the keys among so many shards, in the steps at the top. `on_part` is called with (finished, all).

    Raises:
        UsageError: no such number of shards.
        OwnerAliveError: a job runs on the store.
        CorruptionError: a piece is damaged.
        IntegrityError: the new pieces have other keys; nothing was changed.
        SpaceError: no room for the new pieces beside the old ones; nothing was changed.
        FencedError: a job has taken the store meanwhile; nothing was changed.
    """
    planned = plan_reshard(store, shards, part_bytes=part_bytes)
    if not planned.is_needed:
        if not owner_lives(store.log.root):
            _progress(store, shards, part_bytes).remove()  # left by a run that died after its record
        return planned
    with owning(store, now_us) as owned:
        return _Resharding(owned, shards, part_bytes, planned, on_part or (lambda *_: None)).run()


class _Resharding:
    """Steps b to e of one run."""

    def __init__(
        self, owned: OwnedStore, shards: int, part_bytes: int, planned: ReshardReport, on_part: OnPart
    ) -> None:
        self._owned = owned
        self._store = owned.store
        self._shards = shards
        self._planned = planned
        self._on_part = on_part
        self._parts = _parts(owned.store, shards, part_bytes)
        self._progress = _progress(owned.store, shards, part_bytes)

    def run(self) -> ReshardReport:
        # The claim before ours: the log has no other one between, since it was read for the claim.
        last_epoch = self._owned.epoch - 1
        finished = self._progress.finished(last_epoch)
        self._progress.begin(last_epoch, self._owned.epoch)
        moved = []
        try:
            for number, refs in enumerate(self._parts):
                self._on_part(number, len(self._parts))
                moved.append(self._progress.part(number) or self._move(number, refs))
        finally:
            self._store.pieces.close_writers()
        self._on_part(len(self._parts), len(self._parts))
        before = sum((KeySum(part.read_count, part.read_checksum) for part in moved), KeySum())
        kept = sum((KeySum(part.kept_count, part.kept_checksum) for part in moved), KeySum())
        added = tuple(ref for part in moved for ref in part.added)
        try:
            after = self._read_back(added)
        except (CorruptionError, IntegrityError):
            self._progress.remove()  # the next run writes them anew
            raise
        if after != kept:
            self._progress.remove()
            raise IntegrityError(
                f"{self._store.root}: the pieces of the new shards hold {after}, not {kept}; nothing was changed"
            )
        state = with_pieces(self._store.log.state, _by_shard(added))
        self._owned.rebase(
            replace(state, shards=self._shards),
            action="reshard",
            shards=[self._planned.shards_before, self._shards],
            keys=after.count,
            checksum=after.checksum_hex,
        )
        self._progress.remove()
        return replace(
            self._planned,
            parts_finished=finished,
            pieces_after=len(added),
            before=before,
            superseded=before - kept,
            after=after,
        )

    def _move(self, number: int, refs: Sequence[PieceRef]) -> MovedPart:
        """Step b for one part."""
        store_id = self._store.log.manifest.store_id
        read = KeySum()
        blocks: list[tuple[PieceRef, list[BucketEntries]]] = []
        for ref in refs:
            blocks.append((ref, decode_named(ref, self._store.pieces.read(ref), store_id)))
            read += sum_of_all(blocks[-1][1], ref.first_window)
        merged = merge(blocks, live_from_bucket=None, expiry_point=None)
        blocks.clear()
        kept, added = KeySum(), []
        for shard in range(self._shards):
            entries = None if merged is None else _of_shard(merged, shard, self._shards)
            if entries is None:
                continue
            kept += sum_of_all(map(entries.bucket, range(len(entries.bucket_keys))), 0)
            added.append(
                append_piece(
                    self._store.pieces,
                    entries,
                    store_id=bytes.fromhex(store_id),
                    shard=shard,
                    first_window=min(ref.first_window for ref in refs),
                    last_window=max(ref.last_window for ref in refs),
                    epoch=self._owned.epoch,
                    attempt=0,
                    stays_open=True,
                )
            )
            failpoints.hit("reshard.appended")
        part = MovedPart(tuple(added), read.count, read.checksum, kept.count, kept.checksum)
        self._progress.add(number, part)
        failpoints.hit("reshard.moved")
        return part

    def _read_back(self, added: Sequence[PieceRef]) -> KeySum:
        """Step c: what the store has under the new names."""
        reader = PieceReader(self._store.pieces, self._store.log.manifest.store_id)
        found = KeySum()
        for ref in added:
            for _, entries in reader.read_all(reader.all_parts([ref])):
                if (shards_of(entries.digests, self._shards) != ref.shard).any():
                    raise IntegrityError(f"{ref.file}: piece {ref.name} has keys of another shard; nothing was changed")
                found += sum_of(entries, ref.first_window)
        failpoints.hit("reshard.proven")
        return found


def _parts(store: OpenStore, shards: int, part_bytes: int) -> list[tuple[PieceRef, ...]]:
    """The live pieces in groups: each of one time bucket, so that what expires together stays together."""
    settings = store.settings
    time_bucket = partial(time_bucket_of, settings["expiry.lookup"], settings["expiry.by"], settings.get("expiry.span"))
    refs = [ref for of_shard in store.log.state.pieces.values() for ref in of_shard]
    refs.sort(key=lambda ref: (time_bucket(ref), ref.first_window, ref.last_window, ref.shard, ref.name))
    limit = max(part_bytes, shards * _LEAST_PIECE_BYTES)
    parts: list[list[PieceRef]] = []
    size = 0
    for ref in refs:
        if not parts or size + ref.length > limit or time_bucket(parts[-1][0]) != time_bucket(ref):
            parts.append([])
            size = 0
        parts[-1].append(ref)
        size += ref.length
    return [tuple(part) for part in parts]


def _of_shard(merged: Entries, shard: int, shards: int) -> Entries | None:
    """The entries of one shard; None when there are none."""
    is_here = shards_of(merged.digests, shards) == shard
    counts = np.add.reduceat(is_here.astype(np.int64), merged.bucket_starts[:-1])
    has_some = counts > 0
    if not has_some.any():
        return None
    return Entries(
        bucket_keys=merged.bucket_keys[has_some],
        bucket_starts=np.concatenate(([0], np.cumsum(counts[has_some]))).astype(np.int64),
        digests=np.ascontiguousarray(merged.digests[is_here]),
        expiry=None if merged.expiry is None else merged.expiry[is_here],
        origin=None if merged.origin is None else merged.origin[is_here],
        window=None if merged.window is None else merged.window[is_here],
        fingerprint=None if merged.fingerprint is None else merged.fingerprint[is_here],
    )


def _by_shard(refs: Sequence[PieceRef]) -> dict[int, tuple[PieceRef, ...]]:
    return {shard: tuple(ref for ref in refs if ref.shard == shard) for shard in {ref.shard for ref in refs}}


def _progress(store: OpenStore, shards: int, part_bytes: int) -> Progress:
    return Progress(store.log.root, store.log.state, shards, part_bytes)
