"""Prints what a cold start costs. Run: `python tests/bench/bench_cold_start.py [--dir /dev/shm] [--buckets 24]`.

A shard whose tables are gone looks keys up in each of its buckets: once with every table built by its own look-up, once
with `ShardTables.load` before. Workload: uniform random digests (seed 7), windows of pieces over all buckets; the best
and the median of five runs; one shard alone, and two shards in two processes at once. The pages of the pieces are
dropped from the cache before each run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces import reader
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import append_piece
from bucket_store.tables import kernels
from bucket_store.tables.manager import ShardTables, TableLayout, TableSettings
from bucket_store.tables.view import ShardView

SEED = 7
RUNS = 5
WINDOWS = 4
SOUGHT = 1000
STORE_ID = "00" * 16
LAYOUT = TableLayout(has_expiry=False, float_expiry=False, has_origin=False, one_table=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="where tables lie", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--buckets", type=int, default=24)
    parser.add_argument("--keys", type=int, default=100_000, help="of a bucket of a shard, over all windows")
    options = parser.parse_args()
    kernels.warm()
    print(f"python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seed {SEED}; "
          f"{options.buckets} buckets of {options.keys:,} keys in {WINDOWS} pieces")  # fmt: skip
    for scheme in ("file", "rocksdb"):
        for shards in (1, 2):
            with (
                tempfile.TemporaryDirectory() as store,
                tempfile.TemporaryDirectory(dir=options.dir) as memory,
                multiprocessing.get_context("spawn").Pool(shards) as pool,
            ):
                url = f"{scheme}:{store}"
                views = pool.starmap(fill, [(url, shard, options.buckets, options.keys) for shard in range(shards)])
                costs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for _ in range(RUNS):
                    for ahead, of in costs.items():
                        drop_pages(Path(store))
                        jobs = [(url, view, memory, options.buckets, ahead) for view in views]
                        of.append(max(pool.starmap(look_up, jobs, chunksize=1)))
                for ahead, of in costs.items():
                    how = "loaded before" if ahead else "one by one   "
                    wall, cpu = ([1e3 * cost[which] for cost in of] for which in (0, 1))
                    print(f"{scheme}, {shards} shards at once, {how}: best {min(wall):.0f} ms, "
                          f"median {statistics.median(wall):.0f} ms; processor time: best {min(cpu):.0f} ms, "
                          f"median {statistics.median(cpu):.0f} ms")  # fmt: skip


def fill(url: str, shard: int, buckets: int, keys: int) -> ShardView:
    """A shard's pieces."""
    rng = np.random.default_rng(SEED + shard)
    pieces = open_backend(url)
    refs: list[PieceRef] = []
    count = keys // WINDOWS
    for window in range(WINDOWS):
        digests = np.concatenate([digests_of(rng, count) for _ in range(buckets)])
        entries = Entries(np.arange(buckets), np.arange(buckets + 1) * count, digests, expiry=None, origin=None)
        refs.append(
            append_piece(
                pieces,
                entries,
                store_id=bytes(16),
                shard=shard,
                first_window=window,
                last_window=window,
                epoch=1,
                attempt=0,
            )
        )
    pieces.close()
    return ShardView(STORE_ID, "bench", ((-1, b"bench"),), shard, WINDOWS, tuple(refs), None, None)


def look_up(url: str, view: ShardView, memory: str, buckets: int, ahead: bool) -> tuple[float, float]:
    """Seconds of a shard's look-ups, and of processor time for them, with its tables gone before."""
    kernels.warm()
    for folder in Path(memory).glob(f"*/*/{view.shard:04d}"):
        shutil.rmtree(folder)
    reader._headers.clear()
    sought = digests_of(np.random.default_rng(SEED), SOUGHT)
    settings = TableSettings(f"{memory}/tables", f"{memory}/disk", 4 << 30, 4 << 30, LAYOUT)
    pieces = open_backend(url)
    try:
        began, used = time.perf_counter(), time.process_time()
        with ShardTables.open(settings, pieces, view) as tables:
            if ahead:
                tables.load(range(buckets))
            for bucket in range(buckets):
                tables.find(bucket, sought)
            took = time.perf_counter() - began, time.process_time() - used
            counters = tables.counters
            assert (counters.loaded, counters.misses, counters.hits) == (buckets, buckets, 0), counters
            return took
    finally:
        pieces.close()


def digests_of(rng: np.random.Generator, count: int) -> NDArray[np.uint64]:
    """Uniform digests, ascending."""
    hi = np.sort(rng.integers(1, 1 << 64, count, dtype=np.uint64))
    return np.stack([hi, rng.integers(0, 1 << 64, count, dtype=np.uint64)], axis=1)


def drop_pages(store: Path) -> None:
    """Give back the cached pages of all files."""
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
