"""What a store has of one key, and the verdict of a copy that comes next. Reads beside a running job, locks nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store.errors import StoreError
from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import SourcePartition
from bucket_store.log.wall_clock import next_wall_us
from bucket_store.pieces.piece import BucketEntries, PieceHeader, PieceRef, decode_bucket
from bucket_store.pieces.reader import PieceReader
from bucket_store.tables.matches import Matches
from deduper.admin.open_store import OpenStore
from deduper.arrow_columns import arrow_type
from deduper.as_json import AsJson
from deduper.columns import ColumnType
from deduper.config.model import Config
from deduper.config.sections import CategoryExpiry
from deduper.core.categories import CategoryState, arrange
from deduper.core.clock import POSITION_BITS, PartitionClock, batch_clock
from deduper.core.digest_kernels import array_digest
from deduper.core.digests import KeyValue, plain_value
from deduper.core.judge import ShardRows, judge_shard
from deduper.core.kernels import Expiries
from deduper.core.verdict import DUPLICATE_REASONS, Admission, TupleVerdict, first_live_bucket
from deduper.core.versions import version_digests
from deduper.payload import MOST_VERSIONS
from deduper.tasks.readers.declared import key_admissions
from deduper.window.policy import (
    FINGERPRINT,
    category_state,
    clock_rules,
    fingerprints_since,
    judge_rules,
    processing_point,
)

_WIDE = Context(prec=40)
_SAME_PAYLOAD = np.ones(1, np.uint64)
"""Stands for the fingerprint of a copy and, where it is known, of its first copy: a forecast is of one payload."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a key in a live piece. `expiry` and `origin` are None where the store keeps none.

    `fingerprint`: that of its payload; 0 where it is unknown, or of another payload than the config's.
    """

    window: int
    bucket: int
    piece: str
    expiry: int | float | None
    origin: int | None
    fingerprint: int


@dataclass(frozen=True, slots=True)
class CopyForecast(AsJson):
    """A copy that may come next, with the payload of the first copy, and its verdict.

    `copy` is `same` (with the expiry key or category of an entry), `newest` (with the latest point, or a new category),
    `asked`, or `any` where copies do not differ. `expiry_key` is ready to print; None for `any` and a new category.
    """

    copy: str
    expiry_key: str | int | float | None
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Judges copies of one key against a committed state, by the functions that judge a window.

    A copy is a window of one tuple after the newest committed one: clock, categories, look-up and verdict are those of
    the job, and the look-up's answer comes from the entries that the store has of the key.

    `digest` is (hi, lo) of the key; `entries` are all that live pieces have of it. `admission` is that of its value.
    `wall_us`: the wall clock of the window that is to come.
    """

    config: Config
    state: LogState
    digest: tuple[int, int]
    entries: Sequence[StoredEntry]
    admission: Admission
    wall_us: int

    def verdict(self, expiry: int | float | str | None) -> tuple[TupleVerdict, str]:
        """The verdict and its reason of a copy with this expiry key (in stored steps) or category.

        None where the key expires by no column.
        """
        config, state = self.config, self.state
        rules = judge_rules(config, state, self.wall_us)
        rules = replace(rules, refuses_conflicts=False, most_versions=0)
        order = np.zeros(1, np.int64)
        admission = np.full(1, self.admission, np.uint8)
        keys, latest, has_latest, place = None, None, None, None
        if isinstance(config.expiry, CategoryExpiry):
            place, admission = _placed(config.expiry, category_state(state), expiry, order, admission)
        elif (clock := clock_rules(config, state, self.wall_us)) is not None:
            keys = np.array([0 if expiry is None else expiry], np.float64 if rules.float_domain else np.int64)
            if config.clock == "arrival":
                admission, latest, has_latest = PartitionClock(clock).run(order, keys, admission)
            else:
                admission = batch_clock(clock, keys, admission)
        digests = np.array([self.digest], np.uint64)
        rows = ShardRows(digests, order, admission, keys, latest, has_latest, place, fingerprint=_SAME_PAYLOAD)
        outcome = judge_shard(rows, rules, state.next_window, self._find)
        verdict = TupleVerdict(int(outcome.verdict[0]))
        if verdict is TupleVerdict.DUPLICATE:
            return verdict, DUPLICATE_REASONS[int(outcome.copies[0])]
        return verdict, Admission(int(outcome.admission[0])).reason

    def _find(self, bucket: int, _: NDArray[np.uint64]) -> Matches:
        """The newest entry in the bucket or, with `lookup: all_live`, the one that dies last."""
        all_live = self.config.lookup == "all_live"
        found = [entry for entry in self.entries if all_live or entry.bucket == bucket]
        newest = max(found, key=lambda entry: (all_live and entry.expiry, entry.window), default=None)
        if newest is None:
            return Matches(np.zeros(1, np.bool_), None, None, None)
        kind = np.float64 if self.config.expiry_key_scale.is_float else np.int64
        expiry: Expiries = np.array([newest.expiry or 0], kind)
        fingerprint = _SAME_PAYLOAD if newest.fingerprint else np.zeros(1, np.uint64)
        return Matches(np.ones(1, np.bool_), expiry, None, None, fingerprint)


