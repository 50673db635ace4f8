"""Small stores made without Spark: keys committed window by window, as the job commits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord, OutputFile
from bucket_store.log.sources_file import SourcePartition, write_sources
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import local_place
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.core.clock import POSITION_BITS
from deduper.core.digests import KeyValue
from deduper.window.policy import fixed_settings
from tests.deduper.digest_oracle import key_digest

HOUR_US = 3_600_000_000
BEGIN_US = 1_735_603_200_000_000  # 2024-12-31T00:00:00Z

CONFIG_TEXT = """\
name: clicks
source: {format: files, path: in/, file_format: json, schema: "user string, id long, ts timestamp, n long, day string"}
key: [user, id]
expiry: {by: event_time, field: ts, period: 24h, span: 1h}
store: {url: "file:state", shards: 2}
sinks:
  unique: {format: none}
  duplicate: {format: none}
  expired: {format: none}
  error: {format: none}
"""


@dataclass(frozen=True)
class SeenKey:
    """A key that a window remembers."""

    values: tuple[KeyValue, ...]
    bucket: int
    expiry: int
    row: int = 0


@dataclass(frozen=True)
class Window:
    """What one window commits; its source partition is the file `in/<window>.json` where no `sources` are given."""

    keys: Sequence[SeenKey] = ()
    latest_point: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    sources: Sequence[SourcePartition] = ()


def write_config(directory: Path, *, expiry: str | None = None, more: str = "") -> Path:
    """A config file whose store is `directory/state`."""
    text = (
        CONFIG_TEXT
        if expiry is None
        else CONFIG_TEXT.replace("{by: event_time, field: ts, period: 24h, span: 1h}", expiry)
    )
    file = directory / "clicks.yaml"
    file.write_text(text + more, encoding="utf-8")
    return file


def make_store(file: Path, windows: Sequence[Window], *, published: int | None = None) -> Config:
    """The store of a config file, with these windows committed in one epoch and those up to `published` published."""
    config = load_config(file, environment={})
    log = CommitLog.create(local_place(config.store.path), fixed_settings(config), wall_us=BEGIN_US)
    log.claim_epoch("somebody:1", BEGIN_US)
    for number, window in enumerate(windows):
        _commit(config, log, number, window)
    if published is not None:
        log.forget_outputs(published)
        _commit(config, log, len(windows), Window(latest_point=log.state.latest_point, extra=log.state.extra))
    return config


def _commit(config: Config, log: CommitLog, number: int, window: Window) -> None:
    counts = {"unique": len(window.keys), "duplicate": 0, "expired": 0, "error": 0, **window.counts}
    only = SourcePartition(f"in/{number}.json", 0, 0, 100, sum(counts.values()), bytes([number]) * 16)
    sources = write_sources(log.root, window=number, epoch=1, attempt=0, partitions=window.sources or [only])
    pieces = []
    with_pieces = open_backend(config.store.url)
    types = [column.type.text for column in config.key_columns]
    by_shard: dict[int, list[tuple[int, int, int, SeenKey]]] = {}
    touched = set()
    for key in window.keys:
        hi, lo = key_digest(key.values, types, log.manifest.salt, secure=config.digest == "secure")
        bucket = hi % 64 if config.expiry.by == "never" else key.bucket
        touched.add(bucket)
        by_shard.setdefault(lo % config.store.shards, []).append((bucket, hi, lo, key))
    for shard, rows in sorted(by_shard.items()):
        rows.sort(key=lambda row: row[:3])
        buckets, starts = np.unique([row[0] for row in rows], return_index=True)
        entries = Entries(
            bucket_keys=buckets.astype(np.int64),
            bucket_starts=np.append(starts, len(rows)).astype(np.int64),
            digests=np.array([row[1:3] for row in rows], np.uint64),
            expiry=np.array([row[3].expiry for row in rows], np.int64),
            origin=np.array([0 << POSITION_BITS | row[3].row for row in rows], np.int64),
        )
        store_id = bytes.fromhex(log.manifest.store_id)
        pieces.append(
            append_piece(
                with_pieces,
                entries,
                store_id=store_id,
                shard=shard,
                first_window=number,
                last_window=number,
                epoch=1,
                attempt=0,
            )
        )
    with_pieces.close()
    log.place(
        CommitRecord(
            window=number,
            epoch=1,
            attempt=0,
            query_id="q",
            batch_id=number,
            wall_us=BEGIN_US + number * 1_000_000,
            settings_hash="hash",
            latest_point=window.latest_point,
            latest_moved_us=BEGIN_US,
            counts=counts,
            reasons=dict(window.reasons),
            pieces=tuple(pieces),
            outputs=(OutputFile("unique", f"out/_staging/{number}", f"out/{number}.parquet", 10, 1, len(window.keys)),),
            buckets=tuple(sorted(touched)),
            timestamp=max((key.expiry for key in window.keys), default=None),
            sources=sources,
            extra=dict(window.extra),
        )
    )
