"""Inspect a store: one key, one window, one bucket. Reads pieces and log beside a running job, locks nothing."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bucket_store.log.records import CommitRecord, LogState
from bucket_store.log.wall_clock import next_wall_us
from bucket_store.pieces.piece import PieceHeader, PieceRef
from deduper.admin.keys.entries import find_key, origin_of, piece_header, sources_of_window
from deduper.admin.keys.forecast import CopyForecast, Forecaster, StoredEntry, category_of, new_category
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.sections import PORTS
from deduper.core.digests import KeyValue
from deduper.core.verdict import bucket_key, first_live_bucket
from deduper.errors import CheckFailedError, UsageError
from deduper.sinks.names import topic_of
from deduper.units import UnitError, format_time, parse_time
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
class KeyReport(AsJson):
    """The stored copies of a key, and the verdicts of copies that may come next.

    `entries` may hold copies that are dead but not yet deleted. `copies` is empty when the store was opened without a
    config, because a verdict depends on the period.
    """

    json_names = ("key", "digest", "shard", "is_remembered", "copies", "entries")

    key: dict[str, str | None]
    digest: str
    shard: int
    expiry_field: str | None
    copies: tuple[CopyForecast, ...]
    entries: tuple[KeyEntry, ...]

    @property
    def is_remembered(self) -> bool | None:
        """Whether a live copy is there; None when there are copies, and that cannot be said of any."""
        if any(entry.is_live for entry in self.entries):
            return True
        return None if any(entry.is_live is None for entry in self.entries) else False


def inspect_key(
    store: OpenStore,
    values: Sequence[KeyValue],
    *,
    asked: Sequence[int | float | str] = (),
    now_us: int | None = None,
) -> KeyReport:
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
    return KeyReport(
        key,
        f"{digest[0]:016x}{digest[1]:016x}",
        shard,
        getattr(None if store.config is None else store.config.expiry, "field", None),
        copies,
        tuple(_entry(store, entry, wall_us) for entry in found),
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
    is_live, until = _lifetime(store, found.bucket, found.expiry, wall_us)
    # never and category keep no expiry key of their own; the column only fills the record.
    is_shown = store.scale.is_time or store.settings["expiry.by"] == "ordered"
    shown = store.scale.shown(found.expiry) if is_shown else None
    return KeyEntry(found.window, found.bucket, found.piece, shown, source, row, is_live, until)


def _ahead_us(state: LogState) -> int:
    """How far the latest point by processing time is ahead of the wall clock: for ever, once that was wrong."""
    if state.latest_point is None or state.latest_moved_us is None:
        return 0
    return int(state.latest_point) - state.latest_moved_us


def _lifetime(store: OpenStore, bucket: int, expiry: int | float | None, wall_us: int) -> tuple[bool | None, str]:
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


@dataclass(frozen=True, slots=True)
class BucketPart(AsJson):
    """A bucket's share of one piece. Expiry keys are ready to print, and None without the column."""

    shard: int
    piece: str
    file: str
    first_window: int
    last_window: int
    entries: int
    size_bytes: int
    least_expiry_key: str | int | float | None
    greatest_expiry_key: str | int | float | None


@dataclass(frozen=True, slots=True)
class BucketReport(AsJson):
    """A bucket over all shards. `holds` says what falls into it."""

    json_names = ("bucket", "holds", "is_live", "entries", "pieces")

    bucket: int
    holds: str
    is_live: bool | None
    pieces: tuple[BucketPart, ...]

    @property
    def entries(self) -> int:
        """Entries over all pieces."""
        return sum(part.entries for part in self.pieces)


def inspect_bucket(store: OpenStore, bucket: int) -> BucketReport:
    """The pieces that hold entries of a bucket, by shard and window; headers alone are read.

    Raises:
        CorruptionError: a piece's header is damaged.
    """
    parts = []
    for shard, pieces in sorted(store.log.state.pieces.items()):
        for piece in pieces:
            if not piece.min_bucket <= bucket <= piece.max_bucket:
                continue
            header = piece_header(store, piece)
            index = header.index_of(bucket)
            if index is not None:
                parts.append(_bucket_part(store, shard, piece, header, index))
    is_live, _ = _lifetime(store, bucket, None, store.log.state.last_wall_us)
    return BucketReport(bucket, _holds(store, bucket), is_live, tuple(parts))


