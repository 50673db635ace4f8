"""The rules for judging a window, from configuration and committed state: clock, verdicts, views, fixed settings.

Everything here is a function of (configuration, committed state, intent's wall clock): a replay gets the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bucket_store.log.commit_log import DEFAULT_SNAPSHOT_EVERY
from bucket_store.log.manifest import Manifest
from bucket_store.log.records import ExpiryKey
from bucket_store.log.state import LogState
from bucket_store.pieces import compaction
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.piece import PieceRef
from bucket_store.tables.generation import table_folder
from bucket_store.tables.manager import TableLayout
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry, NeverExpiry, OrderedExpiry
from deduper.core.categories import CategoryState
from deduper.core.clock import ClockRules
from deduper.core.lookups import JudgeRules
from deduper.core.statistics import Statistics
from deduper.core.verdict import bucket_key, expiry_point, first_live_bucket
from deduper.spark_promises import store_settings

CATEGORIES, STATISTICS, FINGERPRINT = "categories", "statistics", "fingerprint"
DELETION_BATCH = 8
"""A deletion record is placed once this many pieces a shard are dead: each costs two syncs."""
_DEAD_SHARE = 32
_DEAD_BYTES = 8 << 20
"""It is placed sooner if so many bytes are dead, and one in `_DEAD_SHARE` of all: merged pieces are few."""
_LEAST_SNAPSHOT_EVERY = 50
_BUCKETS_OF_NEVER = 64
"""Keys that never expire are hashed into so many: tables are loaded and advanced by bucket. The store has it too.

A large store has more shards, not more buckets."""
DELETION_GRACE_US = 600_000_000
"""A piece that left the log keeps its bytes for so long, for commands that still read the store."""


def fixed_settings(config: Config) -> dict[str, Any]:
    """The settings that a store keeps for life: with others, its bytes would mean something else."""
    columns = [f"{column.name} {column.type.text}" for column in config.key_columns]
    fixed: dict[str, Any] = {
        "key": columns,
        "null_keys": config.null_keys,
        "digest": config.digest,
        "shards": config.store.shards,
        "first_seen": config.store.first_seen,
        "expiry.by": config.expiry.by,
        "expiry.lookup": config.lookup,
    }
    if config.expiry_column is not None:
        fixed["expiry.field"] = f"{config.expiry_column.name} {config.expiry_column.type.text}"
    if isinstance(config.expiry, EventTimeExpiry) and config.expiry.unit:
        fixed["expiry.unit"] = config.expiry.unit
    if config.span_steps is not None:
        fixed["expiry.span"] = config.span_steps
    if isinstance(config.expiry, NeverExpiry):
        fixed["expiry.buckets"] = _BUCKETS_OF_NEVER
    return fixed | _zone(config)


def snapshot_every(shards: int) -> int:
    """Log records of a new store from one snapshot to the next.

    A start reads all records since the newest snapshot. A record has a piece of every shard, a snapshot all live ones,
    some 50 a shard: so 50 records have about four times the bytes of a snapshot, whatever the number of shards.
    """
    return max(_LEAST_SNAPSHOT_EVERY, DEFAULT_SNAPSHOT_EVERY * min(8, shards) // shards)


def _zone(config: Config) -> dict[str, str]:
    """The setting of the session's zone, if it decides what key or expiry key a record has."""
    columns = [*config.key_columns, *([] if config.expiry_column is None else [config.expiry_column])]
    return store_settings(config.spark) if any(column.type.name == "timestamp" for column in columns) else {}


def stored_settings(manifest: Manifest, state: LogState) -> dict[str, Any]:
    """The fixed settings of a store: of its manifest, and the present shards."""
    moved = {"shards": state.shards} if state.shards else {}
    return {**manifest.settings, **moved}


