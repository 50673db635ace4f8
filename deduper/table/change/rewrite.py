"""The files that a change removes, written again: the rows that stay, rows of the batch in the places of old ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deduper.table.change.workload import Workload
from deduper.table.columns import KeyColumns
from deduper.table.errors import ConflictError, FileVanishedError, IndexDamagedError, SchemaDriftError
from deduper.table.formats.paths import is_same_file
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import Int64s, plain_of
from deduper.table.index.matching import WantedKeys
from deduper.table.index.protocol import NO_TARGET, AddedKeys
from deduper.table.index.reading import opened
from deduper.table.stored_times import rewritten_notes
from deduper.table.table_rows import TableRows
from deduper.table.texts import require_utf8
from deduper.table.write.encoding import codec_of

_NOT_PLACED = -2


@dataclass(frozen=True, slots=True)
class Destination:
    """The table of a rewrite. `schema`: its own, in the one form."""

    root: Path
    schema: pa.Schema
    columns: KeyColumns
    update_partition_path: bool


class FileRewrite:
    """See `Rewrite`. A row of the batch takes the place of the first row with its key, in the same partition.

    Rows without such a place, of inserts and of keys that move to another partition, go to the file that is filled in
    their partition, else to a new one.
    """

    def __init__(self, place: Destination, work: Workload, salt: bytes) -> None:
        self.schema = place.schema
        self.removed = work.removed
        self._carried: dict[int, int] = {}
        self._replaced: dict[int, int] = {}
        self._codecs: dict[int, str] = {}
        self._notes: dict[int, dict[bytes, bytes]] = {}
        self._place = place
        self._work = work
        self._room = dict(work.room)
        self._first = work.verdicts.first_files()
        self._target = np.full(len(self._first), _NOT_PLACED)
        self._wanted = WantedKeys(work.verdicts.found, place.columns, salt)
        numbers, counts = np.unique(work.verdicts.file, return_counts=True)
        self._held = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        self._numbers = np.array(sorted(work.removed), np.int64)
        kinds = [pa.int32() if column.type == "date" else column.arrow for column in place.columns.partition_by]
        values = zip(*(work.removed[number].partition for number in self._numbers.tolist()), strict=True)
        self._partitions = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]

    @property
    def carried_rows(self) -> int:
        """See `Rewrite`."""
        return sum(self._carried.values())

    @property
    def replaced_rows(self) -> int:
        """See `Rewrite`."""
        return sum(self._replaced.values())

    def placed(self, records: pa.RecordBatch, rows: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """See `Rewrite`."""
        arrays = {name: records.column(name) for name in self._place.schema.names}
        target = self._first[rows]
        if self._place.columns.scope == "global" and (target != NO_TARGET).any():
            target = self._in_partition(arrays, target)
        if self._work.filled:
            target = self._filling(arrays, target)
        self._target[rows] = target
        return pa.RecordBatch.from_arrays([*arrays.values()], schema=self.schema), target

    def added(self) -> AddedKeys:
        """See `Rewrite`.

        A file whose place is taken by one without a key that it had, or with a key of another file, is not whole.
        """
        verdicts = self._work.verdicts
        is_placed = self._target[verdicts.new_row] != _NOT_PLACED
        is_lost = self._target[verdicts.row] != verdicts.file
        is_moved = (self._first != NO_TARGET) & (self._target != self._first) & (self._target != _NOT_PLACED)
        moved_to = self._target[is_moved].tolist()
        return AddedKeys(
            keys=verdicts.new.chosen(is_placed),
            target=self._target[verdicts.new_row[is_placed]],
            whole=frozenset(self.removed).difference(verdicts.file[is_lost].tolist(), moved_to),
            has_all_new=NO_TARGET not in moved_to,
        )

    def kept(self, number: int) -> Iterator[pa.RecordBatch]:
        """See `Rewrite`.

        Raises:
            IndexDamagedError: the file has fewer rows of the keys than the index says.
            SchemaDriftError: it has a column that the table does not have, which would be lost.
        """
        file = self.removed[number]
        try:
            yield from self._of_file(number, file)
        except FileVanishedError as error:
            if file.may_change:  # of a plain table, whose version is what is there
                raise ConflictError(f"{self._place.root / file.path}: went while it was read") from error
            raise
        self._require_unchanged(file)
        if self._replaced[number] < self._held.get(number, 0):
            raise IndexDamagedError(
                f"{self._place.root / file.path}: lacks keys that the index has with it; build the index anew "
                "(`deduper table rebuild`); nothing was committed"
            )

    def codec(self, number: int) -> str:
        """See `Rewrite`."""
        return self._codecs[number]

    def notes(self, number: int) -> dict[bytes, bytes]:
        """See `Rewrite`."""
        return self._notes[number]

    def _in_partition(self, arrays: dict[str, pa.Array], target: Int64s) -> Int64s:
        """The targets of rows whose keys may lie in other partitions; or the rows stay there, with its values."""
        is_found = target != NO_TARGET
        file = pa.array(np.searchsorted(self._numbers, target))  # of rows without one any
        is_moved = np.zeros(len(target), np.bool_)
        for column, values in zip(self._place.columns.partition_by, self._partitions, strict=True):
            old = values.take(file)
            own = plain_of(arrays[column.name], column)
            is_other = is_found & ~_true(pc.equal(own, old))
            if self._place.update_partition_path:
                is_moved |= is_other
            elif is_other.any():
                stays = pc.if_else(pa.array(is_found), old, own)
                arrays[column.name] = stays.cast(column.arrow)
        return np.where(is_moved, NO_TARGET, target)

    def _filling(self, arrays: Mapping[str, pa.Array], target: Int64s) -> Int64s:
        """The targets, where rows that had none have the file that is filled in their partition."""
        by = self._place.columns.partition_by
        free = np.flatnonzero(target == NO_TARGET)
        target = target.copy()
        if not by:
            number = self._work.filled[()]
            target[self._fitting(number, free)] = number
            return target
        names = [str(at) for at in range(len(by))]  # "row" is none of them
        plain = [plain_of(arrays[column.name], column).take(pa.array(free)) for column in by]
        rows = pa.Table.from_arrays([*plain, pa.array(free)], [*names, "row"])
        groups = rows.group_by(names).aggregate([("row", "list")])
        partitions = zip(*(groups[name].to_pylist() for name in names), strict=True)
        for partition, of_group in zip(partitions, groups["row_list"].combine_chunks(), strict=True):
            number = self._work.filled.get(partition, NO_TARGET)
            if number != NO_TARGET:
                target[self._fitting(number, of_group.values.to_numpy())] = number
        return target

    def _fitting(self, number: int, rows: Int64s) -> Int64s:
        """The first of the rows, as many as a file that is filled still takes."""
        fitting = rows[: self._room[number]]
        self._room[number] -= len(fitting)
        return fitting

    def _of_file(self, number: int, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file that stay; counts them and the others."""
        # Files are rewritten one a core: with enough of them, more threads only wait for each other.
        has_spare_cores = len(self.removed) < pa.cpu_count()
        reader = TableRows(self._place.root, self._place.schema, self._place.columns, use_threads=has_spare_cores)
        self._carried[number] = self._replaced[number] = 0
        with opened(self._place.root, file) as parquet:
            self._codecs[number] = codec_of(parquet.metadata)
            in_folders = {column.name for column in self._place.columns.partition_by}
            stored = [name for name in self._place.schema.names if name not in in_folders]
            self._notes[number] = rewritten_notes(parquet.metadata, stored)
            more = sorted(set(parquet.schema_arrow.names) - set(self._place.schema.names))
            if more:
                raise SchemaDriftError(
                    f"{self._place.root / file.path}: has {', '.join(f'`{name}`' for name in more)}, which the table "
                    "does not have; nothing was written"
                )
            for records in reader.all(parquet, file):
                is_replaced = self._wanted.among(reader.key_of(records))
                kept = records if not is_replaced.any() else records.filter(pa.array(~is_replaced))
                self._carried[number] += kept.num_rows
                self._replaced[number] += records.num_rows - kept.num_rows
                if kept.num_rows:
                    require_utf8(kept, self._place.root / file.path, "replace or delete its row by its key")
                    yield kept

    def _require_unchanged(self, file: DataFile) -> None:
        """A plain file is still the one that was judged."""
        path = self._place.root / file.path
        if file.may_change and not is_same_file(path, file):
            raise ConflictError(f"{path}: changed while it was read")


def _true(values: pa.Array) -> NDArray[np.bool_]:
    """A mask, null for False."""
    mask: NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return mask
