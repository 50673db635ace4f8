"""The first step of a window: writes a source partition's records to a file, and deals their keys to the shards.

Records arrive here in the order of their source, so the clock runs here, tuple by tuple, in one pass over two columns.
The records stay in their file, unchanged: the writers find them by number. Only their keys travel to the shards.
"""

from __future__ import annotations

import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bucket_store import failpoints
from deduper.core import kernels
from deduper.core.clock import POSITION_BITS, ClockRules, PartitionClock, batch_clock
from deduper.core.statistics import NO_SPANS, SpanCounts, lateness
from deduper.core.verdict import INT64_MAX, Admission
from deduper.tasks import exchange, layout
from deduper.tasks.found_partitions import FoundPartition
from deduper.tasks.layout import RecordLayout


def cpu_seconds() -> float:
    """CPU seconds so far of the runner of a task: a worker with all its native threads, or one thread of the driver."""
    return time.process_time() if threading.active_count() == 1 else time.thread_time()


class RecordPlaces(Protocol):
    """Gives each record its place, where the reader gives none; pickled into the job."""

    def placed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records that the window takes, with ORDER. Called for each batch, in the order of the partition."""

    @property
    def sequence(self) -> int | None:
        """As `ReadTask.sequence`, where ORDER is only a name. Asked after `placed`, for each batch."""

    def partitions(self) -> tuple[FoundPartition, ...]:
        """The source partitions of the records, if only the records name them: ORDER has their indices.

        Called after the last batch.
        """


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The parameters of a reading task; pickled into the job.

    `clock` is None for expiries without a latest point of tuples. `in_order` runs it tuple by tuple, otherwise every
    tuple is compared with the committed latest point. `keeps_latest`: a look-up depends on the clock before each tuple.
    `places` is None where records come with their place. `is_time`: expiry keys are µs, so the lateness of tuples is
    counted. With a `sequence` the records are judged as they come, after those of lower ones, by one clock, and ORDER
    is only where they were read.
    """

    directory: str
    shards: int
    layout: RecordLayout
    clock: ClockRules | None
    in_order: bool
    keeps_latest: bool
    places: RecordPlaces | None = None
    is_time: bool = False
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """The result of reading one source partition.

    `first_order` is the least source order, 0 without rows. `left_out` are records that the window does not take.
    `categories` are the values of the task's ids, and `first_arrivals` the source order at which each of them was first
    admitted, the greatest int64 for one that never was. `lateness` is that of the rows, with `is_time`; `behind` of
    them were expired by earlier windows, and not by records before them in this one.
    `spilled_bytes` is the size of the records as they were left. `partitions`: see `RecordPlaces`.
    """

    name: str
    rows: int
    first_order: int
    left_out: int = 0
    categories: tuple[str, ...] = ()
    first_arrivals: tuple[int, ...] = ()
    lateness: SpanCounts = NO_SPANS
    behind: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    spilled_bytes: int = field(default=0, compare=False)
    partitions: tuple[FoundPartition, ...] = ()


def read_function(task: ReadTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for the records of a source partition: it gives one row, the pickled receipt, or none if empty."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        placed = None if task.places is None else _Placed(task.places, batches)
        receipt = spill(task, batches if placed is None else placed)
        if receipt is not None:
            if placed is not None:
                receipt = replace(receipt, left_out=placed.left_out, partitions=placed.places.partitions())
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(receipt)], pa.binary())], ["receipt"])

    return read


def warm() -> None:
    """Compiles, or loads from the cache, the kernel that deals keys to shards; `clock.warm` does the clock's."""
    kernels.partition(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1, np.uint8), 1)


def spill(task: ReadTask, batches: Iterator[pa.RecordBatch]) -> ReadReceipt | None:
    """Spill the records of a reading task, which have at least the columns of its layout; None for no batch."""
    began, cpu = time.perf_counter(), cpu_seconds()
    # A new name for every run of a task: a second run must not write into the file that the first one's receipt names.
    name = secrets.token_hex(8)
    keys = _Keys(task)
    first = next(batches, None)
    if first is None:
        return None
    kept = task.layout.kept
    writing = 0.0
    records = exchange.rows_file(task.directory, name)
    with exchange.writing(records, kept) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            keys.add(batch)
            wrote = time.perf_counter()
            # Spark's types differ only in the zone that times are shown in, and in nullability.
            columns = [batch.column(field.name) for field in kept]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=kept))
            writing += time.perf_counter() - wrote
            batch = next(batches, None)
    spilled = time.perf_counter()
    receipt = replace(keys.partition(name), spilled_bytes=Path(records).stat().st_size)
    failpoints.hit("read.spilled")
    receipt.seconds.update({"rows": writing, "keys": time.perf_counter() - spilled, "read": spilled - began - writing})
    receipt.seconds["cpu.read"] = cpu_seconds() - cpu
    return receipt


Admitted = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The category, by the reading task's id, and the source order of rows."""


def admitted_rows(task: ReadTask, name: str) -> Admitted:
    """The admitted rows of the reading task of this name."""
    file = exchange.mapped(exchange.keys_file(task.directory, name))
    categories, orders = [], []
    for shard in range(task.shards):
        batch = file.get_batch(shard)
        admitted = batch.column(exchange.ADMISSION).to_numpy() == Admission.ADMITTED
        categories.append(batch.column(exchange.CATEGORY).to_numpy()[admitted])
        orders.append(batch.column(exchange.ORDER).to_numpy()[admitted])
    return np.concatenate(categories), np.concatenate(orders)