def changed_settings(config: Config, stored: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """(the store's, the configuration's) of every fixed setting that differs, by name."""
    return differing(fixed_settings(config), stored)


def differing(given: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """(stored, given) of every setting that differs, by name."""
    names = sorted(stored.keys() | given.keys())
    return {name: (stored.get(name), given.get(name)) for name in names if stored.get(name) != given.get(name)}


def settings_hash(config: Config) -> str:
    """A hash of all settings that a verdict depends on; an intent is repeated only under the same."""
    judged_by = {
        **fixed_settings(config),
        "expiry": config.expiry.model_dump(mode="json"),
        "fingerprint": [config.payload_identity, *_conflicts(config)] if config.has_fingerprint else None,
        **config.source.reading,
    }
    text = json.dumps(judged_by, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def judge_rules(config: Config, state: LogState, wall_us: int) -> JudgeRules:
    """The rules of the window after `state`."""
    return JudgeRules(
        by=config.expiry.by,
        lookup_all_live=config.lookup == "all_live",
        float_domain=config.expiry_key_scale.is_float,
        period=config.period_steps or 0,
        span=config.span_steps or 1,
        buckets=_BUCKETS_OF_NEVER if isinstance(config.expiry, NeverExpiry) else 1,
        keep_first_seen=config.store.first_seen,
        latest=processing_point(state, wall_us) if config.expiry.by == "processing_time" else state.latest_point,
        is_time=config.expiry_key_scale.is_time,
        takes_later=config.is_of_outputs and config.lookup == "all_live",
        has_fingerprint=config.has_fingerprint,
        refuses_conflicts=config.may_refuse_conflicts and not config.keeps_versions,
        most_versions=config.max_versions if config.keeps_versions else 0,
    )


def processing_point(state: LogState, wall_us: int) -> int:
    """Latest point of the window after `state` by processing time: the wall clock, as long as that never goes back.

    If the clock was far ahead, the latest point continues from its value by the time that has passed since the first
    window with the right clock. So it never goes back, and a key is remembered for one period by either clock.
    """
    if state.latest_point is None or state.latest_moved_us is None:
        return wall_us
    return int(state.latest_point) + max(0, wall_us - state.latest_moved_us)


def moved_us(state: LogState, latest: ExpiryKey | None, wall_us: int) -> int | None:
    """Wall clock at which the latest point moved last, after a window at `wall_us` that ends with `latest`.

    If a clock far ahead has moved it, it counts as moved now: otherwise no silence would count until that time.
    """
    moved = state.latest_moved_us
    return wall_us if latest != state.latest_point or (moved is not None and moved > wall_us) else moved


def clock_rules(config: Config, state: LogState, wall_us: int) -> ClockRules | None:
    """The clock of the window after `state`; None for the expiries whose tuples move none."""
    if not isinstance(config.expiry, EventTimeExpiry | OrderedExpiry):
        return None
    is_time = isinstance(config.expiry, EventTimeExpiry)
    quiet_us = wall_us - state.latest_moved_us if is_time and state.latest_moved_us is not None else 0
    return ClockRules(
        float_domain=config.expiry_key_scale.is_float,
        period=config.period_steps or 0,
        max_ahead_of_now_us=config.expiry.max_ahead_of_now if isinstance(config.expiry, EventTimeExpiry) else None,
        max_jump=config.max_jump_steps,
        now_us=wall_us,
        latest=state.latest_point,
        quiet_us=max(0, quiet_us),
    )


def table_layout(config: Config, state: LogState | None = None) -> TableLayout:
    """The columns of the resident tables of the window after `state`; without one, those of a new store."""
    all_live = config.lookup == "all_live"
    return TableLayout(
        has_expiry=config.period_steps is not None and (all_live or config.store.first_seen),
        float_expiry=config.expiry_key_scale.is_float,
        has_origin=config.store.first_seen,
        one_table=all_live,
        fingerprints_since=fingerprints_since(config, LogState() if state is None else state),
    )


def fingerprints_since(config: Config, state: LogState) -> int | None:
    """Fingerprints of entries from this window on are comparable with those of the window after `state`.

    It is that window if the store has none yet, or of other columns. None: payloads are not compared.
    """
    if not config.has_fingerprint:
        return None
    stored = state.extra.get(FINGERPRINT)
    if stored is None or list(stored[:2]) != [1, config.payload_identity]:
        return state.next_window
    return int(stored[2])


def fingerprint_after(config: Config, state: LogState) -> dict[str, Any]:
    """What the commit after `state` notes of fingerprints; while they are off, the newest note stays."""
    since, stored = fingerprints_since(config, state), state.extra.get(FINGERPRINT)
    if since is not None:
        return {FINGERPRINT: [1, config.payload_identity, since, *_conflicts(config)]}
    return {} if stored is None else {FINGERPRINT: [*stored[:3], None]}


def _conflicts(config: Config) -> tuple[str] | tuple[str, int]:
    """What becomes of conflicts, and how many versions a key may have where they are such."""
    return (config.on_conflict, config.max_versions) if config.keeps_versions else (config.on_conflict,)


def category_state(state: LogState) -> CategoryState:
    """The live categories as the last commit left them."""
    wire = state.extra.get(CATEGORIES)
    return CategoryState() if wire is None else CategoryState.from_wire(wire)


def statistics_of(state: LogState) -> Statistics:
    """The statistics as the last commit left them."""
    return Statistics.from_wire(state.extra.get(STATISTICS))


def live_from_bucket(config: Config, state: LogState) -> int | None:
    """The least bucket key that is not dead; None when nothing is."""
    if config.expiry.by == "category":
        return category_state(state).first_live_place
    if config.period_steps is None or config.span_steps is None:
        return None
    return first_live_bucket(state.latest_point, config.period_steps, config.span_steps)


def dead_pieces(config: Config, state: LogState) -> tuple[PieceRef, ...]:
    """Live pieces in which every entry is dead. O(pieces); no key is read."""
    dead_of = _dead_of(config, state)
    return tuple(piece for pieces in state.pieces.values() for piece in dead_of(pieces))


def are_many_bytes(dead: Sequence[PieceRef], state: LogState) -> bool:
    """Whether dead pieces take so large a share of the store's bytes that a deletion record is due now."""
    size = sum(piece.length for piece in dead)
    if size < _DEAD_BYTES:
        return False
    return size * _DEAD_SHARE >= sum(piece.length for pieces in state.pieces.values() for piece in pieces)


def _dead_of(config: Config, state: LogState) -> Callable[[Sequence[PieceRef]], list[PieceRef]]:
    """A function that gives the wholly dead among a shard's pieces; made once, since a window has tens of thousands."""
    if config.lookup == "all_live":
        point = None if config.period_steps is None else expiry_point(state.latest_point, config.period_steps)
        if point is None:
            return lambda _: []
        return lambda pieces: [one for one in pieces if one.max_expiry is not None and one.max_expiry <= point]
    live_from = live_from_bucket(config, state)
    if live_from is None:
        return lambda _: []
    return lambda pieces: [piece for piece in pieces if piece.max_bucket < live_from]


def _without(pieces: tuple[PieceRef, ...], dead: Sequence[PieceRef]) -> tuple[PieceRef, ...]:
    if not dead:
        return pieces
    gone = set(dead)
    return tuple(piece for piece in pieces if piece not in gone)


def entry_expiry_point(config: Config, state: LogState) -> int | float | None:
    """A single entry is dead at or below this expiry key; None where entries die with their bucket."""
    if config.lookup != "all_live" or config.period_steps is None:
        return None
    return expiry_point(state.latest_point, config.period_steps)


def time_bucket(config: Config, piece: PieceRef) -> int:
    """See `time_bucket_of`."""
    return time_bucket_of(config.lookup, config.expiry.by, config.span_steps, piece)


def time_bucket_of(lookup: str, by: str, span: int | float | None, piece: PieceRef) -> int:
    """The time bucket at whose end a live piece is dead; pieces of one bucket may be merged. 0 if nothing expires.

    `lookup`, `by` and `span` are those of `expiry`, as the store has them (`fixed_settings`).
    """
    if lookup == "all_live":
        return 0 if span is None or piece.max_expiry is None else bucket_key(piece.max_expiry, span)
    return 0 if by == "never" else piece.max_bucket


def next_compactions(config: Config, store_id: str, state: LogState) -> list[CompactionTask]:
    """The live pieces to merge now, of the shards with the most of them first; one task a shard."""
    dead_of = _dead_of(config, state)
    worth: list[tuple[PieceRef, ...]] = []
    for shard, pieces in state.pieces.items():
        fewest = compaction.fewest_live(shard, config.store.shards)
        if len(pieces) < fewest:
            continue
        live = _without(pieces, dead_of(pieces))
        if chosen := compaction.choose(live, lambda piece: time_bucket(config, piece), fewest=fewest):
            worth.append(chosen)
    tasks: list[CompactionTask] = []
    live_from, point = live_from_bucket(config, state), entry_expiry_point(config, state)
    size = 0
    for chosen in sorted(worth, key=len, reverse=True)[: compaction.MOST_TASKS]:
        size += sum(piece.length for piece in chosen)
        if tasks and size > compaction.MOST_TASKS_BYTES:
            break
        tasks.append(CompactionTask(chosen, store_id, state.epoch, live_from, point))
    return tasks


def shard_views(config: Config, manifest: Manifest, state: LogState) -> tuple[ShardView, ...]:
    """The store as the tasks of the next window see it, one view a shard."""
    live_from = live_from_bucket(config, state)
    point = None if config.period_steps is None else expiry_point(state.latest_point, config.period_steps)
    dead_of = _dead_of(config, state)
    folder = table_folder(manifest.store_id, config.store.place)
    return tuple(
        ShardView(
            store_id=manifest.store_id,
            folder=folder,
            lineage=state.lineage,
            shard=shard,
            next_window=state.next_window,
            pieces=_without(pieces, dead_of(pieces)),
            live_from_bucket=live_from,
            expiry_point=point,
        )
        for shard, pieces in ((shard, state.pieces.get(shard, ())) for shard in range(config.store.shards))
    )
