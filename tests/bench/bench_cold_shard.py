"""Prints how long a shard's tables take to load: cold or moved, from copies of its pieces, and warm.

    python -m tests.bench.bench_cold_shard URL [URL...] [--keys 1,10,50] [--ahead 4,8,16] [--dir /dev/shm]

A URL is that of an empty store: file:PATH, hdfs://HOST:PORT/PATH, s3://BUCKET/PREFIX; `tests/services/hdfs.py` starts a
NameNode and a DataNode. The shard has `--keys` millions of keys with first copies in 24 time buckets as compaction
leaves them, pieces of up to 32 MiB, and 40 small pieces in the newest; uniform digests, seed 7. The seconds are those
from opening to tables of all buckets. *cold* is a shard that was moved here, or has lost its tables and copies;
*copies* has lost its tables alone; *warm* has both. Pages of a local store are dropped from the cache before a cold
load. MiB/s are of the pieces' bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces import compaction, reader
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import PieceStore, append_piece
from bucket_store.tables import kernels
from bucket_store.tables.manager import PIECES, ShardTables, TableLayout, TableSettings
from bucket_store.tables.view import ShardView
from tests.bench.machine import drop_pages

SEED = 7
STORE_ID = "00" * 16
BUCKETS = 24
FRESH, FRESH_KEYS = 40, 3_000
LAYOUT = TableLayout(has_expiry=False, float_expiry=False, has_origin=True, one_table=False)
MIB = 1 << 20


def digests_of(rng: np.random.Generator, count: int) -> NDArray[np.uint64]:
    """Uniform digests, ascending."""
    hi = np.sort(rng.integers(1, 1 << 64, count, dtype=np.uint64))
    return np.stack([hi, rng.integers(0, 1 << 64, count, dtype=np.uint64)], axis=1)


def fill(pieces: PieceStore, keys: int) -> ShardView:
    """A shard's pieces."""
    rng = np.random.default_rng(SEED)
    refs: list[PieceRef] = []

    def append(bucket: int, count: int, *, is_merged: bool) -> None:
        window = len(refs)
        entries = Entries(
            np.array([bucket]),
            np.array([0, count]),
            digests_of(rng, count),
            origin=np.arange(count, dtype=np.int64),
            window=np.full(count, window, np.uint32) if is_merged else None,
        )
        windows = {"first_window": window, "last_window": window, "epoch": 1, "attempt": 0}
        refs.append(append_piece(pieces, entries, store_id=bytes(16), shard=0, **windows))

    most = compaction.MOST_BYTES // 28
    for bucket in range(BUCKETS):
        left = keys // BUCKETS
        while left > 0:
            append(bucket, min(left, most), is_merged=True)
            left -= most
    for _ in range(FRESH):
        append(BUCKETS - 1, FRESH_KEYS, is_merged=False)
    return ShardView(STORE_ID, "bench", ((-1, b"bench"),), 0, len(refs), tuple(refs), None, None)


def load(url: str, view: ShardView, home: Path) -> float:
    """Seconds from opening to tables of all buckets."""
    reader._headers.clear()
    settings = TableSettings(f"{home}/memory", f"{home}/disk", 16 << 30, 16 << 30, LAYOUT, piece_cache_bytes=16 << 30)
    pieces = open_backend(url)
    try:
        began = time.perf_counter()
        with ShardTables.open(settings, pieces, view) as tables:
            tables.load(range(BUCKETS))
            took = time.perf_counter() - began
            assert tables.counters.resident_tables == BUCKETS
        return took
    finally:
        pieces.close()


def measure(url: str, view: ShardView, ahead: int) -> str:
    """One line of the table."""
    reader._READ_AHEAD = reader._REMOTE_READ_AHEAD = ahead
    size = sum(ref.length for ref in view.pieces) / MIB
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        if url.startswith("file:"):
            drop_pages(Path(url.removeprefix("file:")))
        cells = []
        for lost in (("memory", "disk"), ("memory", f"disk/{view.folder}"), ()):
            for name in lost:
                shutil.rmtree(home / name, ignore_errors=True)
            if "disk" not in lost and lost and not (home / "disk" / PIECES).exists():
                cells.append("–")  # a local store has no copies
                load(url, view, home)
                continue
            took = load(url, view, home)
            cells.append(f"{took:.2f} s, {size / took:.0f} MiB/s" if lost else f"{1e3 * took:.0f} ms")
    scheme = url.partition(":")[0]
    keys = sum(ref.entries for ref in view.pieces) / 1e6
    return f"| {scheme} | {keys:.1f} M | {size:.0f} | {ahead} | " + " | ".join(cells) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--keys", default="1,10,50", help="millions in the shard")
    parser.add_argument("--ahead", default="16", help="reads ahead")
    parser.add_argument("--dir", default=None, help="where tables and copies lie")
    args = parser.parse_args()
    tempfile.tempdir = args.dir
    kernels.warm()
    print(f"python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seed {SEED}\n")
    print("| store | keys | MiB of pieces | reads ahead | cold | copies | warm |\n|---|---|---|---|---|---|---|")
    for keys in args.keys.split(","):
        for url in args.urls:
            of_keys = f"{url}/{keys}m"
            view = fill(open_backend(of_keys), int(float(keys) * 1e6))
            for ahead in map(int, args.ahead.split(",")):
                print(measure(of_keys, view, ahead), flush=True)


if __name__ == "__main__":
    main()
