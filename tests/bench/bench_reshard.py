"""Re-sharding of a large store, 4 → 7: seconds, peak memory, and the proof.

    python tests/bench/bench_reshard.py [--keys 50000000] [--backend file] [--kills]

The store has windows of a million keys with expiry key, origin and window, in 4 shards, half in each of two hours.

With `--kills` the command is killed (SIGKILL) at five points, and resumed after each: right after its claim, within a
part, after a third of the parts, after the proof of the new pieces, and after the record. Checked at the end, beside
the command's own proof: every entry of all live pieces (count, checksum, its shard, none twice). A sample of a million
keys, half of them stored and half new, is judged by the shard code of the job before and after: stored keys must be
duplicates of the first copy that plain reading of the pieces gives, window and origin, and new keys unique.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import local_place

HOUR_US = 3_600_000_000
WINDOW_KEYS = 1_000_000
SAMPLE = 1_000_000
CONFIG = """\
name: moved
source: {{format: files, path: in/, file_format: json, schema: "k string, t timestamp"}}
key: k
expiry: {{by: event_time, field: t, period: 24h, span: 1h}}
store: {{url: "{backend}:state", shards: 4, memory: 512MiB, tables: tables}}
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


@dataclass(frozen=True)
class Sample:
    """Keys with what judging has to say of them: window and origin of the first copy, -1 for a new key."""

    digests: NDArray[np.uint64]
    expiry: NDArray[np.int64]
    window: NDArray[np.int64]
    origin: NDArray[np.int64]


def kill_points(parts: int) -> tuple[str, ...]:
    """Where the five runs are killed, the last one after its record."""
    return (
        "move.claimed=kill",
        "reshard.appended=kill@3",
        f"reshard.moved=kill@{max(1, parts // 3)}",
        "reshard.proven=kill",
        "move.recorded=kill",
    )


