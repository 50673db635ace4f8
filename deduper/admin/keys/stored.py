"""What a store has of one key, and the verdict of a copy that comes next. Reads beside a running job, locks nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bucket_store.log.records import LogState
from bucket_store.log.wall_clock import next_wall_us
from deduper.admin.keys.entries import find_key, origin_of
from deduper.admin.keys.forecast import CopyForecast, Forecaster, StoredEntry, category_of, new_category
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.core.digests import KeyValue
from deduper.core.verdict import first_live_bucket
from deduper.window.policy import category_state, processing_point


@dataclass(frozen=True, slots=True)
class KeyEntry(AsJson):
    """One remembered copy of a key.

    `expiry_key`, `source` and `row` are None when the store does not keep them (`first_seen: false`); the source also
    when its window's sources file is gone. `is_live` is None when the period is not known, because the store was
    opened without a config. `until` names the event that ends the copy.
    """

    window: int
    bucket: int
    piece: str
    expiry_key: str | int | float | None
    source: str | None
    row: int | None
    is_live: bool | None
    until: str


@dataclass(frozen=True, slots=True)
class StoredKey(AsJson):
    """The stored copies of a key, and the verdicts of copies that may come next.

    `entries` may hold copies that are dead but not yet deleted. `next` is empty when the store was opened without a
    config, because a verdict depends on the period.
    """

    json_names = ("key", "digest", "shard", "is_remembered", "next", "entries")

    key: dict[str, str | None]
    digest: str
    shard: int
    expiry_field: str | None
    next: tuple[CopyForecast, ...]
    entries: tuple[KeyEntry, ...]

    @property
    def is_remembered(self) -> bool | None:
        """Whether a live copy is there; None when there are copies, and that cannot be said of any."""
        if any(entry.is_live for entry in self.entries):
            return True
        return None if any(entry.is_live is None for entry in self.entries) else False


def stored_key(
    store: OpenStore,
    values: Sequence[KeyValue],
    *,
    asked: Sequence[int | float | str] = (),
    now_us: int | None = None,
) -> StoredKey:
    """Finds the key in every live piece of its shard, and judges copies that may come at `now_us` (None: now).

    `asked` are expiry keys in stored steps, or categories, of further copies to judge.

    Raises:
        CorruptionError: a piece is damaged.
        ValueError: a value that is none of its column's type.
    """
    wall_us = next_wall_us(store.log.state.last_wall_us, time.time_ns() // 1000 if now_us is None else now_us)
    digest, shard, found = find_key(store, values)
    columns = store.key_columns
    key = {column.name: None if value is None else str(value) for column, value in zip(columns, values, strict=True)}
    copies: tuple[CopyForecast, ...] = ()
    if store.config is not None:
        forecaster = Forecaster(store.config, store.log.state, digest, found, None in values, wall_us)
        copies = tuple(_copies(store, forecaster, asked))
    # An entry that a version has moved is the same copy; without `first_seen` nothing says so, and both are shown.
    copies_of = {
        (one.window, one.bucket, number if one.origin is None else -1 - one.origin): one
        for number, one in enumerate(found)
    }
    return StoredKey(
        key,
        f"{digest[0]:016x}{digest[1]:016x}",
        shard,
        getattr(None if store.config is None else store.config.expiry, "field", None),
        copies,
        tuple(_entry(store, entry, wall_us) for entry in copies_of.values()),
    )


def _copies(store: OpenStore, forecaster: Forecaster, asked: Sequence[int | float | str]) -> Iterator[CopyForecast]:
    """Of every kind of copy that may come next one, in the order of their expiry keys; what was asked for is last."""
    by, state = store.settings["expiry.by"], store.log.state

    def forecast(copy: str, expiry: int | float | str | None, shown: str | int | float | None) -> CopyForecast:
        verdict, reason = forecaster.verdict(expiry)
        return CopyForecast(copy, shown, verdict.port, reason)

    if by in ("never", "processing_time"):
        yield forecast("any", None, None)
    elif by == "category":
        categories = category_state(state)
        places = sorted({entry.bucket for entry in forecaster.entries})
        known = dict.fromkeys(value for place in places if (value := category_of(categories, place)) is not None)
        yield from (forecast("same", value, value) for value in known)
        yield forecast("newest", new_category(categories), None)
        yield from (forecast("asked", str(value), str(value)) for value in asked)
    else:
        start = forecaster.wall_us if by == "event_time" else 0
        newest = start if state.latest_point is None else state.latest_point
        same = sorted({_expiry_of(store, entry) for entry in forecaster.entries} - {newest})
        wanted = [expiry for expiry in asked if not isinstance(expiry, str)]
        copies = [*(("same", expiry) for expiry in same), ("newest", newest), *(("asked", expiry) for expiry in wanted)]
        yield from (forecast(copy, expiry, store.scale.shown(expiry)) for copy, expiry in copies)


def _expiry_of(store: OpenStore, entry: StoredEntry) -> int | float:
    """The expiry key of an entry; where the store keeps none, the greatest of its bucket: the last one to expire."""
    if entry.expiry is not None:
        return entry.expiry
    end = (entry.bucket + 1) * store.settings["expiry.span"]
    return math.nextafter(end, -math.inf) if isinstance(end, float) else end - 1


def _entry(store: OpenStore, found: StoredEntry, wall_us: int) -> KeyEntry:
    source, row = (None, None) if found.origin is None else origin_of(store, found.window, found.origin)
    is_live, until = lifetime(store, found.bucket, found.expiry, wall_us)
    # never and category keep no expiry key of their own; the column only fills the record.
    is_shown = store.scale.is_time or store.settings["expiry.by"] == "ordered"
    shown = store.scale.shown(found.expiry) if is_shown else None
    return KeyEntry(found.window, found.bucket, found.piece, shown, source, row, is_live, until)


def _ahead_us(state: LogState) -> int:
    """How far the latest point by processing time is ahead of the wall clock: for ever, once that was wrong."""
    if state.latest_point is None or state.latest_moved_us is None:
        return 0
    return int(state.latest_point) - state.latest_moved_us


def lifetime(store: OpenStore, bucket: int, expiry: int | float | None, wall_us: int) -> tuple[bool | None, str]:
    """Whether an entry is live for the window that begins at `wall_us`, and until when it is remembered."""
    by, scale, state = store.settings["expiry.by"], store.scale, store.log.state
    if by == "never":
        return True, "for ever"
    if by == "category":
        categories = category_state(state)
        value = category_of(categories, bucket)
        if bucket < categories.first_live_place:
            return False, "its category was dropped" if value is None else f"category {value} was dropped"
        return True, f"category {value} is dropped"
    what, ahead = ("the wall clock", _ahead_us(state)) if by == "processing_time" else ("the latest point", 0)
    if store.config is None or store.period is None:
        return None, "unknown without a config: the period is not part of the store"
    if store.settings["expiry.lookup"] == "all_live" and expiry is not None:
        latest = processing_point(state, wall_us) if by == "processing_time" else state.latest_point
        point = None if latest is None else latest - store.period
        return point is None or expiry > point, f"{what} reaches {scale.shown(expiry + store.period - ahead)}"
    span = store.settings["expiry.span"]
    first_live = first_live_bucket(state.latest_point, store.period, span)
    is_live = first_live is None or bucket >= first_live
    return is_live, f"{what} reaches {scale.shown((bucket + 1) * span + store.period - ahead)}"
