"""Loads the kernels, forks, and judges in the child, as a worker's daemon does.

    python -m tests.bench.kernel_probe

Prints one JSON object: seconds until the kernels are loaded, and the child's first and later calls in ms.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

_ROWS = 1000
_CALLS = 21


def main() -> None:
    """Load, fork, measure, tell."""
    began = time.perf_counter()
    from deduper.tasks.warm import JobKernels
    from deduper.tasks.worker_daemon import load

    load()
    JobKernels(False, False, False, True, True, ("json",), True).load()

    loaded = time.perf_counter() - began
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, json.dumps(_calls()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as reported:
        calls = json.loads(reported.read())
    os.waitpid(child, 0)
    later = sorted(calls[1:])[len(calls) // 2]
    found = {"load_seconds": round(loaded, 3), "first_call_ms": round(calls[0], 3), "later_call_ms": round(later, 3)}
    sys.stdout.write(json.dumps(found) + "\n")


def _calls() -> list[float]:
    """Milliseconds of judging a thousand rows, call by call."""
    from bucket_store.tables.matches import Matches
    from deduper.core.judge import ShardRows, judge_shard
    from deduper.core.lookups import JudgeRules

    random = np.random.default_rng(1)
    rules = JudgeRules("event_time", False, False, 86_400_000_000, 3_600_000_000, 1, True, None)
    spent = []
    for _ in range(_CALLS):
        rows = ShardRows(
            digests=random.integers(1, 1 << 63, (_ROWS, 2), np.uint64),
            order=np.arange(_ROWS, dtype=np.int64),
            admission=np.zeros(_ROWS, np.uint8),
            expiry=np.full(_ROWS, 1_767_225_600_000_000, np.int64),
            latest_before=None,
            has_latest=None,
            category=None,
        )
        began = time.perf_counter()
        judge_shard(rows, rules, 0, lambda _, digests: Matches(np.zeros(len(digests), np.bool_), None, None, None))
        spent.append((time.perf_counter() - began) * 1000)
    return spent


if __name__ == "__main__":
    main()
