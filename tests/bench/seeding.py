"""A large state written straight into a store, as the pieces and commit records that the job itself would write.

A hundred million keys by streaming take an hour; so this writes a workload's loaded keys through the store's own
public API: their real digests, computed by Spark with the store's salt, one commit a bucket's slice of keys. Unlike
streaming, this leaves few large pieces and not many small windows.
"""

from __future__ import annotations

import contextlib
import time

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import PieceStore, append_piece
from deduper.config.model import Config
from deduper.core.digests import shards_of
from deduper.core.verdict import bucket_key
from deduper.sources.digest_columns import fast_digest
from deduper.window import policy
from deduper.window.recovery import open_or_create
from tests.bench.workload import Workload

_KEYS_A_COMMIT = 4_000_000


def seed_store(config: Config, workload: Workload, session: SparkSession) -> None:
    """Make the store of `config` and fill it with the workload's loaded keys."""
    wall_us = time.time_ns() // 1000
    log = open_or_create(config, wall_us)
    log.claim_epoch("bench", wall_us)
    with contextlib.closing(open_backend(config.store.url)) as pieces:
        first = 0
        while first < workload.loaded_keys:
            last = _end_of_slice(config, workload, first)
            _commit(config, workload, session, log, pieces, np.arange(first, last))
            first = last


def digests_of(session: SparkSession, config: Config, salt: bytes, first: int, last: int) -> NDArray[np.uint64]:
    """The digests of the workload's keys [first, last), uint64[n, 2], by the very expressions of the job."""
    key = F.concat_ws(
        "-",
        F.lit("user"),
        F.lpad(F.col("id").cast("string"), 12, "0"),
        ((F.col("id") * 7919) % 1_000_003).cast("string"),
    )
    keyed = session.range(first, last, 1, 4).select("id", key.alias("k"))
    hi, lo = fast_digest([(F.col("k"), config.key_columns[0].type.text)], salt)
    table = keyed.select("id", hi.alias("hi"), lo.alias("lo")).toArrow()
    order = np.argsort(table.column("id").to_numpy(), kind="stable")
    columns = [table.column(name).to_numpy()[order].view(np.uint64) for name in ("hi", "lo")]
    return np.stack(columns, axis=1)


def entries_of(config: Config, bucket: int, digests: NDArray[np.uint64], times_us: NDArray[np.int64]) -> Entries:
    """New keys of one bucket, in the order of a piece, with the columns that the store keeps."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    layout = policy.table_layout(config)
    return Entries(
        bucket_keys=np.array([bucket], np.int64),
        bucket_starts=np.array([0, len(order)], np.int64),
        digests=np.ascontiguousarray(digests[order]),
        expiry=times_us[order] if layout.has_expiry else None,
        origin=order.astype(np.int64) if layout.has_origin else None,
    )


def commit_window(
    config: Config, log: CommitLog, refs: tuple[PieceRef, ...], *, keys: int, latest_us: int, bucket: int
) -> None:
    """The record of a window that remembers these pieces and has no outputs."""
    assert log.epoch is not None
    window = log.state.next_window
    record = CommitRecord(
        window=window,
        epoch=log.epoch,
        attempt=0,
        query_id="bench",
        batch_id=window,
        wall_us=max(time.time_ns() // 1000, log.state.last_wall_us),
        settings_hash=policy.settings_hash(config),
        latest_point=latest_us,
        latest_moved_us=time.time_ns() // 1000,
        counts={"unique": keys, "duplicate": 0, "expired": 0, "error": 0},
        reasons={},
        pieces=refs,
        outputs=(),
        buckets=(bucket,),
        timestamp=latest_us,
        sources=None,
        extra={},
    )
    log.place(record)
    log.forget_outputs(window)


def append_shards(
    config: Config,
    log: CommitLog,
    pieces: PieceStore,
    bucket: int,
    digests: NDArray[np.uint64],
    times_us: NDArray[np.int64],
) -> tuple[PieceRef, ...]:
    """One piece for each shard that has keys."""
    assert log.epoch is not None
    shards = shards_of(digests, config.store.shards)
    window, refs = log.state.next_window, []
    for shard in range(config.store.shards):
        mine = shards == shard
        if mine.any():
            refs.append(
                append_piece(
                    pieces,
                    entries_of(config, bucket, digests[mine], times_us[mine]),
                    store_id=bytes.fromhex(log.manifest.store_id),
                    shard=shard,
                    first_window=window,
                    last_window=window,
                    epoch=log.epoch,
                    attempt=0,
                )
            )
    return tuple(refs)


def commit_random_keys(
    config: Config, log: CommitLog, pieces: PieceStore, bucket: int, moment: int, keys: int, random: np.random.Generator
) -> None:
    """Remember this many random keys with one expiry key, µs, in one bucket; a commit for each 4 million."""
    for first in range(0, keys, _KEYS_A_COMMIT):
        count = min(_KEYS_A_COMMIT, keys - first)
        digests = random.integers(1, 1 << 64, (count, 2), np.uint64)
        refs = append_shards(config, log, pieces, bucket, digests, np.full(count, moment, np.int64))
        commit_window(config, log, refs, keys=count, latest_us=moment, bucket=bucket)


def _end_of_slice(config: Config, workload: Workload, first: int) -> int:
    """As many keys as fit one commit and one bucket."""
    last = min(workload.loaded_keys, first + _KEYS_A_COMMIT)
    times = workload.times_us(np.arange(first, last))
    assert config.span_steps is not None
    buckets = times // int(config.span_steps)
    return first + int(np.searchsorted(buckets, buckets[0], side="right"))


def _commit(
    config: Config,
    workload: Workload,
    session: SparkSession,
    log: CommitLog,
    pieces: PieceStore,
    keys: NDArray[np.int64],
) -> None:
    digests = digests_of(session, config, log.manifest.salt, int(keys[0]), int(keys[-1]) + 1)
    times = workload.times_us(keys)
    assert config.span_steps is not None
    bucket = bucket_key(int(times[0]), int(config.span_steps))
    refs = append_shards(config, log, pieces, bucket, digests, times)
    commit_window(config, log, refs, keys=len(keys), latest_us=int(times[-1]), bucket=bucket)
