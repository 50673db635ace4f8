"""Files that a change removes, written again: for each a new file with its rows that stay, then rows of the batch.

Files are written side by side, one a core. The rows of the batch wait in an Arrow file, mapped into memory, so they
need not fit into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bucket_store.filesystem import LOCAL, make_directories
from deduper.table.batch import Batch
from deduper.table.columns import KeyColumns, PartitionValue
from deduper.table.errors import ConflictError, IndexDamagedError, SchemaDriftError
from deduper.table.formats.files import is_same_file
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import Int64s, partition_values
from deduper.table.index.matching import WantedKeys
from deduper.table.index.protocol import NO_TARGET, AddedKeys, VersionKeys
from deduper.table.index.reading import opened, rows_of
from deduper.table.operations.judge import Kind, Verdict, Verdicts, rows_by_verdict
from deduper.table.operations.new_files import (
    LEAST_ROW_GROUP,
    ROW_GROUP,
    TableFile,
    Written,
    codec_of,
    dictionary_columns,
    each_written,
)
from deduper.table.schema import require_utf8
from deduper.table.stored_times import rewritten_notes

Partition = tuple[PartitionValue, ...]
_NOT_PLACED = -2


@dataclass(frozen=True, slots=True)
class Workload:
    """A judged batch, and what becomes of the table's `files`, by their numbers.

    `filled`: the file that takes a partition's inserts, `room`: the rows that it takes. `removed`: the filled ones and
    those that hold keys of a change; they are read and written again.
    """

    kind: Kind
    verdicts: Verdicts
    files: Mapping[int, DataFile]
    filled: Mapping[Partition, int]
    room: Mapping[int, int]
    removed: Mapping[int, DataFile]

    def rows(self) -> Counter[int]:
        """The number of rows by verdict."""
        return rows_by_verdict(self.verdicts.verdict)


@dataclass(frozen=True, slots=True)
class Filling:
    """Of new rows: files of less than `small_bytes` take them, up to about `target_bytes`."""

    small_bytes: int
    target_bytes: int


def workload(
    kind: Kind,
    root: Path,
    batch: Batch,
    columns: KeyColumns,
    verdicts: Verdicts,
    version: VersionKeys,
    filling: Filling | None,
) -> Workload:
    """The work for judged rows; a load changes no file, and without `filling` none is filled.

    Raises:
        FileVanishedError, TableError: the footer of a file that is filled cannot be read.
    """
    if kind == "load":
        return Workload(kind, verdicts, version.files, {}, {}, {})
    touched = {number: version.files[number] for number in np.unique(verdicts.file).tolist()}
    filled: dict[Partition, int] = {}
    room: dict[int, int] = {}
    if filling is not None:
        inserted = set(_partitions(batch, columns, verdicts))
        small = {number: file for number, file in version.files.items() if file.size < filling.small_bytes}
        # A file that is rewritten anyway, then the smallest, then the oldest.
        for number, file in sorted(small.items(), key=lambda one: (one[0] not in touched, one[1].size, one[0])):
            if file.partition in inserted:
                filled.setdefault(file.partition, number)
        files = [version.files[number] for number in filled.values()]
        for number, file, rows in zip(filled.values(), files, rows_of(root, files), strict=True):
            room[number] = (filling.target_bytes - file.size) * max(rows, 1) // file.size
    removed = touched | {number: version.files[number] for number in filled.values()}
    return Workload(kind, verdicts, version.files, filled, room, dict(sorted(removed.items())))


def _partitions(batch: Batch, columns: KeyColumns, verdicts: Verdicts) -> Iterator[Partition]:
    """The partitions of the rows that are inserted."""
    names = [column.name for column in columns.partition_by]
    is_new = verdicts.verdict == Verdict.NEW
    if not names:
        yield from [()] * bool(is_new.any())
        return
    begin = 0
    for records in batch.batches(names):
        end = begin + records.num_rows
        new = records.filter(pa.array(is_new[begin:end]))
        begin = end
        values = [partition_values(new.column(column.name), column) for column in columns.partition_by]
        different = pa.Table.from_arrays(values, names).group_by(names).aggregate([])
        yield from zip(*(different[name].to_pylist() for name in names), strict=True)


class FileRewrite:
    """A row of the batch takes the place of the first row with its key, in the same partition.

    Rows without such a place, of inserts and of keys that move to another partition, go to the file that is filled in
    their partition, else to a new one.
    """

    def __init__(
        self, root: Path, schema: pa.Schema, columns: KeyColumns, work: Workload, salt: bytes, *, moves: bool
    ) -> None:
        """`schema`: the table's, in the one form. `moves`: a key moves to the partition of the batch's row."""
        self.schema = schema
        self.removed = work.removed
        self._root = root
        self._columns = columns
        self._moves = moves
        self._carried: dict[int, int] = {}
        self._replaced: dict[int, int] = {}
        self._codecs: dict[int, str] = {}
        self._notes: dict[int, dict[bytes, bytes]] = {}
        self._work = work
        self._room = dict(work.room)
        self._first = work.verdicts.first
        self._target = np.full(len(self._first), _NOT_PLACED)
        self._wanted = WantedKeys(work.verdicts.keys.chosen(work.verdicts.is_found), columns, salt)
        numbers, counts = np.unique(work.verdicts.file, return_counts=True)
        self._held = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        self._numbers = np.array(sorted(work.removed), np.int64)
        kinds = [pa.int32() if column.type == "date" else column.arrow for column in columns.partition_by]
        values = zip(*(work.removed[number].partition for number in self._numbers.tolist()), strict=True)
        self._partitions = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]

    @property
    def carried_rows(self) -> int:
        """The rows that `remaining` has given."""
        return sum(self._carried.values())

    @property
    def replaced_rows(self) -> int:
        """The rows of removed files that `remaining` has left out."""
        return sum(self._replaced.values())

    def placed(self, records: pa.RecordBatch, rows: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """Rows of the batch, with their row numbers, in the columns of `schema`; and the file that takes each."""
        arrays = {name: records.column(name) for name in self.schema.names}
        target = self._first[rows]
        if self._columns.scope == "global" and (target != NO_TARGET).any():
            target = self._in_partition(arrays, target)
        if self._work.filled:
            target = self._filling(arrays, target)
        self._target[rows] = target
        return pa.RecordBatch.from_arrays([*arrays.values()], schema=self.schema), target

    def added(self) -> AddedKeys:
        """The keys of all rows that were `placed` and that the table did not have.

        A file whose place is taken by one without a key that it had, or with a key of another file, is not whole.
        """
        verdicts = self._work.verdicts
        is_placed = ~verdicts.is_found & (self._target[verdicts.rows] != _NOT_PLACED)
        is_lost = self._target[verdicts.rows[verdicts.place]] != verdicts.file
        is_moved = (self._first != NO_TARGET) & (self._target != self._first) & (self._target != _NOT_PLACED)
        moved_to = self._target[is_moved].tolist()
        return AddedKeys(
            keys=verdicts.keys.chosen(is_placed),
            target=self._target[verdicts.rows[is_placed]],
            whole=frozenset(self.removed).difference(verdicts.file[is_lost].tolist(), moved_to),
            has_all_new=NO_TARGET not in moved_to,
        )

    def remaining(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a removed file that stay, in the columns of `schema`. Called once a file, from any thread.

        Raises:
            ConflictError: the file is another one than that of the version.
            FileVanishedError: it is gone.
            IndexDamagedError: the file has fewer rows of the keys than the index says.
            SchemaDriftError: it has a column that the table does not have, which would be lost.
        """
        file = self.removed[number]
        yield from self._of_file(number, file)
        self._require_unchanged(file)
        if self._replaced[number] < self._held.get(number, 0):
            raise IndexDamagedError(
                f"{self._root / file.path}: lacks keys that the index has with it; build the index anew "
                "(`deduper table rebuild`); nothing was committed"
            )

    def codec(self, number: int) -> str:
        """The compression of a removed file. Called after `remaining` has read it, from any thread."""
        return self._codecs[number]

    def notes(self, number: int) -> dict[bytes, bytes]:
        """The key-value metadata that its rows need in the new file too. Called as `codec`."""
        return self._notes[number]

    def _in_partition(self, arrays: dict[str, pa.Array], target: Int64s) -> Int64s:
        """The targets of rows whose keys may lie in other partitions; or the rows stay there, with its values."""
        is_found = target != NO_TARGET
        file = pa.array(np.searchsorted(self._numbers, target))  # of rows without one any
        is_moved = np.zeros(len(target), np.bool_)
        for column, values in zip(self._columns.partition_by, self._partitions, strict=True):
            old = values.take(file)
            own = partition_values(arrays[column.name], column)
            is_other = is_found & ~_true(pc.equal(own, old))
            if self._moves:
                is_moved |= is_other
            elif is_other.any():
                stays = pc.if_else(pa.array(is_found), old, own)
                arrays[column.name] = stays.cast(column.arrow)
        return np.where(is_moved, NO_TARGET, target)

    def _filling(self, arrays: Mapping[str, pa.Array], target: Int64s) -> Int64s:
        """The targets, where rows that had none have the file that is filled in their partition."""
        by = self._columns.partition_by
        free = np.flatnonzero(target == NO_TARGET)
        target = target.copy()
        if not by:
            number = self._work.filled[()]
            target[self._fitting(number, free)] = number
            return target
        names = [str(at) for at in range(len(by))]  # "row" is none of them
        values = [partition_values(arrays[column.name], column).take(pa.array(free)) for column in by]
        rows = pa.Table.from_arrays([*values, pa.array(free)], [*names, "row"])
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
        columns = self._columns
        self._carried[number] = self._replaced[number] = 0
        with opened(self._root, file) as opened_file:
            self._codecs[number] = codec_of(opened_file.footer)
            in_folders = {column.name for column in columns.partition_by}
            stored = [name for name in self.schema.names if name not in in_folders]
            self._notes[number] = rewritten_notes(opened_file.footer, stored)
            more = sorted(set(opened_file.names) - set(self.schema.names))
            if more:
                raise SchemaDriftError(
                    f"{self._root / file.path}: has {', '.join(f'`{name}`' for name in more)}, which the table "
                    "does not have; nothing was written"
                )
            for records in opened_file.rows(self.schema, columns, use_threads=has_spare_cores):
                is_replaced = self._wanted.among([records.column(column.name) for column in columns.digested])
                stays = records if not is_replaced.any() else records.filter(pa.array(~is_replaced))
                self._carried[number] += stays.num_rows
                self._replaced[number] += records.num_rows - stays.num_rows
                if stays.num_rows:
                    require_utf8(stays, self._root / file.path, "replace or delete its row by its key")
                    yield stays

    def _require_unchanged(self, file: DataFile) -> None:
        """A file that others may change is still the one that was judged."""
        path = self._root / file.path
        if file.may_change and not is_same_file(path, file):
            raise ConflictError(f"{path}: changed while it was read")


