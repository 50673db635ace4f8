"""PURE. Workloads of tables as lake-loader has them, at a hundredth: a first table, then batches round by round.

    FACT    10 M rows of 365 days; 100,000 a round, a fourth of them updates; days by a Zipf law over the last 90
    DIM     1 M rows without partitions; 5,000 a round, half of them updates, uniform over all rows
    EVENTS  100 M rows of 1,095 days; 500,000 a round: 80 % of a new day, 15 % and 5 % of the two days before; but
            5 % of the round repeat rows of the last 30 days

Rows have about 200 bytes, 160 of them a text that compresses to a fourth. No key is twice in one batch. Row number k
has the id `k * odd mod 2^63`: ids of one day lie all over, as those of UUIDs do. The column `version` is 0 in the first
table, then the round plus 1, so it says which copy of a row a table has. Deletes have the keys of the known part of a
batch alone, so 25,000 a round of FACT and 2,500 of DIM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1
_INVERSE = pow(_ODD, -1, 1 << 63)
_ZIPF = 1.3
_SIGNS = np.frombuffer(b"0123456789abcdef", np.uint8)
_CHUNK = 1_000_000
_LATE = (0.80, 0.15, 0.05)
_REPEATED_DAYS = 30
_SEED = 11
_GONE = -1
"""The version of a row that was deleted."""

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a workload. `known`: the share of a batch whose keys the table has; `zipf_days`: 0 for none."""

    name: str
    rows: int
    days: int
    batch: int
    known: float
    zipf_days: int
    is_partitioned: bool
    inserts_only: bool


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("fact", 10_000_000, 365, 100_000, 0.25, 90, True, False),
        Shape("dim", 1_000_000, 1, 5_000, 0.50, 0, False, False),
        Shape("events", 100_000_000, 1_095, 500_000, 0.05, 0, True, True),
    )
}