def _placed(
    expiry: CategoryExpiry,
    state: CategoryState,
    value: object,
    order: NDArray[np.int64],
    admission: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(place, admission) of the one tuple: a value that is not known takes the next place."""
    if admission[0] != Admission.ADMITTED:
        return np.full(1, -1, np.int64), admission
    ids = np.zeros(1, np.int32)
    _, places = arrange(
        state, [str(value)], order, lambda: (ids, order), expiry.live_categories, expiry.remember_dropped
    )
    return places.places(ids, order, admission)


def category_of(state: CategoryState, place: int) -> str | None:
    """The value that holds or held a place; None when it is no longer known as dropped.

    Values are dropped in the order of their places, so the newest dropped one held the place before the live ones.
    """
    live = next((value for value, held in state.live if held == place), None)
    behind = state.first_live_place - place
    return state.dropped[-behind] if live is None and 0 < behind <= len(state.dropped) else live


def new_category(state: CategoryState) -> str:
    """A value that is neither live nor known as dropped."""
    known = {value for value, _ in state.live} | set(state.dropped)
    return next(value for number in range(len(known) + 1) if (value := f"new-{number}") not in known)


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
    since = None if store.config is None else fingerprints_since(store.config, store.log.state)
    entries = [
        StoredEntry(
            window=piece.first_window if found.window is None else int(found.window[row]),
            bucket=found.bucket,
            piece=piece.name,
            expiry=None if found.expiry is None else found.expiry[row].item(),
            origin=None if found.origin is None else int(found.origin[row]),
            fingerprint=0 if since is None else _fingerprint(found, row, since, piece),
        )
        for piece in store.log.state.pieces.get(shard, ())
        for found in _buckets_of(store, piece, buckets)
        for digest in own
        for row in [_row_of(found.digests, *digest)]
        if row is not None
    ]
    return (hi, lo), shard, tuple(sorted(entries, key=lambda entry: entry.window))


def _fingerprint(found: BucketEntries, row: int, since: int, piece: PieceRef) -> int:
    """That of one entry, 0 where it does not count: `since` as `policy.fingerprints_since`."""
    return int(found.chosen(slice(row, row + 1)).fingerprints_since(since, piece.first_window)[0])


def key_digest(
    values: Sequence[KeyValue], kinds: Sequence[ColumnType], salt: bytes, *, secure: bool
) -> tuple[int, int]:
    """(hi, lo), unsigned, of one key.

    Raises:
        ValueError: a value that is none of its type.
    """
    hi, lo = array_digest(_columns_of(values, kinds), kinds, salt, secure=secure)
    return int(hi[0]), int(lo[0])


def _columns_of(values: Sequence[KeyValue], kinds: Sequence[ColumnType]) -> list[pa.Array]:
    """Columns of one row."""
    return [_column_of(value, kind) for value, kind in zip(values, kinds, strict=True)]


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
        of_key = _columns_of(values, [column.type for column in columns])
        (admission,) = key_admissions(of_key, null_is_error=store.config.null_keys == "error").tolist()
        forecaster = Forecaster(store.config, store.log.state, digest, found, Admission(admission), wall_us)
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
