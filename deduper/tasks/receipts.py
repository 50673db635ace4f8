"""The report of a shard's task to the driver once its piece is durable: exactly one receipt a shard counts."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np

from bucket_store.pieces.piece import PieceRef
from deduper.core.judge import ShardOutcome
from deduper.core.statistics import NO_SPANS, SpanCounts
from deduper.core.verdict import TupleVerdict
from deduper.leaks.sample import SampledRecords


def cpu_seconds() -> float:
    """CPU seconds so far of the runner of a task: a worker with all its native threads, or one thread of the driver."""
    return time.process_time() if threading.active_count() == 1 else time.thread_time()


@dataclass(frozen=True, slots=True)
class Receipt:
    """One shard's part of a window.

    `counts` is in the order of `TupleVerdict`; `reasons` counts rows by reason; `max_admitted` is the greatest expiry
    key among unique and duplicate tuples, `max_remembered` that among the new entries (both None when there are none).
    `piece` is None for a shard with nothing new. `first_windows` has the windows of the first copies of all copies,
    where they are known, each with its number of duplicates; `distances` counts these by their distance. Seconds are
    wall time inside the task: `keys` gathers them, `tables` opens and applies, `judge` looks up and decides, `verdicts`
    leaves them for the writers, `piece` writes it. `sampled` are the records of sampled keys, for the leak meter; None
    without one, or if they could not be taken.
    """

    shard: int
    counts: tuple[int, int, int, int]
    reasons: dict[str, int]
    max_admitted: int | float | None
    max_remembered: int | float | None
    piece: PieceRef | None
    buckets: tuple[int, ...]
    rows_by_partition: dict[int, int]
    first_windows: dict[int, int]
    table_counters: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    distances: SpanCounts = NO_SPANS
    sampled: SampledRecords | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        shard: int,
        outcome: ShardOutcome,
        piece: PieceRef | None,
        table_counters: dict[str, float] | None = None,
        seconds: dict[str, float] | None = None,
        sampled: SampledRecords | None = None,
    ) -> Receipt:
        """The receipt of a shard that was judged."""
        unique, duplicate, expired, error = (int(count) for count in outcome.counts)
        is_known = outcome.first_window >= 0
        is_duplicate = outcome.verdict == TupleVerdict.DUPLICATE
        others = np.unique(outcome.first_window[is_known & ~is_duplicate])
        windows, often = np.unique(outcome.first_window[is_known & is_duplicate], return_counts=True)
        return cls(
            shard=shard,
            counts=(unique, duplicate, expired, error),
            reasons=outcome.reasons(),
            max_admitted=outcome.max_admitted,
            max_remembered=outcome.max_remembered,
            piece=piece,
            buckets=tuple(outcome.buckets),
            rows_by_partition=outcome.rows_by_partition,
            first_windows=dict.fromkeys(others.tolist(), 0) | dict(zip(windows.tolist(), often.tolist(), strict=True)),
            table_counters=table_counters or {},
            seconds=seconds or {},
            distances=outcome.distances,
            sampled=sampled,
        )
