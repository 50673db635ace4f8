"""The keys of a table's files: their key columns read from Parquet, with the files' numbers.

The rows of a table's files as the table has them: its columns, those of the folders among them, in the one form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.errors import FileVanishedError, SchemaDriftError, TableError
from deduper.table.formats.files import NO_PART
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import FileKeys, array_of, joined, row_keys, without_null
from deduper.table.schema import in_form, one_form, type_name
from deduper.table.stored_times import StoredTimes

_THREADS = 4
_BATCH_ROWS = 1 << 20
ALL = (0, (1 << 64) - 1)
"""Every `hi` of a digest."""


def rows_of(root: Path, files: Sequence[DataFile]) -> list[int]:
    """The rows of each file, by its footer.

    Raises:
        FileVanishedError: a file of the table is not there.
        TableError: it cannot be read.
    """

    def rows(file: DataFile) -> int:
        with _telling(root, file):
            return int(pq.read_metadata(root / file.path).num_rows)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-reader") as pool:
        return list(pool.map(rows, files))


def grouped(files: Sequence[DataFile], rows: Sequence[int], most: int) -> Iterator[list[DataFile]]:
    """The files in their order, in groups that end with the file that brings them to `most` rows."""
    group: list[DataFile] = []
    total = 0
    for file, count in zip(files, rows, strict=True):
        group.append(file)
        total += count
        if total >= most:
            yield group
            group, total = [], 0
    if group:
        yield group


def read_keys(
    root: Path,
    numbered: Sequence[tuple[int, DataFile]],
    columns: KeyColumns,
    salt: bytes,
    among: tuple[int, int] = ALL,
) -> Iterator[FileKeys]:
    """The keys of each file, in the order of the files; rows with a null in the key are left out.

    `among`: the least and the greatest `hi` of the keys that are given.

    Raises:
        FileVanishedError: a file of the table is not there.
        SchemaDriftError: it lacks a key column, or has it with another type.
        TableError: it cannot be read.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-reader") as pool:
        yield from pool.map(lambda one: joined([*key_parts(root, one[0], one[1], columns, salt, among)]), numbered)


def key_steps(
    root: Path, numbered: Sequence[tuple[int, DataFile]], columns: KeyColumns, salt: bytes, most: int
) -> Iterator[FileKeys]:
    """The keys of all files, about `most` at a time: a file with more is in several steps, so it may be of any size.

    Raises: as `read_keys`.
    """

    def read(one: tuple[int, DataFile]) -> FileKeys | None:
        """The keys of a file; None for a large one, which is read alone."""
        number, file = one
        with opened(root, file) as parquet:
            if parquet.metadata.num_rows > most:
                return None
            return joined([*_parts(parquet, root, number, file, columns, salt)])

    held: list[FileKeys] = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="table-reader") as pool:
        for (number, file), keys in zip(numbered, pool.map(read, numbered), strict=True):
            for part in key_parts(root, number, file, columns, salt) if keys is None else [keys]:
                held.append(part)
                if sum(of.count for of in held) >= most:
                    step, held = joined(held), []
                    yield step
    yield joined(held)


def key_parts(
    root: Path, number: int, file: DataFile, columns: KeyColumns, salt: bytes, among: tuple[int, int] = ALL
) -> Iterator[FileKeys]:
    """The keys of a file, of some rows at a time.

    Raises: as `read_keys`.
    """
    with opened(root, file) as parquet:
        yield from _parts(parquet, root, number, file, columns, salt, among)


def _parts(
    parquet: pq.ParquetFile,
    root: Path,
    number: int,
    file: DataFile,
    columns: KeyColumns,
    salt: bytes,
    among: tuple[int, int] = ALL,
) -> Iterator[FileKeys]:
    for arrays in key_arrays(parquet, root, file, columns):
        yield _keys_of_arrays(arrays, number, columns, salt, among)


def key_arrays(
    parquet: pq.ParquetFile, root: Path, file: DataFile, columns: KeyColumns, groups: Sequence[int] | None = None
) -> Iterator[list[pa.Array]]:
    """The columns of `columns.digested` of an opened file, batch by batch; of these row groups alone.

    Raises:
        SchemaDriftError: it lacks a key column, or has it with another type.
    """
    in_folders = dict(zip((column.name for column in columns.partition_by), file.partition, strict=True))
    stored = require_key_columns(parquet, root, file, columns)
    # With a key of folders' values alone, any column says how many rows there are.
    times = StoredTimes(parquet, root / file.path)
    wanted = pa.schema([(column.name, column.arrow) for column in stored] or [*times.schema][:1])
    for read in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=wanted.names):
        for batch in in_form(times.records(read).select(wanted.names), wanted, root / file.path):
            yield [
                array_of(in_folders[column.name], column, batch.num_rows)
                if column.name in in_folders
                else batch.column(column.name)
                for column in columns.digested
            ]


