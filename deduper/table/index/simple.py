"""The simple index: nothing is stored, files that may have a key are read each time, so every answer is exact.

A file may have a key if its partition is one of the keys' and, by the bounds in its footer, a row group may have one of
their values. Kinds that store something of a file leave out more: `ReadKeys` is for them too.
"""

# ruff: noqa: ARG002  the arguments are the interface's
from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bucket_store.tables.matching import match_sorted
from deduper.core.digests import SALT_BYTES
from deduper.table.columns import KeyColumn, KeyColumns, KeyNames, PartitionValue
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import FileKeys, Int64s, SortedKeys, in_order, partition_values, row_keys, without_null
from deduper.table.index.matching import SortedValues, bounded_column, groups_with
from deduper.table.index.protocol import (
    AddedKeys,
    Condition,
    Differences,
    IndexStatus,
    Rebuilt,
    Values,
    WrittenFile,
)
from deduper.table.index.reading import opened

_THREADS = 4


class ReadKeys:
    """See `VersionKeys`. The first file of a key is that of the lowest number."""

    def __init__(self, root: Path, columns: KeyColumns, salt: bytes, files: Mapping[int, DataFile]) -> None:
        self.salt = salt
        self.files = dict(sorted(files.items()))
        self._root = root
        self._columns = columns
        self.bounded = bounded_column(columns)
        """The column whose bounds leave out files and row groups."""
        self._folders = columns.partition_by if columns.scope == "partition" else ()
        self.wanted: tuple[KeyColumn, ...] = (*self._folders, *([] if self.bounded is None else [self.bounded]))

    def find(self, keys: SortedKeys, values: Values) -> tuple[Int64s, Int64s]:
        """See `VersionKeys`."""
        lookup = Lookup(keys, values, self._folders)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-reader") as pool:
            held = list(pool.map(lambda number: self._held(number, self._places(number, lookup), lookup), self.files))
        place = np.concatenate([np.zeros(0, np.int64), *held])
        counts = np.array([len(one) for one in held], np.int64)
        number = np.repeat(np.array(list(self.files), np.int64), counts)
        order = np.argsort(place, kind="stable")
        return place[order], number[order]

    def narrowed(self, number: int, places: tuple[int, int], lookup: Lookup) -> Int64s:
        """Those of a range of places whose keys the file may have."""
        return np.arange(*places)

    def _places(self, number: int, lookup: Lookup) -> Int64s:
        """The places of the keys that a file may have."""
        partition = self.files[number].partition
        by = self._columns.bucket_column
        bucket = 0 if by is None else partition[self._columns.partition_by.index(by)]
        places = lookup.places.get(bucket)
        if places is None or any(
            value not in wanted for value, wanted in zip(partition, lookup.partitions, strict=False)
        ):
            return np.zeros(0, np.int64)
        return self.narrowed(number, places, lookup)

    def _held(self, number: int, places: Int64s, lookup: Lookup) -> Int64s:
        """Those of the places whose keys are in the file."""
        if not len(places):
            return places
        file = self.files[number]
        wanted = lookup.keys.digests[places]
        found = np.zeros(len(places), np.bool_)
        with opened(self._root, file) as opened_file:
            groups: Sequence[int] | None = None
            if self.bounded is not None:
                opened_file.require_keys(self._columns)
                groups = groups_with(opened_file.footer, self.bounded, lookup.different(places, self.bounded))
            for arrays in opened_file.keys(self._columns, groups):
                rows, keys = in_order(*row_keys(arrays, self._columns, self.salt))
                found |= match_sorted(keys.chosen(without_null(arrays)[rows]).digests, wanted) >= 0
        return places[found]