class _Placed(Iterator[pa.RecordBatch]):
    """Records with their places, and how many the window does not take."""

    def __init__(self, places: RecordPlaces, batches: Iterator[pa.RecordBatch]) -> None:
        self.places = places
        self._batches = batches
        self.left_out = 0

    def __next__(self) -> pa.RecordBatch:
        given = next(self._batches)
        taken = self.places.placed(given)
        self.left_out += given.num_rows - taken.num_rows
        return taken


class _Keys:
    """The columns that judging needs, batch by batch, with the clock's answer."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._clock = PartitionClock(task.clock) if task.clock is not None and task.in_order else None
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {}
        self._categories: list[pa.Array] = []
        self._lateness = NO_SPANS
        self._behind = 0
        self._added = 0

    def add(self, records: pa.RecordBatch) -> None:
        judged = (layout.HI, layout.LO, layout.ORDER, layout.ADMISSION)
        hi, lo, order, admission = (exchange.numbers(records.column(name)) for name in judged)
        admissions = admission.astype(np.uint8)
        self._keep(exchange.HI, hi)
        self._keep(exchange.LO, lo)
        sequence = self._task.sequence if self._task.places is None else self._task.places.sequence
        if sequence is not None:
            self._keep(exchange.PLACE, order)
            first = (sequence << POSITION_BITS) + self._added
            order = np.arange(first, first + order.size, dtype=np.int64)
            self._added += order.size
        self._keep(exchange.ORDER, order)
        if self._task.layout.has_fingerprint:
            self._keep(exchange.FINGERPRINT, records.column(layout.FINGERPRINT).to_numpy())
        if self._task.layout.has_category:
            self._categories.append(records.column(layout.CATEGORY))
        elif self._task.clock is not None:
            expiry = exchange.numbers(records.column(layout.EXPIRY))
            self._keep(exchange.EXPIRY, expiry)
            if self._clock is not None:
                admissions, latest, has_latest = self._clock.run(order, expiry, admissions)
                if self._task.keeps_latest:
                    self._keep(exchange.LATEST, latest)
                    self._keep("has_latest", has_latest)
                if self._task.is_time:
                    self._lateness += lateness(expiry, latest, has_latest, admissions)
                    self._behind += self._expired_at_first(expiry, admissions)
            else:
                admissions = batch_clock(self._task.clock, expiry, admissions)
                if self._task.is_time:
                    self._lateness += lateness(expiry, self._task.clock.latest, None, admissions)
                    self._behind += self._expired_at_first(expiry, admissions)
        self._keep(exchange.ADMISSION, admissions)

    def _expired_at_first(self, expiry: np.ndarray[Any, Any], admissions: np.ndarray[Any, Any]) -> int:
        clock, expired = self._task.clock, admissions == int(Admission.OLDER_THAN_PERIOD)
        if clock is None or clock.latest is None or not expired.any():
            return 0
        # As kernels.is_expired has it; it decides only what the log says of the causes.
        return int(np.count_nonzero(expiry[expired] <= clock.latest - clock.period))

    def _keep(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self._parts.setdefault(name, []).append(values)

    def partition(self, name: str) -> ReadReceipt:
        """Write the keys, one batch a shard."""
        task = self._task
        columns = {column: np.concatenate(parts) for column, parts in self._parts.items()}
        order, admission = columns[exchange.ORDER], columns[exchange.ADMISSION]
        values: tuple[str, ...] = ()
        arrivals: tuple[int, ...] = ()
        if task.layout.has_category:
            values, columns[exchange.CATEGORY], arrivals = _encoded(self._categories, order, admission)
        partitioned, starts = kernels.partition(columns[exchange.LO].view(np.uint64), order, admission, task.shards)
        has_latest = columns.pop("has_latest", None)
        batches = []
        for begin, end in pairwise(starts.tolist()):
            rows = partitioned[begin:end]
            taken = {column: pa.array(of_all.take(rows)) for column, of_all in columns.items()}
            if has_latest is not None:
                taken[exchange.LATEST] = pa.array(columns[exchange.LATEST].take(rows), mask=~has_latest.take(rows))
            batches.append(pa.RecordBatch.from_pydict({exchange.ROW: pa.array(rows), **taken}))
        exchange.write_batches(exchange.keys_file(task.directory, name), batches)
        return ReadReceipt(
            name=name,
            rows=int(order.size),
            first_order=int(order.min()) if order.size else 0,
            categories=values,
            first_arrivals=arrivals,
            lateness=self._lateness,
            behind=self._behind,
        )


def _encoded(
    parts: list[pa.Array], order: np.ndarray[Any, Any], admission: np.ndarray[Any, Any]
) -> tuple[tuple[str, ...], np.ndarray[Any, Any], tuple[int, ...]]:
    """The values of a column of categories, the id of each row's, and where each value was first admitted."""
    encoded = pa.concat_arrays(parts).dictionary_encode()
    # Parquet files may hold texts that are no UTF-8; they stay different categories.
    values = tuple(
        value.decode(errors="backslashreplace") for value in encoded.dictionary.cast(pa.binary()).to_pylist()
    )
    ids = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    admitted = np.flatnonzero((admission == Admission.ADMITTED) & (ids >= 0))
    firsts = np.full(len(values), INT64_MAX)
    np.minimum.at(firsts, ids[admitted], order[admitted])
    return values, ids, tuple(firsts.tolist())
