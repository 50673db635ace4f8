"""How long the kernels take for one shard's batch; look-ups not included.

`python tests/bench/bench_judge.py` prints milliseconds after warming: of CPU time the median and the least of 25
runs, because other work on the machine shows less in it, and of wall time the median.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from bucket_store.tables.matches import Matches
from deduper.core import clock
from deduper.core import judge as batch
from deduper.core.clock import POSITION_BITS, ClockRules, PartitionClock
from deduper.core.judge import JudgeRules, ShardRows, judge_shard

ROWS = 250_000
SEED = 7


def main() -> None:
    """Runs and prints every workload."""
    batch.warm()
    clock.warm()
    print(f"{ROWS} rows, seed {SEED}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    for share in (0.6, 1.0):
        rows = _rows(int(ROWS * share))
        _judge("event_time own_bucket", rows, share, all_live=False, float_domain=False)
        _judge("event_time all_live", rows, share, all_live=True, float_domain=False)
    _judge("ordered on doubles", _rows(int(ROWS * 0.6), float_domain=True), 0.6, all_live=False, float_domain=True)
    _judge("one key, rows in any order", _rows(1, partitions=0), 0.0, all_live=True, float_domain=False)
    order = np.arange(ROWS, dtype=np.int64)
    expiry = np.arange(ROWS, dtype=np.int64) * 1000
    admission = np.zeros(ROWS, np.uint8)
    rules = ClockRules(False, 86_400_000_000, 3_600_000_000, 10**12, 0, None, 0)
    _time("PartitionClock.run", lambda: PartitionClock(rules).run(order, expiry, admission))


def _rows(distinct: int, *, float_domain: bool = False, partitions: int = 8) -> ShardRows:
    random = np.random.default_rng(SEED)
    keys = random.integers(1, 2**64, (distinct, 2), np.uint64)
    index = random.integers(0, distinct, ROWS)
    expiry = np.sort(random.integers(0, 86_400_000_000, distinct))
    order = np.arange(ROWS, dtype=np.int64)
    if partitions == 0:
        order = random.permutation(order)
    else:
        # Source partitions in any order, the rows of each in theirs.
        dealt = np.sort(random.integers(0, partitions, ROWS))
        order = (random.permutation(partitions)[dealt] << POSITION_BITS) + order
    return ShardRows(
        digests=keys[index],
        order=order,
        admission=np.zeros(ROWS, np.uint8),
        expiry=expiry[index].astype(np.float64 if float_domain else np.int64),
        latest_before=np.full(ROWS, 86_400_000_000, np.float64 if float_domain else np.int64),
        has_latest=np.ones(ROWS, np.bool_),
        category=None,
    )


def _judge(name: str, rows: ShardRows, share: float, *, all_live: bool, float_domain: bool) -> None:
    rules = JudgeRules("event_time", all_live, float_domain, 86_400_000_000, 3_600_000_000, 1, True, None)
    number = np.float64 if float_domain else np.int64
    blank = Matches(
        np.zeros(ROWS, np.bool_), np.zeros(ROWS, number), np.zeros(ROWS, np.int64), np.zeros(ROWS, np.uint32)
    )

    def find(_: int, digests: Any) -> Matches:
        count = len(digests)
        return Matches(blank.found[:count], blank.expiry[:count], blank.origin[:count], blank.window[:count])  # type: ignore[index]

    _time(f"judge_shard, {name}, {share:.0%} drawn keys", lambda: judge_shard(rows, rules, 0, find))


def _time(name: str, work: Callable[[], Any]) -> None:
    work()
    cpu, wall = [], []
    for _ in range(25):
        begin = time.thread_time(), time.perf_counter()
        work()
        cpu.append((time.thread_time() - begin[0]) * 1000)
        wall.append((time.perf_counter() - begin[1]) * 1000)
    print(f"{name:55} CPU {median(cpu):6.2f} ms, least {min(cpu):6.2f} ms   wall {median(wall):6.2f} ms")


if __name__ == "__main__":
    main()