def reshard(file: Path, *options: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """One run of the command."""
    command = [sys.executable, "-m", "deduper", "reshard", str(file), "--shards", "7", "--json", *options]
    environment = {**os.environ, failpoints.ENVIRONMENT: failpoint}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def killed_at_five_points(file: Path) -> dict[str, Any]:
    """Kill and resume; the report of the last run, which has the proof only if it is the one that placed the record."""
    plan = json.loads(reshard(file).stdout)
    before = entries_of(file)
    runs = []
    for point in kill_points(plan["parts"]):
        started = time.perf_counter()
        done = reshard(file, "--execute", failpoint=point)
        assert done.returncode == -signal.SIGKILL, (point, done.returncode, done.stderr)
        now = json.loads(reshard(file).stdout)
        runs.append(
            {
                "killed": point,
                "seconds": round(time.perf_counter() - started, 1),
                "shards": now["shards_before"],
                "parts_finished": now["parts_finished"],
            }
        )
    assert [run["shards"] for run in runs] == [4, 4, 4, 4, 7], runs
    last = reshard(file, "--execute")
    assert last.returncode == 0, last.stderr
    file.write_text(file.read_text().replace("shards: 4", "shards: 7"))
    after = entries_of(file)
    assert before[:2] == after[:2], (before, after)
    return {
        "runs": runs,
        "keys_before": f"{before[0]:,}, checksum {before[1]:016x}",
        "keys_after": f"{after[0]:,}, checksum {after[1]:016x}",
        "twice": after[2],
        "in_another_shard": after[3],
    }


def entries_of(file: Path) -> tuple[int, int, int, int]:
    """(entries, checksum, entries of a key that is there twice, entries in a wrong shard) of all live pieces."""
    from bucket_store.pieces.reader import PieceReader
    from deduper.admin.move.key_sum import KeySum, sum_of
    from deduper.admin.open_store import open_store
    from deduper.core.digests import shards_of

    store = open_store(str(file))
    shards = store.settings["shards"]
    found, twice, strange = KeySum(), 0, 0
    for shard, refs in store.log.state.pieces.items():
        reader = PieceReader(store.pieces, store.log.manifest.store_id)
        his = []
        for part, block in reader.read_all(reader.all_parts(refs)):
            found += sum_of(block, part.ref.first_window)
            strange += int(np.count_nonzero(shards_of(block.digests, shards) != shard))
            his.append(block.digests[:, 0].copy())
        whole = np.sort(np.concatenate(his))  # the high word alone: of random digests it is as good
        twice += int(np.count_nonzero(whole[1:] == whole[:-1]))
    return found.count, found.checksum, twice, strange


def sample_of(file: Path) -> Sample:
    """Half a million stored keys, evenly from all pieces, and as many new ones; the answers by plain reading."""
    from bucket_store.pieces.reader import PieceReader
    from deduper.admin.open_store import open_store

    store = open_store(str(file))
    reader = PieceReader(store.pieces, store.log.manifest.store_id)
    refs = [ref for of_shard in store.log.state.pieces.values() for ref in of_shard]
    every = max(1, sum(ref.entries for ref in refs) // (SAMPLE // 2))
    parts = []
    for part, block in reader.read_all(reader.all_parts(refs)):
        rows = slice(0, None, every)
        assert block.expiry is not None
        assert block.origin is not None
        window = np.full(len(block.digests), part.ref.first_window) if block.window is None else block.window
        parts.append((block.digests[rows].copy(), block.expiry[rows], window[rows], block.origin[rows]))
    digests, expiry, window, origin = (np.concatenate(column) for column in zip(*parts, strict=True))
    generator = np.random.default_rng(11)
    new = generator.integers(1, 2**64, (SAMPLE // 2, 2), np.uint64)
    none = np.full(len(new), -1)
    return Sample(
        digests=np.concatenate([digests, new]),
        expiry=np.concatenate([expiry, generator.integers(0, 2 * HOUR_US, len(new))]),
        window=np.concatenate([window.astype(np.int64), none]),
        origin=np.concatenate([origin, none]),
    )


def differing(file: Path, sample: Sample) -> int:
    """The sample's keys that the job's next window judges otherwise than plain reading, by the job's shard code."""
    from bucket_store.tables.manager import ShardTables
    from deduper.admin.open_store import open_store
    from deduper.core.digests import shards_of
    from deduper.core.judge import ShardRows, judge_shard
    from deduper.core.verdict import TupleVerdict
    from deduper.window import policy
    from deduper.window.table_folder import table_settings

    store = open_store(str(file))
    assert store.config is not None
    state, count = store.log.state, 0
    shards = shards_of(sample.digests, store.settings["shards"])
    rules = policy.judge_rules(store.config, state, 1)
    for view in policy.shard_views(store.config, store.log.manifest, state):
        rows = np.flatnonzero(shards == view.shard)
        asked = ShardRows(
            digests=sample.digests[rows],
            order=rows.astype(np.int64),
            admission=np.zeros(len(rows), np.uint8),
            expiry=sample.expiry[rows],
            latest_before=None,
            has_latest=None,
            category=None,
        )
        with ShardTables.open(table_settings(store.config), store.pieces, view) as tables:
            outcome = judge_shard(asked, rules, state.next_window, tables.find, tables.load)
        is_known = sample.window[rows] >= 0
        right = np.where(
            is_known,
            (outcome.verdict == TupleVerdict.DUPLICATE)
            & (outcome.first_window == sample.window[rows])
            & (outcome.first_origin == sample.origin[rows]),
            outcome.verdict == TupleVerdict.UNIQUE,
        )
        count += int(np.count_nonzero(~right))
    return count


def measured(file: Path) -> dict[str, Any]:
    """One run of the command, without kills."""
    started = time.perf_counter()
    done = reshard(file, "--execute")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_rss_mib": used.ru_maxrss >> 10,
        "pieces": [report["pieces_before"], report["pieces_after"]],
        "parts": report["parts"],
        "before": report["before"],
        "after": report["after"],
    }


def main() -> None:
    """Prints one line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--keys", type=int, default=50_000_000)
    options.add_argument("--backend", default="file")
    options.add_argument("--kills", action="store_true", help="kill it at five points, and judge a sample afterwards")
    given = options.parse_args()
    found: dict[str, Any] = {"keys": given.keys, "backend": given.backend, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="reshard-") as directory:
        file = make(Path(directory), given.backend, given.keys)
        if given.kills:
            sample = sample_of(file)
            found["sample"] = len(sample.digests)
            found["sample_wrong_before"] = differing(file, sample)
            found |= killed_at_five_points(file)
            found["sample_wrong_after"] = differing(file, sample)
            # Not the memory: a child's greatest is at least what this process had when it was started.
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            found["cpu_seconds_of_all_runs"] = round(used.ru_utime + used.ru_stime, 1)
        else:
            found |= measured(file)
    found["load_at_the_end"] = os.getloadavg()[0]
    print(json.dumps(found))
    sound = not (found.get("sample_wrong_before") or found.get("sample_wrong_after") or found.get("twice"))
    sys.exit(0 if sound and not found.get("in_another_shard") else 1)


if __name__ == "__main__":
    main()
