"""The verdict of each row of a batch: new, a repeat within the batch, in the table, or an error.

The repeats of a batch are found first, and each key is looked up once. A load asks for what to add, so of a key that
the table has every row is in the table. A change asks what to do with each key, so one row of it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deduper.table.batch import BAD_LINE, Batch, Keep, KeepRule
from deduper.table.columns import NO_VALUE, KeyColumn, KeyColumns, fits_a_name, folder_name
from deduper.table.index.keys import Int64s, SortedKeys, UInt64s, in_order, row_keys, wide
from deduper.table.index.protocol import ABSENT, Values, VersionKeys
from deduper.tasks.readers.path_columns import is_hidden

_FIRST_DAY, _LAST_DAY = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))
"""Dates with a year of four digits; deltalake reads no table that has a partition of another one."""


Kind = Literal["load", "upsert", "delete"]
"""Of a write of a batch."""


def rows_by_verdict(verdict: NDArray[np.int8]) -> Counter[int]:
    """The number of rows by verdict."""
    rows = np.bincount(verdict)
    return Counter({int(code): int(rows[code]) for code in np.flatnonzero(rows)})


class Verdict(IntEnum):
    """The outcome of a row."""

    NEW = 0
    SAME_LOAD = 1
    IN_TABLE = 2
    NULL_KEY = 10
    NULL_PARTITION = 11
    BAD_PARTITION = 12
    MALFORMED = 13

    @property
    def reason(self) -> str:
        """Its name in receipts and in `_load.reason`."""
        return self.name.lower()

    @property
    def is_error(self) -> bool:
        return self >= Verdict.NULL_KEY


TO_TABLE: dict[Kind, frozenset[Verdict]] = {
    "load": frozenset({Verdict.NEW}),
    "upsert": frozenset({Verdict.NEW, Verdict.IN_TABLE}),
    "delete": frozenset(),
}
"""The verdicts whose rows are written to the table."""
TO_DUPLICATES: dict[Kind, frozenset[Verdict]] = {
    "load": frozenset({Verdict.SAME_LOAD, Verdict.IN_TABLE}),
    "upsert": frozenset({Verdict.SAME_LOAD}),
    "delete": frozenset(),
}
"""Those whose rows go to the port of this name; errors go to theirs."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdict of each row of a batch, and the number of the `first` file of the table with its key (ABSENT: none).

    `keys` are those of the batch, each once, and `rows` the row of each that is no repeat. `place` and `file`: each
    file that holds a key, by the key's place.
    """

    verdict: NDArray[np.int8]
    first: Int64s
    keys: SortedKeys
    rows: Int64s
    place: Int64s
    file: Int64s

    @property
    def is_found(self) -> NDArray[np.bool_]:
        """Whether the table has each key."""
        is_found = np.zeros(self.keys.count, np.bool_)
        is_found[self.place] = True
        return is_found


def judge(
    batch: Batch,
    columns: KeyColumns,
    keep: Keep,
    version: VersionKeys,
    *,
    replaces: bool = False,
    required: Sequence[KeyColumn] | None = None,
) -> Verdicts:
    """Judges all rows of a batch: of each key that the table does not have, one row is new.

    Of a key that the table has, all rows are in the table; with `replaces` one is, and the others are repeats.
    `required`: the columns whose nulls are errors, all digested ones; None: all columns of the key and the partitions.
    """
    read = _Rows(batch, columns, keep, version, columns.all if required is None else required)
    verdict = read.verdict
    rows, keys = read.admitted()
    again = keys.again()
    kept = rows
    if again.any():
        verdict[repeated(rows, again, keep.rule, read.ranks())] = Verdict.SAME_LOAD
        kept, keys = rows[verdict[rows] != Verdict.SAME_LOAD], keys.chosen(~again)
    place, file = version.find(keys, read.values(kept))
    first_of_key = np.full(keys.count, ABSENT, np.int64)
    first_of_key[place[::-1]] = file[::-1]
    is_found = first_of_key != ABSENT
    first = np.full(len(verdict), ABSENT, np.int64)
    if replaces or kept is rows:
        first[kept] = first_of_key
        verdict[kept[is_found]] = Verdict.IN_TABLE
    elif is_found.any():
        first[rows] = first_of_key[np.cumsum(~again) - 1]
        verdict[first != ABSENT] = Verdict.IN_TABLE
    return Verdicts(verdict, first, keys, kept, place, file)


def repeated(rows: Int64s, again: NDArray[np.bool_], keep: KeepRule, rank: pa.Array | None) -> Int64s:
    """The rows that are not kept: of equal keys one is kept, by the rule. `rank` are the values of all rows.

    `again` says whether a row's key is that of the row before.
    """
    among = again.copy()
    among[:-1] |= again[1:]
    rows, group = rows[among], np.cumsum(~again)[among]
    place = -rows if keep == "last" else rows
    rows = rows[np.lexsort((place, group) if rank is None else (place, -_ranks(rank.take(pa.array(rows))), group))]
    # The groups are where they were: of each the first is kept.
    return rows[again[among]]


@dataclass(frozen=True, slots=True)
class _Part:
    """What judging needs of the rows of a record batch."""

    verdict: NDArray[np.int8]
    bucket: Int64s
    hi: UInt64s
    lo: UInt64s
    rank: pa.Array | None
    wanted: Sequence[pa.Array]


class _Rows:
    """The keys of a batch, and its verdicts while they are made; before the look-up a row is NEW or an error."""

    def __init__(
        self, batch: Batch, columns: KeyColumns, keep: Keep, version: VersionKeys, required: Sequence[KeyColumn]
    ) -> None:
        parts = list(_read(batch, columns, keep, version, required))
        wanted = enumerate(version.wanted)
        self._wanted = {
            column.name: pa.chunked_array([part.wanted[place] for part in parts], wide(pa.nulls(0, column.arrow)).type)
            for place, column in wanted
        }
        parts = parts or [_NO_ROWS]
        self.verdict = np.concatenate([part.verdict for part in parts])
        self._keys: tuple[Any, ...] = tuple(
            np.concatenate([getattr(part, name) for part in parts]) for name in ("bucket", "hi", "lo")
        )
        self._ranks = [part.rank for part in parts if part.rank is not None]

    def admitted(self) -> tuple[Int64s, SortedKeys]:
        """(rows, keys) by key, without the errors. Called once."""
        rows, keys = in_order(*self._keys)
        self._keys = ()  # they take as much memory as the sorted ones
        if self.verdict.any():
            admitted = self.verdict[rows] == Verdict.NEW
            rows, keys = rows[admitted], keys.chosen(admitted)
        return rows, keys

    def values(self, rows: Int64s) -> Values:
        """What a look-up of the keys of these rows wants of them."""
        return {name: column.take(pa.array(rows)).combine_chunks() for name, column in self._wanted.items()}

    def ranks(self) -> pa.Array | None:
        """The values of all rows by which `greatest` chooses; None for other rules."""
        return pa.concat_arrays(self._ranks) if self._ranks else None


def _read(
    batch: Batch, columns: KeyColumns, keep: Keep, version: VersionKeys, required: Sequence[KeyColumn]
) -> Iterator[_Part]:
    names = [column.name for column in required]
    if keep.column is not None and keep.column not in names:
        names.append(keep.column)
    if batch.is_lines:
        names.append(BAD_LINE)
    for records in batch.batches(names):
        keys = row_keys([records.column(column.name) for column in columns.digested], columns, version.salt)
        rank = None if keep.column is None else wide(records.column(keep.column))
        wanted = [wide(records.column(column.name)) for column in version.wanted]
        yield _Part(_admission(records, columns, required), *keys, rank, wanted)


_NO_ROWS = _Part(
    np.zeros(0, np.int8), np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64), pa.nulls(0), ()
)


def _admission(records: pa.RecordBatch, columns: KeyColumns, required: Sequence[KeyColumn]) -> NDArray[np.int8]:
    """NEW, or the error of each row; of a bad line that counts, then one of the key."""
    verdict = np.full(records.num_rows, Verdict.NEW, np.int8)
    for wanted, error in ((columns.partition_by, Verdict.NULL_PARTITION), (columns.key, Verdict.NULL_KEY)):
        for column in wanted:
            if column not in required:
                continue
            values = records.column(column.name)
            if error is Verdict.NULL_PARTITION:
                verdict[_names_no_folder(values, column)] = Verdict.BAD_PARTITION
            if values.null_count:
                verdict[values.is_null().to_numpy(zero_copy_only=False)] = error
    if BAD_LINE in records.schema.names:
        verdict[records.column(BAD_LINE).is_valid().to_numpy(zero_copy_only=False)] = Verdict.MALFORMED
    return verdict


def _names_no_folder(values: pa.Array, column: KeyColumn) -> NDArray[np.bool_]:
    """Whether each value has no folder of its own that every reader finds and takes for it."""
    is_bad = np.zeros(len(values), np.bool_)
    if column.type == "string":
        # Folders that are named for these two stand for null, and a name ends at a NUL.
        found = pc.or_(pc.is_in(values, pa.array(["", NO_VALUE])), pc.match_substring(values, "\0"))
        is_bad = found.fill_null(False).to_numpy(zero_copy_only=False) | _is_in_no_folder(values, column.name)
    elif column.type == "date":
        days = values.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        is_bad = (days < _FIRST_DAY) | (days > _LAST_DAY)
    return is_bad


def _is_in_no_folder(values: pa.Array, column: str) -> NDArray[np.bool_]:
    """Whether the folder of each text is more than a file system can have, or readers pass over it."""
    different = values.unique()
    bad = [
        text
        for text in different.to_pylist()
        if text is not None and (not fits_a_name(column, text) or is_hidden(folder_name(column, text)))
    ]
    is_bad: NDArray[np.bool_] = pc.is_in(values, pa.array(bad, values.type)).to_numpy(zero_copy_only=False)
    return is_bad


def _ranks(values: pa.Array) -> Int64s:
    """Numbers in the order of the values; equal values have equal numbers, null the least."""
    ranked = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy(zero_copy_only=False)
    ranks: Int64s = np.where(values.is_valid().to_numpy(zero_copy_only=False), ranked.astype(np.int64), 0)
    return ranks