class Workload:
    """A first table of `rows` rows, and batches of `batch`; what was given is counted for the check at the end.

    `has_payload`: without, rows are of id, day and version alone.
    """

    def __init__(self, shape: Shape, rows: int, batch: int, *, has_payload: bool = True) -> None:
        self.shape = shape
        self._has_payload = has_payload
        self.rows = rows
        self.batch = batch
        self._random = np.random.default_rng(_SEED)
        self._starts = np.arange(shape.days + 1, dtype=np.int64) * rows // shape.days
        self._added: dict[int, list[Int64s]] = {}
        self._versions = np.zeros(rows, np.int16)
        self._rounds = 0
        self.appended = 0
        """Rows of all batches."""

    def first_table(self) -> Iterator[pa.Table]:
        """The first table in parts of whole days; one part for each file of a table without partitions."""
        random = np.random.default_rng(_SEED)  # its own: batches are the same when the first table is there already
        edges = self._starts if self.shape.is_partitioned else np.linspace(0, self.rows, 9).astype(np.int64)
        begin = 0
        for place, end in enumerate(edges.tolist()):
            is_due = end - begin >= _CHUNK or place + 1 == len(edges) or not self.shape.is_partitioned
            if is_due and end > begin:
                k = np.arange(begin, end)
                yield self._table(k, np.searchsorted(self._starts, k, side="right") - 1, 0, random)
                begin = end

    def next_batch(self) -> tuple[pa.Table, Int64s]:
        """(the batch of the next round in no order, the ids of it that the table has)."""
        version = self._rounds + 1
        known = int(self.batch * self.shape.known)
        old, new_day = self._known(known), self._days(self.batch - known, is_known=False)
        new = len(self._versions) + np.arange(len(new_day))
        day_of_old = self.day_of(old)
        if not self.shape.inserts_only:
            self._versions[old] = version
        self._versions = np.concatenate([self._versions, np.full(len(new), version, np.int16)])
        for day, _ in zip(*_counted(new_day), strict=True):
            self._added.setdefault(int(day), []).append(new[new_day == day])
        self._rounds += 1
        k, day = np.concatenate([old, new]), np.concatenate([day_of_old, new_day])
        order = self._random.permutation(len(k))
        self.appended += len(k)
        return self._table(k[order], day[order], version, self._random), ids_of(old)

    def next_deletes(self) -> tuple[pa.Table, Int64s]:
        """(the keys that the next round deletes, in no order, all of which the table has; their ids)."""
        drawn = self._known(int(self.batch * self.shape.known))
        gone = self._random.permutation(drawn[self._versions[drawn] != _GONE])
        self._versions[gone] = _GONE
        self._rounds += 1
        return self._table(gone, self.day_of(gone), _GONE, self._random).select(["id", "day"]), ids_of(gone)

    def problem(self, table: Iterable[pa.RecordBatch]) -> str | None:
        """What is wrong with a table that had all batches: keys lost, repeated, of another round; None for nothing."""
        seen = np.zeros(len(self._versions), np.uint8)
        others = 0
        for records in table:
            k = (records["id"].to_numpy().astype(np.uint64) * np.uint64(_INVERSE)).astype(np.int64) & _MASK
            if len(k) and int(k.max()) >= len(seen):
                return "a key that no batch had"
            np.add.at(seen, k, 1)
            others += int((records["version"].to_numpy() != self._versions[k]).sum())
        lost, repeated = int(((seen == 0) & (self._versions != _GONE)).sum()), int((seen > 1).sum())
        return (
            f"{lost:,} lost, {repeated:,} repeated, {others:,} of another round" if lost + repeated + others else None
        )

    @property
    def keys(self) -> int:
        """Rows that a table without repeats has after the batches so far."""
        return int(np.count_nonzero(self._versions != _GONE))

    def _known(self, count: int) -> Int64s:
        """Different row numbers that the table has or had, about so many."""
        days = zip(*_counted(self._days(count, is_known=True)), strict=True)
        return np.concatenate([self._of_day(int(day), int(number)) for day, number in days])

    def _days(self, count: int, *, is_known: bool) -> Int64s:
        last = self.shape.days - 1
        if self.shape.zipf_days:
            rank = np.arange(1, min(self.shape.zipf_days, self.shape.days) + 1)
            odds = rank**-_ZIPF
            return last - self._random.choice(rank - 1, count, p=odds / odds.sum())
        if self.shape.inserts_only:
            if is_known:
                return last + self._rounds - self._random.integers(0, min(_REPEATED_DAYS, last), count)
            return last + 1 + self._rounds - self._random.choice(len(_LATE), count, p=_LATE)
        return np.full(count, last)

    def _of_day(self, day: int, count: int) -> Int64s:
        """Different row numbers of a day, about so many."""
        begin, end = self._starts[[day, day + 1]].tolist() if day < self.shape.days else (0, 0)
        added = np.concatenate([np.zeros(0, np.int64), *self._added.get(day, [])])
        place = np.unique(self._random.integers(0, end - begin + len(added), count))
        first = end - begin
        return np.concatenate([begin + place[place < first], added[place[place >= first] - first]])

    def day_of(self, k: Int64s) -> Int64s:
        """The days of row numbers."""
        day = np.searchsorted(self._starts, k, side="right") - 1
        for added, parts in self._added.items():
            for part in parts:  # each ascends
                at = np.minimum(np.searchsorted(part, k), len(part) - 1)
                day[part[at] == k] = added
        return day

    def _table(self, k: Int64s, day: Int64s, version: int, random: np.random.Generator) -> pa.Table:
        count = len(k)
        columns = {
            "id": pa.array(ids_of(k)),
            "day": pa.array(day.astype(np.int32)).cast(pa.date32()),
            "version": pa.array(np.full(count, version, np.int32)),
        }
        if not self._has_payload:
            return pa.table(columns)
        signs = _SIGNS[random.integers(0, 16, (count, 32), np.uint8)]
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 160)
        payload = pa.StringArray.from_buffers(count, offsets, pa.py_buffer(np.tile(signs, 5).tobytes()))
        return pa.table({**columns, "amount": pa.array(random.random(count)), "payload": payload})


def ids_of(k: Int64s) -> Int64s:
    """The ids of row numbers."""
    return (k.astype(np.uint64) * np.uint64(_ODD)).astype(np.int64) & _MASK


def _counted(values: Int64s) -> tuple[Int64s, Int64s]:
    found, counts = np.unique(values, return_counts=True)
    return found, counts
