"""The Python that runs inside Spark's tasks: the clock before the exchange, the verdicts after it.

Both are iterator Arrow UDFs. They get only what judging needs (digest, source order, fate, expiry key); the payload
stays in the JVM. This module travels to executors, so it imports nothing of the job.

A shard's task first drains its input, because equal keys may come from several source partitions in any order and the
first *in source order* is the unique one. It judges the whole shard at once, gives the verdicts back in the order of
the input, and only when Spark has taken all of them writes the piece and adds the receipt: an abandoned task leaves
nothing but an orphan piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bucket_store import failpoints
from bucket_store.backend import PieceStore, append_piece, open_backend
from bucket_store.log_values import SourcesRef
from bucket_store.manager import ShardTables, TableSettings
from bucket_store.piece import PieceRef
from bucket_store.sources_file import read_sources
from bucket_store.view import ShardView
from deduper.batch import JudgeRules, ShardOutcome, ShardRows, judge_shard
from deduper.categories import PlaceIntervals
from deduper.clock import POSITION_BITS, ClockRules, PartitionClock
from deduper.receipts import Receipt, ReceiptBox
from deduper.verdict import DUPLICATE_REASONS, Fate, Verdict

ArrowColumns = tuple[pa.Array, ...]


@dataclass(frozen=True, slots=True)
class BatchTask:
    """All that a shard's task may know of its batch and of the store; pickled into the UDF.

    `source_names`, what positions in them count from (`source_starts`) and their writers (`source_slots`, for ports
    that keep their order) are those of this window by ordinal; `sources_files` maps live windows to the file that holds
    theirs.
    """

    store_url: str
    store_root: str
    store_id: str
    window: int
    epoch: int
    attempt: int
    rules: JudgeRules
    tables: TableSettings
    views: tuple[ShardView, ...]
    source_names: tuple[str, ...]
    source_starts: tuple[int, ...]
    source_slots: tuple[int, ...]
    sources_files: dict[int, SourcesRef]
    places: PlaceIntervals | None


def clock_function(rules: ClockRules, *, with_latest: bool) -> Callable[[Iterator[ArrowColumns]], Iterator[pa.Array]]:
    """(order, expiry, fate) -> fate, or struct(fate, latest point before the tuple) when a look-up needs it."""

    def run_clock(batches: Iterator[ArrowColumns]) -> Iterator[pa.Array]:
        clock = PartitionClock(rules)
        for order, expiry, fate in batches:
            fates, latest, has_latest = clock.run(_numbers(order), _numbers(expiry), _numbers(fate))
            judged_fate = pa.array(fates.view(np.int8), pa.int8())
            if with_latest:
                latest_before = pa.array(latest, mask=~has_latest)
                yield pa.StructArray.from_arrays([judged_fate, latest_before], ["fate", "latest"])
            else:
                yield judged_fate

    return run_clock


def judge_function(task: BatchTask, receipts: ReceiptBox) -> Callable[[Iterator[ArrowColumns]], Iterator[pa.Array]]:
    """(hi, lo, order, fate, expiry or category, latest) -> the verdict struct of each row; see `verdict_type`."""

    def run_judge(batches: Iterator[ArrowColumns]) -> Iterator[pa.Array]:
        # Imported here: TaskContext exists only where Spark runs this.
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("the judge runs in a Spark task only")
        shard = context.partitionId()
        started = time.perf_counter()
        parts = list(batches)
        received = time.perf_counter()
        drained_rows = _drained(parts, task)
        drained = time.perf_counter()
        failpoints.hit("judge.drained")
        store = open_backend(task.store_url)
        try:
            with ShardTables.open(task.tables, store, task.views[shard]) as tables:
                opened = time.perf_counter()
                outcome = judge_shard(drained_rows.rows, task.rules, task.window, tables.find)
                counters = asdict(tables.counters)
            judged = time.perf_counter()
            column = _verdict_column(outcome, task)
            formed = time.perf_counter()
            yield from _slices(column, drained_rows.lengths)
            failpoints.hit("judge.piece.before")
            yielded = time.perf_counter()
            piece = _append(outcome, task, shard, store)
            failpoints.hit("judge.piece.after")
        finally:
            store.close()
        receipts.add(
            {
                (task.window, task.epoch, task.attempt, shard): Receipt(
                    shard=shard,
                    counts=_four(outcome.counts),
                    reasons=outcome.reasons(),
                    max_admitted=outcome.max_admitted,
                    least_decisive=outcome.least_decisive,
                    max_remembered=outcome.max_remembered,
                    piece=piece,
                    buckets=tuple(outcome.buckets),
                    rows_by_partition=outcome.rows_by_partition,
                    table_counters=counters,
                    seconds={
                        "read": drained - started,
                        "read.columns": drained - received,
                        "tables": opened - drained,
                        "tables.apply": counters["apply_seconds"],
                        "judge": judged - opened,
                        "judge.load": counters["load_seconds"],
                        "write": yielded - judged,
                        "write.verdicts": formed - judged,
                        "piece": time.perf_counter() - yielded,
                    },
                )
            }
        )

    return run_judge


def verdict_type(*, float_domain: bool, keep_first_seen: bool) -> str:
    """The DDL of what `judge_function` gives."""
    if not keep_first_seen:
        return "struct<verdict: int, reason: int, window: bigint>"
    expiry = "double" if float_domain else "bigint"
    return (
        "struct<verdict: int, reason: int, window: bigint, first_seen: "
        f"struct<window: bigint, source: string, position: bigint, expiry: {expiry}>>"
    )


@dataclass(frozen=True, slots=True)
class _Drained:
    """A shard's input: the rows, and the lengths of the Arrow batches they came in."""

    rows: ShardRows
    lengths: list[int]


