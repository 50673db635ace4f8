"""One window or one bucket of a store in full. Safe beside a running job: nothing is locked or written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bucket_store.log.records import CommitRecord
from bucket_store.pieces.piece import PieceHeader, PieceRef
from deduper.admin.keys.stored import lifetime, piece_header, sources_of_window
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.sections import PORTS
from deduper.core.verdict import bucket_key
from deduper.errors import CheckFailedError, UsageError
from deduper.sinks.names import topic_of
from deduper.units import UnitError, format_time, parse_time
from deduper.window.policy import category_state


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
    is_live, _ = lifetime(store, bucket, None, store.log.state.last_wall_us)
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
