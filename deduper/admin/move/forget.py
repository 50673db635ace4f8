"""`forget`: takes one key out of a store, at once and with an audit that names its digest, never its value.

a  claim an epoch, as a start does
b  write each live piece that has the key anew, without it, and read it back
c  place an audit, `<store>/audit/<epoch>.json`: digest, time, who, how many entries
d  one rebase record: the new pieces take the place of the old ones, and no machine judges by tables that still have the
   key

The job deletes the bytes of the old pieces after the grace. Broken off before d, the store is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.pieces.compaction import merge
from bucket_store.pieces.piece import BucketEntries, PieceRef
from bucket_store.pieces.reader import decode_named
from bucket_store.pieces.store import append_piece
from bucket_store.places.new_file import create_own
from deduper.admin.keys.stored import digests_of, find_key
from deduper.admin.move.key_sum import KeySum, sum_of_all
from deduper.admin.move.owning import OwnedStore, owning, with_pieces
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.core.digests import KeyValue
from deduper.errors import IntegrityError
from deduper.units import format_time
from deduper.window.owner_alive import own_name

AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class ForgetReport(AsJson):
    """What is forgotten, and the proof: sums over the pieces that had the key. Both are None in a plan.

    `entries`: of the key and its versions, one a bucket that has it. `audit`: the file, once it is done.
    """

    json_names = ("is_executed", "digest", "shard", "entries", "pieces", "keys", "before", "after", "audit")

    digest: str
    shard: int
    entries: int
    pieces: int
    keys: int
    before: KeySum | None = None
    after: KeySum | None = None
    audit: str | None = None

    @property
    def is_executed(self) -> bool:
        """The key is forgotten."""
        return self.after is not None


def plan_forget(store: OpenStore, key: Sequence[KeyValue]) -> ForgetReport:
    """What `forget` is to do. Changes nothing; safe beside a running job.

    Raises:
        CorruptionError: a piece is damaged.
        ValueError: a value that is none of its column's type.
    """
    (hi, lo), shard, entries = find_key(store, key)
    names = {entry.piece for entry in entries}
    held = [ref for ref in store.log.state.pieces.get(shard, ()) if ref.name in names]
    keys = sum(ref.entries for ref in held)
    return ForgetReport(f"{hi:016x}{lo:016x}", shard, len(entries), len(held), keys)


def forget(store: OpenStore, key: Sequence[KeyValue], *, now_us: int | None = None) -> ForgetReport:
    """Forget a key, in the steps at the top; a key that is not remembered changes nothing.

    Raises:
        OwnerAliveError: a job runs on the store.
        CorruptionError, ValueError: as `plan_forget`.
        IntegrityError: the new pieces have other keys; nothing was changed.
        FencedError: a job has taken the store meanwhile; nothing was changed.
    """
    planned = plan_forget(store, key)
    if not planned.entries:
        return planned
    with owning(store, now_us) as owned:
        return _forget(owned, plan_forget(store, key))


def _forget(owned: OwnedStore, planned: ForgetReport) -> ForgetReport:
    store, state = owned.store, owned.store.log.state
    digests = np.array(digests_of(store, (int(planned.digest[:16], 16), int(planned.digest[16:], 16))), np.uint64)
    before, gone, after = KeySum(), KeySum(), KeySum()
    pieces = []
    for ref in state.pieces.get(planned.shard, ()):
        blocks = _blocks(store, ref)
        without = [_without(block, digests) for block in blocks]
        if all(len(one.digests) == len(block.digests) for one, block in zip(without, blocks, strict=True)):
            pieces.append(ref)
            continue
        of_piece = _sum(blocks, ref)
        before += of_piece
        gone += of_piece - _sum(without, ref)
        entries = merge([(ref, without)], live_from_bucket=None, expiry_point=None)
        if entries is None:
            continue
        added = append_piece(
            store.pieces,
            entries,
            store_id=bytes.fromhex(store.log.manifest.store_id),
            shard=ref.shard,
            first_window=ref.first_window,
            last_window=ref.last_window,
            epoch=owned.epoch,
            attempt=0,
        )
        after += _sum(_blocks(store, added), added)
        pieces.append(added)
        failpoints.hit("forget.appended")
    if before - gone != after or gone.count != planned.entries:
        raise IntegrityError(f"{store.root}: {before} without {gone} gave {after}; nothing was changed")
    audit = store.root / AUDIT / f"{owned.epoch:06d}.json"
    audit.parent.make_directories()
    text = {
        "action": "forget",
        "digest": planned.digest,
        "entries": gone.count,
        "at": format_time(owned.wall_us),
        "by": own_name(),
        "epoch": owned.epoch,
    }
    create_own(audit, json.dumps(text, indent=2).encode() + b"\n")
    failpoints.hit("forget.audited")
    moved = {**state.pieces, planned.shard: tuple(pieces)}
    owned.rebase(with_pieces(store.log.state, moved), action="forget", digest=planned.digest, entries=gone.count)
    return replace(planned, before=before, after=after, audit=str(audit))


def _blocks(store: OpenStore, ref: PieceRef) -> list[BucketEntries]:
    return decode_named(ref, store.pieces.read(ref), store.log.manifest.store_id)


def _without(block: BucketEntries, digests: NDArray[np.uint64]) -> BucketEntries:
    """Without the digests of a key, whose lo is one."""
    kept = ~np.isin(block.digests[:, 0], digests[:, 0]) | (block.digests[:, 1] != digests[0, 1])
    return block if kept.all() else block.chosen(kept)


def _sum(blocks: Sequence[BucketEntries], ref: PieceRef) -> KeySum:
    return sum_of_all(blocks, ref.first_window)
