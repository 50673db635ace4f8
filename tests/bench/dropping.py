"""The time that dropping an expired bucket holds up the judging thread.

Three things are waited for: the record that no longer names its pieces (two syncs), the bucket's tables (dropped when a
task opens its shard for the next window), and later the handing over of its pieces and the taking of what came of it.
What is done with them beside the windows is timed apart, as `beside`: no window waits for it. The bucket is filled with
random digests through the store's own API. Opening a shard costs something without an expired bucket too: that is taken
off.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import DeletionRecord
from bucket_store.log.state import deletable, live_files
from bucket_store.maintenance.deletions import Deletions
from bucket_store.maintenance.worker_process import MaintenanceWorker
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.store import PieceStore
from bucket_store.tables.manager import ShardTables
from bucket_store.threads import on_a_thread
from deduper.config.model import Config
from deduper.window import policy
from deduper.window.recovery import open_or_create
from deduper.window.table_folder import table_settings
from tests.bench.contenders import CONTENDERS
from tests.bench.lanes import service_config
from tests.bench.seeding import commit_random_keys, commit_window
from tests.bench.workload import PERIOD_HOURS, START_US, Workload
from tests.deduper.store_memory import table_folders

_HOUR_US = 3_600_000_000
_LOOK_S = 0.0005
_STOP_S = 0.002


def milliseconds_of_dropping(work: Path, keys: int, shards: int, spark: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds for dropping a bucket of this many keys: `record`, `tables` (of all shards in a row), `pieces`.

    And `beside`, for which no window waits.
    """
    config = service_config(CONTENDERS["deduper"], work, Workload(), shards, spark=spark)
    log = open_or_create(config, time.time_ns() // 1000)
    log.claim_epoch("bench", time.time_ns() // 1000)
    homes = table_folders(config, log.manifest.store_id)
    bucket = START_US // _HOUR_US
    with contextlib.closing(open_backend(config.store.url)) as pieces:
        try:
            commit_random_keys(config, log, pieces, bucket, START_US, keys, np.random.default_rng(keys))
            _open_all(config, log, pieces, load=bucket)
            commit_window(config, log, (), keys=0, latest_us=START_US, bucket=bucket)
            without = _open_all(config, log, pieces)
            commit_window(config, log, (), keys=0, latest_us=START_US + (PERIOD_HOURS + 2) * _HOUR_US, bucket=bucket)
            dead = policy.dead_pieces(config, log.state)
            began = time.perf_counter()
            log.place(DeletionRecord(dead, time.time_ns() // 1000, max(piece.last_window for piece in dead)))
            recorded = time.perf_counter()
            dropped = _open_all(config, log, pieces)
            handing, beside = _delete(log, pieces)
        finally:
            for home in homes:
                shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(work, ignore_errors=True)
    return {
        "record": (recorded - began) * 1000,
        "tables": max(0.0, dropped - without) * 1000,
        "pieces": handing * 1000,
        "beside": beside * 1000,
    }


def _delete(log: CommitLog, pieces: PieceStore) -> tuple[float, float]:
    """Seconds that the judging thread spends on the retired pieces' bytes or is stopped by, and that pass beside it."""
    is_through = threading.Event()

    def in_background(action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            is_through.set()

        on_a_thread(run)

    deleter = MaintenanceWorker(pieces.url)
    deleter.delete(())  # begins the process, which serves all buckets of a run
    deletion = Deletions(deleter, in_background)
    began = time.perf_counter()
    state = log.state
    gone = deletable(state, oldest_view=state.next_number, now_us=state.last_wall_us, grace_us=0)
    deletion.begin(gone, keep=live_files(state), epoch=state.epoch)
    handed = time.perf_counter()
    stopped = 0.0
    taking = handed
    while not is_through.is_set():
        time.sleep(_LOOK_S)
        woken = time.perf_counter()
        # Deleting may hold the interpreter: this sleeping thread notices, and a judging one would too.
        if woken - taking > _STOP_S:
            stopped += woken - taking - _LOOK_S
        taking = woken
    taking = time.perf_counter()
    through = deletion.result()
    assert through == gone[-1].at_number, "not all was deleted"
    log.forget_retired(through)
    waited = handed - began + stopped + time.perf_counter() - taking
    deleter.close()
    return waited, deletion.seconds


def _open_all(config: Config, log: CommitLog, pieces: PieceStore, *, load: int | None = None) -> float:
    """Seconds for opening every shard's tables at the log's position."""
    settings = table_settings(config)
    spent = 0.0
    for view in policy.shard_views(config, log.manifest, log.state):
        began = time.perf_counter()
        with ShardTables.open(settings, pieces, view) as tables:
            if load is not None:
                tables.load([load])
        spent += time.perf_counter() - began
    return spent
