"""The second step of a window: a shard's keys from all source partitions are judged against the store.

A shard takes the keys that the reading tasks left (`tasks.exchange`), in source order, because equal
keys may come from several source partitions and the first *in source order* is the unique one. It judges them at once,
leaves the verdicts for the writers, and writes the piece. This module travels to executors, so it imports nothing of
the job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import PieceStore, append_piece
from bucket_store.tables.manager import ShardTables, TableSettings
from bucket_store.tables.view import ShardView
from deduper.core.categories import PlaceIntervals
from deduper.core.judge import ShardOutcome, ShardRows, judge_shard
from deduper.core.kernels import Int64s
from deduper.core.lookups import JudgeRules
from deduper.core.statistics import NO_SPANS, SpanCounts
from deduper.core.verdict import FIRST_DUPLICATE_CODE, TupleVerdict
from deduper.leaks.sample import SampledRecords, sampled_records
from deduper.tasks import exchange
from deduper.tasks.exchange import FileExchange, JudgeExchange, OfReaders
from deduper.tasks.found_partitions import in_window
from deduper.tasks.read import cpu_seconds


@dataclass(frozen=True, slots=True)
class Receipt:
    """One shard's part of a window, for the driver once its piece is durable: exactly one receipt a shard counts.

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


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """The parameters of every shard's task, pickled into the job; the view of its shard is a task's second argument.

    `directory` has the keys of the reading tasks `readers`, in source order. `category_ids` has, for each reading task,
    the window's id of each of its own. `sample_bits`: the receipts have the records of one key in 2**sample_bits.
    `ordinals`: see `FoundPartitions`.
    """

    directory: str
    readers: tuple[str, ...]

    store_url: str
    store_id: str
    window: int
    epoch: int
    attempt: int
    rules: JudgeRules
    tables: TableSettings
    places: PlaceIntervals | None
    category_ids: tuple[NDArray[np.int32], ...]
    sample_bits: int | None = None
    ordinals: tuple[Int64s, ...] = ()


def judge(
    task: JudgeTask, view: ShardView, *, stays_open: bool = False, exchange: JudgeExchange | None = None
) -> Receipt:
    """Judge a shard's part of the window: its verdicts are left for the writers, its piece is durable in the store.

    `stays_open`: see `PieceStore.append`. `exchange`: the files of the task's folder by default.
    """
    shard = view.shard
    started, cpu = time.perf_counter(), cpu_seconds()
    travels = FileExchange(task.directory, task.readers) if exchange is None else exchange
    parts = [_part(task, reader, batch) for reader, batch in travels.keys(shard)]
    rows = _rows(parts, task)
    drained = time.perf_counter()
    failpoints.hit("judge.drained")
    store = open_backend(task.store_url)
    try:
        with ShardTables.open(task.tables, store, view) as tables:
            opened = time.perf_counter()
            outcome = judge_shard(rows, task.rules, task.window, tables.find, tables.load)
            counters = asdict(tables.counters)
        judged = time.perf_counter()
        travels.leave_verdicts(shard, *_verdicts(outcome, task, parts))
        failpoints.hit("judge.piece.before")
        left = time.perf_counter()
        piece = _append(outcome, task, view, store, stays_open=stays_open)
        failpoints.hit("judge.piece.after")
    finally:
        store.close()
    sampled = None if task.sample_bits is None else _sampled(rows, outcome, task.rules, task.sample_bits)
    return Receipt.of(
        shard,
        outcome,
        piece,
        table_counters=counters,
        sampled=sampled,
        seconds={
            "keys": drained - started,
            "tables": opened - drained,
            "tables.apply": counters["apply_seconds"],
            "judge": judged - opened,
            "judge.load": counters["load_seconds"],
            "verdicts": left - judged,
            "piece": time.perf_counter() - left,
            "cpu.judge": cpu_seconds() - cpu,
        },
    )


@dataclass(frozen=True, slots=True)
class _ReaderRows:
    """A shard's rows from one reading task: its number, theirs there, and their columns."""

    reader: int
    rows: np.ndarray[Any, Any]
    columns: dict[str, np.ndarray[Any, Any]]
    has_latest: np.ndarray[Any, Any] | None


def _part(task: JudgeTask, reader: int, batch: pa.RecordBatch) -> _ReaderRows:
    columns = {name: batch.column(name) for name in batch.schema.names}
    latest = columns.get(exchange.LATEST)
    has_latest = None if latest is None else latest.is_valid().to_numpy(zero_copy_only=False)
    numbers = {name: exchange.numbers(column) for name, column in columns.items()}
    if task.places is not None:
        ids = np.append(task.category_ids[reader], np.int32(-1))
        numbers[exchange.CATEGORY] = ids[numbers[exchange.CATEGORY]]
    if task.ordinals:
        numbers[exchange.PLACE] = in_window(numbers[exchange.PLACE], task.ordinals[reader])
    return _ReaderRows(reader, numbers.pop(exchange.ROW), numbers, has_latest)