def _drained(parts: list[ArrowColumns], task: BatchTask) -> _Drained:
    float_domain = task.rules.float_domain
    hi = _joined(parts, 0, np.int64)
    lo = _joined(parts, 1, np.int64)
    digests = np.stack([hi.view(np.uint64), lo.view(np.uint64)], axis=1)
    order = _joined(parts, 2, np.int64)
    fate = _joined(parts, 3, np.int8).view(np.uint8)
    expiry = category = latest = has_latest = None
    if task.places is None:
        # By processing time the key of every row is the wall clock, and the rules have that.
        if task.rules.by != "processing_time":
            expiry = _joined(parts, 4, np.float64 if float_domain else np.int64)
    else:
        category, fate = task.places.places(_joined(parts, 4, np.int64), order, fate)
    if parts and len(parts[0]) > _LATEST_INDEX:
        latest = _joined(parts, _LATEST_INDEX, np.float64 if float_domain else np.int64)
        has_latest = np.concatenate([part[_LATEST_INDEX].is_valid().to_numpy(zero_copy_only=False) for part in parts])
    rows = ShardRows(digests, order, fate, expiry, latest, has_latest, category)
    return _Drained(rows, [len(part[0]) for part in parts])


_LATEST_INDEX = 5


def _joined(parts: list[ArrowColumns], index: int, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """One column of all batches; nulls become 0 (their rows carry a fate that keeps anyone from looking)."""
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate([_numbers(part[index]) for part in parts]).astype(dtype, copy=False)


def _numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    if column.null_count:
        column = column.fill_null(0)
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return values


def _reason_codes(outcome: ShardOutcome) -> pa.Array:
    """The reason of every row as an index into REASONS, null for unique ones."""
    codes = outcome.fate.astype(np.int32)
    duplicate = outcome.verdict == Verdict.DUPLICATE
    codes[duplicate] = _FIRST_DUPLICATE_CODE + outcome.same_window[duplicate]
    return pa.array(codes, mask=outcome.verdict == Verdict.UNIQUE)


_FIRST_DUPLICATE_CODE = max(Fate) + 1
_FATE_CODES = {int(fate) for fate in Fate}
REASONS = (
    *(Fate(code).reason if code in _FATE_CODES else "" for code in range(_FIRST_DUPLICATE_CODE)),
    *DUPLICATE_REASONS,
)
"""The texts of `_dedup.reason`: those of the fates by their codes, then those of duplicates."""


def _verdict_column(outcome: ShardOutcome, task: BatchTask) -> pa.StructArray:
    count = len(outcome.verdict)
    columns = [
        pa.array(outcome.verdict.astype(np.int32)),
        _reason_codes(outcome),
        pa.array(np.full(count, task.window)),
    ]
    names = ["verdict", "reason", "window"]
    if not task.rules.keep_first_seen:
        return pa.StructArray.from_arrays(columns, names)
    absent = outcome.first_window < 0
    sources, positions = _first_places(outcome, task)
    first_seen = pa.StructArray.from_arrays(
        [
            pa.array(outcome.first_window),
            sources,
            pa.array(positions),
            pa.array(outcome.first_expiry),
        ],
        ["window", "source", "position", "expiry"],
        mask=pa.array(absent),
    )
    return pa.StructArray.from_arrays([*columns, first_seen], [*names, "first_seen"])


def _first_places(outcome: ShardOutcome, task: BatchTask) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """The source partitions that the first copies came from, null where there is none, and the positions in them.

    Only the windows that are met are looked up: a batch's duplicates come from few of them.
    """
    names: list[str] = []
    starts: list[int] = []
    codes = np.zeros(len(outcome.verdict), np.int32)
    rows = np.flatnonzero(outcome.first_window >= 0)
    # A window and an ordinal in it, as one number: both fit, a window has at most 2**23 source partitions.
    places = (outcome.first_window[rows] << _ORDINAL_BITS) | (outcome.first_origin[rows] >> POSITION_BITS)
    met, inverse = np.unique(places, return_inverse=True)
    for place in met.tolist():
        window, ordinal = place >> _ORDINAL_BITS, place & ((1 << _ORDINAL_BITS) - 1)
        if window == task.window:
            known = tuple(zip(task.source_names, task.source_starts, strict=True))
        else:
            known = _sources_of(task.store_root, window, task.sources_files.get(window))
        name, start = known[ordinal] if ordinal < len(known) else ("", 0)
        names.append(name)
        starts.append(start)
    codes[rows] = inverse
    positions = outcome.first_origin & ((1 << POSITION_BITS) - 1)
    positions[rows] += np.array(starts, np.int64)[inverse]
    named = pa.DictionaryArray.from_arrays(pa.array(codes, mask=outcome.first_window < 0), pa.array(names, pa.string()))
    return named.cast(pa.string()), positions


_ORDINAL_BITS = 63 - POSITION_BITS


@lru_cache(maxsize=256)
def _sources_of(store_root: str, window: int, sources_file: SourcesRef | None) -> tuple[tuple[str, int], ...]:
    """Name and start of an earlier window's source partitions by ordinal; a worker meets the same ones often."""
    if sources_file is None:
        return ()
    return tuple((part.name, part.start) for part in read_sources(Path(store_root), window, sources_file))


def _slices(column: pa.StructArray, lengths: list[int]) -> Iterator[pa.Array]:
    start = 0
    for length in lengths:
        yield column.slice(start, length)
        start += length


def _append(outcome: ShardOutcome, task: BatchTask, shard: int, store: PieceStore) -> PieceRef | None:
    if outcome.entries is None:
        return None
    return append_piece(
        store,
        outcome.entries,
        store_id=bytes.fromhex(task.store_id),
        shard=shard,
        first_window=task.window,
        last_window=task.window,
        epoch=task.epoch,
        attempt=task.attempt,
    )


def _four(counts: np.ndarray[Any, Any]) -> tuple[int, int, int, int]:
    unique, duplicate, expired, error = (int(count) for count in counts)
    return unique, duplicate, expired, error
