"""Re-sharding of a large store, 4 → 7: seconds, peak memory, and the proof.

    python tests/bench/bench_reshard.py [--keys 50000000] [--backend file]

The store has windows of a million keys with expiry key, origin and window, in 4 shards, half in each of two hours.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import local_place

HOUR_US = 3_600_000_000
WINDOW_KEYS = 1_000_000
CONFIG = """\
name: moved
source: {{format: files, path: in/, file_format: json, schema: "k string, t timestamp"}}
key: k
expiry: {{by: event_time, field: t, period: 24h, span: 1h}}
store: {{url: "{backend}:state", shards: 4}}
sinks: {{unique: {{format: none}}, duplicate: {{format: none}}, expired: {{format: none}}, error: {{format: none}}}}
"""


def make(directory: Path, backend: str, keys: int) -> Path:
    """The config file of the store."""
    from deduper.config.load import load_config
    from deduper.window.policy import fixed_settings

    (directory / "in").mkdir()
    file = directory / "moved.yaml"
    file.write_text(CONFIG.format(backend=backend))
    config = load_config(file, environment={})
    log = CommitLog.create(local_place(config.store.path), fixed_settings(config), wall_us=1)
    log.claim_epoch("bench:1", 1)
    pieces = open_backend(config.store.url)
    generator = np.random.default_rng(7)
    windows = max(1, keys // WINDOW_KEYS)
    for window in range(windows):
        digests = generator.integers(1, 2**64, (min(keys, WINDOW_KEYS), 2), np.uint64)
        digests = digests[np.lexsort((digests[:, 1], digests[:, 0]))]
        bucket = int(window >= windows // 2)
        added = []
        for shard in range(4):
            mine = np.ascontiguousarray(digests[digests[:, 1] % np.uint64(4) == shard])
            count = len(mine)
            entries = Entries(
                bucket_keys=np.array([bucket], np.int64),
                bucket_starts=np.array([0, count], np.int64),
                digests=mine,
                expiry=bucket * HOUR_US + generator.integers(0, HOUR_US, count),
                origin=np.arange(count, dtype=np.int64),
            )
            added.append(
                append_piece(
                    pieces,
                    entries,
                    store_id=bytes.fromhex(log.manifest.store_id),
                    shard=shard,
                    first_window=window,
                    last_window=window,
                    epoch=1,
                    attempt=0,
                )
            )
        counts = {"unique": len(digests), "duplicate": 0, "expired": 0, "error": 0}
        log.place(
            CommitRecord(
                *(window, 1, 0, "q", window, 1, "hash", (bucket + 1) * HOUR_US, 1, counts, {}, tuple(added), ()),
                *((bucket,), (bucket + 1) * HOUR_US, None, {}),
            )
        )
    return file


def main() -> None:
    """Prints one line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--keys", type=int, default=50_000_000)
    options.add_argument("--backend", default="file")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-") as directory:
        file = make(Path(directory), given.backend, given.keys)
        started = time.perf_counter()
        command = [sys.executable, "-m", "deduper.cli", "reshard", str(file), "--shards", "7", "--execute", "--json"]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        json.dumps(
            {
                "keys": given.keys,
                "backend": given.backend,
                "seconds": round(seconds, 1),
                "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
                "peak_rss_mib": used.ru_maxrss >> 10,
                "pieces": [report["pieces_before"], report["pieces_after"]],
                "parts": report["parts"],
                "before": report["before"],
                "after": report["after"],
            }
        )
    )


if __name__ == "__main__":
    main()