def _true(values: pa.Array) -> NDArray[np.bool_]:
    """A mask, null for False."""
    mask: NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


class WaitingRows:
    """Rows that go to removed files, by the files' numbers; a context manager around `add`, before any `of`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._rows: dict[int, list[tuple[int, Int64s]]] = {}
        self._added = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, records: pa.RecordBatch, number: Int64s) -> None:
        """Adds rows, each with the number of its file."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._path), self._schema)
        self._writer.write_batch(records)
        order = np.argsort(number, kind="stable")
        number = number[order]
        edges = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(number)]
        for begin, end in pairwise(edges):
            self._rows.setdefault(int(number[begin]), []).append((self._added, order[begin:end]))
        self._added += 1

    def of(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in the order in which they were added. Thread-safe."""
        for place, rows in self._rows.get(number, ()):
            yield self._batches[place].take(pa.array(rows))

    def __enter__(self) -> WaitingRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if kind is None:
            reader = pa.ipc.open_file(pa.memory_map(str(self._path)))
            self._batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]


def rewrite_files(
    rewrite: FileRewrite,
    waiting: WaitingRows,
    in_folders: Sequence[str],
    folder: Path,
    begin_sync: Callable[[Path], object],
) -> list[tuple[int, Written]]:
    """(number of a removed file, the new one in its place); without rows there is none.

    `in_folders`: columns that the files do not have. `begin_sync` is called with each new file, from any thread.

    Raises: as `FileRewrite.remaining`.
    """
    make_directories(LOCAL, folder)
    dictionaries = _Dictionaries()
    schema = pa.schema([field for field in rewrite.schema if field.name not in in_folders])

    def written(number: int) -> tuple[int, Written] | None:
        path = folder / str(number)
        rows = (records for of in (rewrite.remaining(number), waiting.of(number)) for records in of)
        made = _write(path, schema, rows, dictionaries, lambda: (rewrite.codec(number), rewrite.notes(number)))
        if made is None:
            return None
        begin_sync(path)
        return number, made

    found = each_written(written, rewrite.removed, lambda number: rewrite.removed[number].size)
    return sorted((one for one in found if one is not None), key=itemgetter(0))


class _Dictionaries:
    """The columns that get a dictionary, by the rows that are written first: a sample of each file tells no more."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._columns: list[str] | bool | None = None

    def of(self, rows: pa.Table) -> list[str] | bool:
        """Thread-safe."""
        with self._lock:
            if self._columns is None:
                self._columns = dictionary_columns(max(rows.to_batches(), key=len))
            return self._columns


def _write(
    path: Path,
    schema: pa.Schema,
    rows: Iterable[pa.RecordBatch],
    dictionaries: _Dictionaries,
    encoding: Callable[[], tuple[str, dict[bytes, bytes]]],
) -> Written | None:
    """A Parquet file of these columns of the rows; without rows none.

    `encoding` gives the compression and the metadata; it is called once there are rows.
    """
    file: TableFile | None = None
    made: Written | None = None
    try:
        for group in _groups(schema, rows):
            if file is None:
                codec, notes = encoding()
                file = TableFile(path, schema, dictionaries.of(group), compression=codec, notes=notes)
            file.write(group, ROW_GROUP)
    finally:
        if file is not None:
            made = file.close()
    return made


def _groups(schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of at least `LEAST_ROW_GROUP` rows, but for the last one."""
    held: list[pa.RecordBatch] = []
    for records in rows:
        held.append(records.select(schema.names))
        if sum(one.num_rows for one in held) >= LEAST_ROW_GROUP:
            yield pa.Table.from_batches(held, schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, schema)