class Lookup:
    """Keys of a look-up; their values by partition, and in order. Several threads use it; at worst they sort twice."""

    def __init__(self, keys: SortedKeys, values: Values, folders: Sequence[KeyColumn]) -> None:
        self.keys = keys
        self.values = values
        edges = keys.runs().tolist()
        self.places: dict[PartitionValue, tuple[int, int]] = {
            int(keys.bucket[begin]): (begin, end) for begin, end in pairwise(edges)
        }
        """The range of places of each bucket."""
        self._folders = folders
        self._ranges = set(self.places.values())
        self._different: dict[tuple[int, int], SortedValues] = {}
        self._ordered: dict[tuple[int, int], tuple[Int64s, pa.Array]] = {}

    @cached_property
    def partitions(self) -> list[set[PartitionValue]]:
        """The values of each partition column."""
        return [
            set(pc.unique(partition_values(self.values[column.name], column)).to_pylist()) for column in self._folders
        ]

    def different(self, places: Int64s, column: KeyColumn) -> SortedValues:
        """The values of a column at some places, one at least; those of a whole bucket are sorted once for all."""
        values = self.values[column.name]
        all_of = (int(places[0]), int(places[0]) + len(places))
        if all_of not in self._ranges:
            return SortedValues(values.take(pa.array(places)))
        if all_of not in self._different:
            self._different[all_of] = SortedValues(values.slice(all_of[0], len(places)))
        return self._different[all_of]

    def ordered(self, places: tuple[int, int], column: KeyColumn) -> tuple[Int64s, pa.Array]:
        """(places by their values in a column, the values in that order), of a range of places."""
        if places not in self._ordered:
            begin, end = places
            values = self.values[column.name].slice(begin, end - begin)
            order = pc.sort_indices(values)
            self._ordered[places] = begin + order.to_numpy().astype(np.int64), values.take(order)
        return self._ordered[places]


NOT_KEPT = "nothing is kept (`index: simple`); each write reads the key columns of the files that may have its keys"


class SimpleIndex:
    """See `TableIndex`."""

    def open(self, root: Path, columns: KeyColumns) -> _NothingKept:
        """See `TableIndex`."""
        return _NothingKept(columns)

    def view(self, root: Path, columns: KeyColumns) -> _NothingKept:
        """See `TableIndex`."""
        return _NothingKept(columns)

    def rebuild(self, root: Path, columns: KeyColumns, files: Sequence[DataFile]) -> Rebuilt:
        """See `TableIndex`. There is nothing to build."""
        return Rebuilt(0, 0, 0, is_continued=False)

    def status(self, root: Path, names: KeyNames, files: Sequence[DataFile]) -> IndexStatus:
        """See `TableIndex`."""
        return IndexStatus(Condition.NOT_KEPT, NOT_KEPT, 0, 0)

    def columns_of(self, root: Path) -> KeyColumns | None:
        """See `TableIndex`."""
        return None


class _NothingKept:
    """See `KeyIndex` and `IndexView`."""

    def __init__(self, columns: KeyColumns) -> None:
        self.began_anew: str | None = None
        self.absent: str | None = NOT_KEPT
        self.next_number = 0
        self.salt = secrets.token_bytes(SALT_BYTES)
        self._columns = columns

    def add_written(self, files: Sequence[WrittenFile], added: AddedKeys) -> None:
        """See `KeyIndex`."""

    def catch_up(self, root: Path, files: Sequence[DataFile]) -> int:
        """See `KeyIndex`."""
        return 0

    def numbered(self, files: Iterable[DataFile]) -> dict[int, DataFile]:
        """See `IndexView`. By path, so that the first file of a key is the same in each question."""
        return dict(enumerate(sorted(files, key=lambda file: file.path)))

    def version(self, root: Path, files: Iterable[DataFile]) -> ReadKeys:
        """See `KeyIndex`."""
        return ReadKeys(root, self._columns, self.salt, self.numbered(files))

    def buckets(self) -> Iterable[int]:
        """See `IndexView`."""
        return ()

    def differences(
        self, bucket: int, among: tuple[int, int], read: FileKeys, indexed: NDArray[np.bool_]
    ) -> Differences:
        """See `IndexView`."""
        return Differences(Counter(), Counter())