def require_key_columns(parquet: pq.ParquetFile, root: Path, file: DataFile, columns: KeyColumns) -> list[KeyColumn]:
    """The columns of a key that an opened file has; the others are in the folders' names.

    Raises:
        SchemaDriftError: it lacks one, or has it with another type.
    """
    stored = [column for column in columns.digested if column not in columns.partition_by]
    schema = StoredTimes(parquet, root / file.path).schema
    for column in stored:
        if column.name not in schema.names:
            raise SchemaDriftError(f"{root / file.path}: has no column `{column.name}`, a part of the key")
        found = type_name(one_form(pa.schema([schema.field(column.name)])).field(0).type)
        if found != column.type:
            raise SchemaDriftError(f"{root / file.path}: `{column.name}` is {found}, and the batch's is {column.type}")
    return stored


def _keys_of_arrays(
    arrays: Sequence[pa.Array], number: int, columns: KeyColumns, salt: bytes, among: tuple[int, int]
) -> FileKeys:
    bucket, hi, lo = row_keys(arrays, columns, salt)
    kept = (hi >= among[0]) & (hi <= among[1]) & without_null(arrays)
    return FileKeys(bucket[kept], hi[kept], lo[kept], np.full(int(kept.sum()), number, np.uint32))


@contextmanager
def opened(root: Path, file: DataFile) -> Iterator[pq.ParquetFile]:
    """A file of the table.

    Raises:
        FileVanishedError: it is not there.
        TableError: it cannot be read, here or in the body.
    """
    with _telling(root, file), pq.ParquetFile(root / file.path, coerce_int96_timestamp_unit="us") as parquet:
        yield parquet


@contextmanager
def _telling(root: Path, file: DataFile) -> Iterator[None]:
    """Errors of reading a file of the table, as ours."""
    path = root / file.path
    try:
        yield
    except FileNotFoundError as error:
        raise FileVanishedError(f"{path}: is not there, and the table's present version has it") from error
    except (pa.ArrowException, OSError) as error:
        what = f"; {NO_PART}" if file.stamp else ""  # a log names no file that is no part of its table
        raise TableError(f"{path}: cannot be read: {error}{what}") from error


_ROW_BATCH = 1 << 17


class TableRows:
    """Reads files that `index.reading.opened` has opened. `schema` is the table's, in the one form.

    `use_threads`: columns of a file are decoded side by side.
    """

    def __init__(self, root: Path, schema: pa.Schema, columns: KeyColumns, *, use_threads: bool = True) -> None:
        self._root = root
        self._schema = schema
        self._columns = columns
        self._use_threads = use_threads

    def keys(self, parquet: pq.ParquetFile, file: DataFile, groups: Sequence[int]) -> Iterator[list[pa.Array]]:
        """The columns of the key of these row groups, as `key_of` gives them."""
        return key_arrays(parquet, self._root, file, self._columns, groups)

    def key_of(self, records: pa.RecordBatch) -> list[pa.Array]:
        """The digested columns of rows of the table."""
        return [records.column(column.name) for column in self._columns.digested]

    def all(
        self, parquet: pq.ParquetFile, file: DataFile, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these row groups, None: of all. A column that the file lacks is null.

        Raises:
            SchemaDriftError: the file has a column with another type than the table.
        """
        values = dict(zip(self._columns.partition_by, file.partition, strict=True))
        in_folders = {column.name: (column, value) for column, value in values.items()}
        times = StoredTimes(parquet, self._root / file.path)
        found = times.schema
        stored = [name for name in self._schema.names if name not in in_folders and name in found.names]
        self._require_types(found, stored, file)
        # With a file of no column of the table, any column says how many rows there are.
        read = stored or found.names[:1]
        wanted = pa.schema([(self._schema if stored else found).field(name) for name in read])
        for stored_rows in parquet.iter_batches(_ROW_BATCH, groups, read, use_threads=self._use_threads):
            for records in in_form(times.records(stored_rows).select(read), wanted, self._root / file.path):
                arrays = []
                for field in self._schema:
                    if field.name in in_folders:
                        column, value = in_folders[field.name]
                        arrays.append(array_of(value, column, records.num_rows))
                    elif field.name in stored:
                        arrays.append(records.column(field.name))
                    else:
                        arrays.append(pa.nulls(records.num_rows, field.type))
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _require_types(self, found: pa.Schema, stored: Sequence[str], file: DataFile) -> None:
        for field in one_form(pa.schema([found.field(name) for name in stored])):
            wanted = self._schema.field(field.name).type
            # Some writers leave the zone out of the file, and the time is UTC.
            if field.type != wanted and not (pa.types.is_timestamp(field.type) and pa.types.is_timestamp(wanted)):
                raise SchemaDriftError(
                    f"{self._root / file.path}: `{field.name}` is {type_name(field.type)}, and {type_name(wanted)} in "
                    "the table"
                )
