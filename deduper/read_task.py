"""The first job of a window, in Python: one source partition's records are set aside, their keys dealt to the shards.

Here every record is met in the order of its source, so here the clock runs, tuple by tuple, for the price of one pass
over two columns. The records themselves go no further: they are written down as they came, and the job that writes the
ports finds them by number. Only their keys travel to the shards.
"""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from bucket_store import failpoints
from deduper import kernels, spool
from deduper.clock import ClockRules, PartitionClock, batch_clock
from deduper.verdict import Fate

_ORDER_COLUMN, _JUDGED_COLUMNS = 2, 5
"""How many columns come before those that the ports get: HI, LO, ORDER, FATE, EXPIRY or CATEGORY."""


class RecordPlaces(Protocol):
    """Finds the places of records that come without; pickled into the job."""

    def placed(self, records: pa.RecordBatch, order: int) -> pa.RecordBatch:
        """The records that the window takes, with their source order in column `order`, without what told of it."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What a reading task must know; pickled into the job.

    `clock` is None for the expiries whose tuples move none. `in_order` runs it tuple by tuple, otherwise every tuple
    meets the committed latest point. `keeps_latest`: a look-up depends on the clock before each tuple. `places` is None
    where records come with their place.
    """

    directory: str
    shards: int
    clock: ClockRules | None
    in_order: bool
    keeps_latest: bool
    by_category: bool
    places: RecordPlaces | None = None


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """What became of one source partition's records.

    `first_order` is the least source order, 0 without rows. `left_out` are records that the window does not take.
    `categories` are the values of the task's ids, and `first_arrivals` the source order at which each of them was first
    admitted.
    """

    name: str
    rows: int
    first_order: int
    left_out: int = 0
    categories: tuple[str, ...] = ()
    first_arrivals: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def read_function(task: ReadTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Records of a source partition -> one row with the pickled receipt; none for a partition without records."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        placed = None if task.places is None else _Placed(task.places, batches)
        receipt = set_aside(task, batches if placed is None else placed)
        if receipt is not None:
            if placed is not None:
                receipt = replace(receipt, left_out=placed.left_out)
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(receipt)], pa.binary())], ["receipt"])

    return read


def warm() -> None:
    """Compiles, or loads from the cache, what deals keys to shards; the clock's kernels are `clock.warm`'s."""
    kernels.deal(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1, np.uint8), 1)


def set_aside(task: ReadTask, batches: Iterator[pa.RecordBatch]) -> ReadReceipt | None:
    """What a reading task does: HI, LO, ORDER, FATE, EXPIRY or CATEGORY, then what the ports get; None for no batch."""
    began = time.perf_counter()
    # A name of its own for every attempt: a twin must not write into the file that another's receipt names.
    name = secrets.token_hex(8)
    keys = _Keys(task)
    first = next(batches, None)
    if first is None:
        return None
    kept = [_ORDER_COLUMN, *range(_JUDGED_COLUMNS, len(first.schema))]
    schema = pa.schema([first.schema.field(column) for column in kept])
    writing = 0.0
    with spool.writing(spool.rows_file(task.directory, name), schema) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            keys.add(batch.columns[:_JUDGED_COLUMNS])
            wrote = time.perf_counter()
            writer.write_batch(pa.RecordBatch.from_arrays([batch.column(column) for column in kept], schema=schema))
            writing += time.perf_counter() - wrote
            batch = next(batches, None)
    dealt = time.perf_counter()
    receipt = keys.deal(name)
    failpoints.hit("read.spooled")
    receipt.seconds.update({"rows": writing, "keys": time.perf_counter() - dealt, "read": dealt - began - writing})
    return receipt


class _Placed(Iterator[pa.RecordBatch]):
    """Records with their places, and how many the window does not take."""

    def __init__(self, places: RecordPlaces, batches: Iterator[pa.RecordBatch]) -> None:
        self._places = places
        self._batches = batches
        self.left_out = 0

    def __next__(self) -> pa.RecordBatch:
        given = next(self._batches)
        taken = self._places.placed(given, _ORDER_COLUMN)
        self.left_out += given.num_rows - taken.num_rows
        return taken


class _Keys:
    """The columns that judging needs, batch by batch, with the clock's answer."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._clock = PartitionClock(task.clock) if task.clock is not None and task.in_order else None
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {}
        self._categories: list[pa.Array] = []

    def add(self, columns: list[pa.Array]) -> None:
        hi, lo, order, fate = (spool.numbers(column) for column in columns[:4])
        fates = fate.astype(np.uint8)
        self._keep(spool.HI, hi)
        self._keep(spool.LO, lo)
        self._keep(spool.ORDER, order)
        if self._task.by_category:
            self._categories.append(columns[4])
        elif self._task.clock is not None:
            expiry = spool.numbers(columns[4])
            self._keep(spool.EXPIRY, expiry)
            if self._clock is not None:
                fates, latest, has_latest = self._clock.run(order, expiry, fates)
                if self._task.keeps_latest:
                    self._keep(spool.LATEST, latest)
                    self._keep("has_latest", has_latest)
            else:
                fates = batch_clock(self._task.clock, expiry, fates)
        self._keep(spool.FATE, fates)

    def _keep(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self._parts.setdefault(name, []).append(values)

    def deal(self, name: str) -> ReadReceipt:
        """Write the keys, one batch a shard."""
        task = self._task
        columns = {column: np.concatenate(parts) for column, parts in self._parts.items()}
        order, fate = columns[spool.ORDER], columns[spool.FATE]
        values: tuple[str, ...] = ()
        arrivals: dict[str, int] = {}
        if task.by_category:
            values, columns[spool.CATEGORY], arrivals = _encoded(self._categories, order, fate)
        dealt, starts = kernels.deal(columns[spool.LO].view(np.uint64), order, fate, task.shards)
        has_latest = columns.pop("has_latest", None)
        batches = []
        for begin, end in pairwise(starts.tolist()):
            rows = dealt[begin:end]
            taken = {column: pa.array(of_all.take(rows)) for column, of_all in columns.items()}
            if has_latest is not None:
                taken[spool.LATEST] = pa.array(columns[spool.LATEST].take(rows), mask=~has_latest.take(rows))
            batches.append(pa.RecordBatch.from_pydict({spool.ROW: pa.array(rows), **taken}))
        spool.write_batches(spool.keys_file(task.directory, name), batches)
        return ReadReceipt(
            name=name,
            rows=int(order.size),
            first_order=int(order.min()) if order.size else 0,
            categories=values,
            first_arrivals=arrivals,
        )


def _encoded(
    parts: list[pa.Array], order: np.ndarray[Any, Any], fate: np.ndarray[Any, Any]
) -> tuple[tuple[str, ...], np.ndarray[Any, Any], dict[str, int]]:
    """The values of a column of categories, the id of each row's, and where each value was first admitted."""
    encoded = pa.concat_arrays(parts).dictionary_encode()
    # Parquet files may hold texts that are none; they stay apart.
    values = tuple(
        value.decode(errors="backslashreplace") for value in encoded.dictionary.cast(pa.binary()).to_pylist()
    )
    ids = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    admitted = np.flatnonzero((fate == Fate.ADMITTED) & (ids >= 0))
    firsts = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(firsts, ids[admitted], order[admitted])
    return (
        values,
        ids,
        {
            value: int(first)
            for value, first in zip(values, firsts.tolist(), strict=True)
            if first < np.iinfo(np.int64).max
        },
    )