def bucket_of(store: OpenStore, text: str) -> int:
    """The bucket key that a text names: itself, or the bucket of a time in ISO 8601 where buckets are of time.

    Raises:
        UsageError: neither.
    """
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if not store.scale.is_time:
        raise UsageError(f"`{text}` is no bucket key; write a whole number")
    try:
        return bucket_key(parse_time(text), store.settings["expiry.span"])
    except UnitError:
        raise UsageError(f"`{text}` is no bucket key; write a whole number, or a time as 2024-12-31T23:00Z") from None


def _bucket_part(store: OpenStore, shard: int, piece: PieceRef, header: PieceHeader, index: int) -> BucketPart:
    least, greatest = None, None
    if header.min_expiry is not None and header.max_expiry is not None:
        shown = store.scale.shown
        least, greatest = shown(header.min_expiry[index].item()), shown(header.max_expiry[index].item())
    return BucketPart(
        shard=shard,
        piece=piece.name,
        file=piece.file,
        first_window=piece.first_window,
        last_window=piece.last_window,
        entries=int(header.counts[index]),
        size_bytes=int(header.lengths[index]),
        least_expiry_key=least,
        greatest_expiry_key=greatest,
    )


def _holds(store: OpenStore, bucket: int) -> str:
    by, scale = store.settings["expiry.by"], store.scale
    if by == "never":
        return f"keys whose hash mod {store.settings['expiry.buckets']} is {bucket}"
    if by == "category":
        categories = category_state(store.log.state)
        value = next((value for value, place in categories.live if place == bucket), None)
        return "a category that is not live" if value is None else f"category {value}"
    span = store.settings["expiry.span"]
    return f"{scale.shown(bucket * span)} up to, not including, {scale.shown((bucket + 1) * span)}"


def inspect_window(store: OpenStore, window: int) -> dict[str, Any]:
    """The commit record of a window in full, with stable keys; `sources` is None when its file is gone.

    Raises:
        CheckFailedError: no such window, or its record has been folded into a snapshot and deleted.
    """
    if not 0 <= window < store.log.state.next_window:
        newest = store.log.state.next_window - 1
        last = f"the newest window is {newest}" if newest >= 0 else "the store has no window yet"
        raise CheckFailedError(f"window {window} is not committed; {last}")
    # A window's record never stands before its own number, because every window takes one record.
    for record in store.log.records(window):
        body = record.body
        if isinstance(body, CommitRecord) and body.window == window:
            return _record_json(store, record.number, body)
    raise CheckFailedError(f"the record of window {window} was folded into a snapshot and is gone")


def _record_json(store: OpenStore, number: int, record: CommitRecord) -> dict[str, Any]:
    shown = store.scale.shown
    sources = sources_of_window(store, record.window)
    return {
        "window": record.window,
        "record": number,
        "epoch": record.epoch,
        "attempt": record.attempt,
        "query_id": record.query_id,
        "batch_id": record.batch_id,
        "begun": format_time(record.wall_us),
        "settings_hash": record.settings_hash,
        "latest_point": shown(record.latest_point),
        "latest_moved": None if record.latest_moved_us is None else format_time(record.latest_moved_us),
        "counts": {port: record.counts.get(port, 0) for port in PORTS},
        "reasons": record.reasons,
        "buckets": list(record.buckets),
        "greatest_expiry_key": shown(record.timestamp),
        "pieces": [
            {
                "shard": piece.shard,
                "file": piece.file,
                "name": piece.name,
                "offset": piece.offset,
                "bytes": piece.length,
                "checksum": f"{piece.checksum:016x}",
                "entries": piece.entries,
                "least_bucket": piece.min_bucket,
                "greatest_bucket": piece.max_bucket,
            }
            for piece in record.pieces
        ],
        "outputs": [
            {
                "port": output.port,
                "staged": output.staged,
                "final": output.final,
                "topic": None if place is None else place.topic,
                "slots": None if place is None else list(place.slots),
                "bytes": output.size_bytes,
                "checksum": f"{output.checksum:016x}",
                "rows": output.rows,
            }
            for output in record.outputs
            for place in [topic_of(output)]
        ],
        "sources": None
        if sources is None
        else [
            {
                "name": source.name,
                "version": source.version,
                "start": source.start,
                "end": source.end,
                "rows": source.rows,
                "digest": source.digest.hex(),
            }
            for source in sources
        ],
        "extra": record.extra,
    }