def _rows(parts: Sequence[_ReaderRows], task: JudgeTask) -> ShardRows:
    float_domain = task.rules.float_domain
    digests = np.stack(
        [_joined(parts, name, np.int64).view(np.uint64) for name in (exchange.HI, exchange.LO)],
        axis=1,
    )
    order = _joined(parts, exchange.ORDER, np.int64)
    admission = _joined(parts, exchange.ADMISSION, np.uint8)
    expiry = category = latest = has_latest = None
    if task.places is not None:
        category, admission = task.places.places(_joined(parts, exchange.CATEGORY, np.int32), order, admission)
    elif task.rules.by not in ("processing_time", "never"):
        expiry = _joined(parts, exchange.EXPIRY, np.float64 if float_domain else np.int64)
    if parts and parts[0].has_latest is not None:
        latest = _joined(parts, exchange.LATEST, np.float64 if float_domain else np.int64)
        has_latest = np.concatenate([part.has_latest for part in parts if part.has_latest is not None])
    place = _joined(parts, exchange.PLACE, np.int64) if parts and exchange.PLACE in parts[0].columns else None
    fingerprint = _joined(parts, exchange.FINGERPRINT, np.uint64) if task.rules.has_fingerprint else None
    return ShardRows(digests, order, admission, expiry, latest, has_latest, category, place, fingerprint)


def _joined(parts: Sequence[_ReaderRows], name: str, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """One column of all parts, copied into one array."""
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate([part.columns[name] for part in parts]).astype(dtype, copy=False)


def _verdicts(outcome: ShardOutcome, task: JudgeTask, parts: Sequence[_ReaderRows]) -> tuple[OfReaders, OfReaders]:
    """The verdicts, and the first copies if they are kept or compared, of each reading task's rows."""
    reasons = _reason_codes(outcome)
    keeps_first, compares = task.rules.keep_first_seen, task.rules.has_fingerprint
    has_first = outcome.first_window >= 0 if keeps_first else outcome.is_conflict
    firsts = _first_copies(outcome, task.rules, parts, has_first) if parts and (keeps_first or compares) else None
    begin = first = 0
    verdicts: OfReaders = []
    copies: OfReaders = []
    for of_reader in parts:
        numbers = of_reader.rows
        end = begin + numbers.size
        part = slice(begin, end)
        columns = {
            exchange.ROW: pa.array(numbers),
            exchange.VERDICT: pa.array(outcome.verdict[part]),
            exchange.REASON: pa.array(reasons[part]),
        }
        verdicts.append((of_reader.reader, pa.RecordBatch.from_pydict(columns)))
        if firsts is not None:
            count = int(np.count_nonzero(has_first[part]))
            copies.append((of_reader.reader, firsts.slice(first, count)))
            first += count
        begin = end
    return verdicts, copies


def _sampled(rows: ShardRows, outcome: ShardOutcome, rules: JudgeRules, bits: int) -> SampledRecords | None:
    try:
        return sampled_records(rows, outcome, rules, bits)
    except Exception as exc:  # noqa: BLE001  an accessory: no window fails by it
        logger.warning("the leak meter has no sample of a shard: %s", exc)
        return None


def _reason_codes(outcome: ShardOutcome) -> np.ndarray[Any, Any]:
    """The reason of every row as an index into REASONS, -1 for those without one."""
    codes = outcome.admission.astype(np.int8)
    np.copyto(codes, -1, where=outcome.verdict == TupleVerdict.UNIQUE)
    has_copy = outcome.verdict == TupleVerdict.DUPLICATE
    if outcome.fingerprint is not None:
        has_copy |= outcome.is_version
    np.copyto(codes, FIRST_DUPLICATE_CODE + outcome.copies.view(np.int8), where=has_copy)
    return codes


def _first_copies(
    outcome: ShardOutcome, rules: JudgeRules, parts: Sequence[_ReaderRows], has_first: NDArray[np.bool_]
) -> pa.RecordBatch:
    """Those of the rows that have one, with fingerprints of conflicts; without `keep_first_seen` the window is -1."""
    rows = np.flatnonzero(has_first)
    expiry = outcome.first_expiry[rows]
    fingerprints = None
    if outcome.fingerprint is not None and outcome.first_fingerprint is not None:
        others = ~outcome.is_conflict[rows]
        fingerprints = (
            pa.array(outcome.fingerprint[rows], mask=others),
            pa.array(outcome.first_fingerprint[rows], mask=others),
        )
    return exchange.first_copies(
        np.concatenate([part.rows for part in parts])[rows],
        window=outcome.first_window[rows],
        origin=outcome.first_origin[rows],
        expiry=pa.array(expiry) if rules.has_expiry_key else pa.nulls(expiry.size, pa.int64()),
        fingerprints=fingerprints,
    )


def _append(
    outcome: ShardOutcome, task: JudgeTask, view: ShardView, store: PieceStore, *, stays_open: bool
) -> PieceRef | None:
    if outcome.entries is None:
        return None
    return append_piece(
        store,
        outcome.entries,
        store_id=bytes.fromhex(task.store_id),
        shard=view.shard,
        first_window=task.window,
        last_window=task.window,
        epoch=task.epoch,
        attempt=task.attempt,
        stays_open=stays_open,
        cache=task.tables.piece_cache(store, view.folder),
    )
