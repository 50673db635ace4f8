"""The rows and the keys of a table's files: columns of Parquet and of the folders, in the one form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.columns import KeyColumns
from deduper.table.errors import FileVanishedError, SchemaDriftError, TableError
from deduper.table.formats.files import NO_PART
from deduper.table.formats.protocol import DataFile
from deduper.table.index.keys import FileKeys, array_of, joined, row_keys, without_null
from deduper.table.schema import in_form, one_form, type_name
from deduper.table.stored_times import StoredTimes
from deduper.tasks.readers.file_parts import FileGone, UnreadableFile
from deduper.tasks.readers.parquet import OpenedParquet, opened_parquet

_THREADS = 4
_ROWS, _ROWS_OF_KEYS = 1 << 17, 1 << 20
"""Of a record batch: of all columns, and of those of a key."""
ALL = (0, (1 << 64) - 1)
"""Every `hi` of a digest."""


def rows_of(root: Path, files: Sequence[DataFile]) -> list[int]:
    """The rows of each file, by its footer.

    Raises:
        FileVanishedError: a file of the table is not there.
        TableError: it cannot be read.
    """

    def rows(file: DataFile) -> int:
        with _as_table_errors(root, file):
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
        with opened(root, file) as opened_file:
            if opened_file.footer.num_rows > most:
                return None
            return joined([*_parts(opened_file, number, columns, salt)])

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
    with opened(root, file) as opened_file:
        yield from _parts(opened_file, number, columns, salt, among)


def _parts(
    opened_file: OpenFile, number: int, columns: KeyColumns, salt: bytes, among: tuple[int, int] = ALL
) -> Iterator[FileKeys]:
    for arrays in opened_file.keys(columns):
        bucket, hi, lo = row_keys(arrays, columns, salt)
        chosen = (hi >= among[0]) & (hi <= among[1]) & without_null(arrays)
        yield FileKeys(bucket[chosen], hi[chosen], lo[chosen], np.full(int(chosen.sum()), number, np.uint32))


class OpenFile:
    """An open file of a table; `opened` makes it. `footer` is the file's own."""

    def __init__(self, parquet: OpenedParquet, root: Path, file: DataFile) -> None:
        self.footer: pq.FileMetaData = parquet.footer
        self._parquet = parquet
        self._partition = file.partition
        self._where = root / file.path
        self._times = StoredTimes(parquet, self._where)

    @property
    def names(self) -> list[str]:
        """The columns that it stores."""
        names: list[str] = self._times.schema.names
        return names

    def keys(self, columns: KeyColumns, groups: Sequence[int] | None = None) -> Iterator[list[pa.Array]]:
        """The columns of `columns.digested`, batch by batch, of these row groups; None: of all.

        Raises: as `require_keys`.
        """
        self.require_keys(columns)
        schema = pa.schema([(column.name, column.arrow) for column in columns.digested])
        for records in self.rows(schema, columns, groups, batch_rows=_ROWS_OF_KEYS):
            yield records.columns

    def require_keys(self, columns: KeyColumns) -> None:
        """The file has the columns of a key, but those of the folders.

        Raises:
            SchemaDriftError: it lacks one, or has it with another type.
        """
        for column in columns.digested:
            if column in columns.partition_by:
                continue
            if column.name not in self.names:
                raise SchemaDriftError(f"{self._where}: has no column `{column.name}`, a part of the key")
            found = self._type(column.name)
            if type_name(found) != column.type:
                what = f"`{column.name}` is {type_name(found)}, and the batch's is {column.type}"
                raise SchemaDriftError(f"{self._where}: {what}")

    def rows(
        self,
        schema: pa.Schema,
        columns: KeyColumns,
        groups: Sequence[int] | None = None,
        *,
        batch_rows: int = _ROWS,
        use_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these row groups in the columns of `schema`; None: of all. A column that the file lacks is null.

        `use_threads`: columns are decoded side by side.

        Raises:
            SchemaDriftError: the file has a column with another type than `schema`.
        """
        in_folders = {
            column.name: (column, value) for column, value in zip(columns.partition_by, self._partition, strict=True)
        }
        stored = [name for name in schema.names if name not in in_folders and name in self.names]
        for name in stored:
            found, wanted = self._type(name), schema.field(name).type
            # Some writers leave the zone out of the file, and the time is UTC.
            if found != wanted and not (pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted)):
                what = f"`{name}` is {type_name(found)}, and {type_name(wanted)} in the table"
                raise SchemaDriftError(f"{self._where}: {what}")
        # With a file of no column of the schema, any column says how many rows there are.
        read = stored or self.names[:1]
        form = pa.schema([(schema if stored else self._times.schema).field(name) for name in read])
        for stored_rows in self._parquet.batches(read, groups, rows=batch_rows, use_threads=use_threads):
            for records in in_form(self._times.records(stored_rows).select(read), form, self._where):
                arrays = []
                for field in schema:
                    if field.name in in_folders:
                        column, value = in_folders[field.name]
                        arrays.append(array_of(value, column, records.num_rows))
                    elif field.name in stored:
                        arrays.append(records.column(field.name))
                    else:
                        arrays.append(pa.nulls(records.num_rows, field.type))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _type(self, name: str) -> pa.DataType:
        """The type of a stored column in the one form."""
        return one_form(pa.schema([self._times.schema.field(name)])).field(0).type


@contextmanager
def opened(root: Path, file: DataFile) -> Iterator[OpenFile]:
    """A file of the table.

    Raises:
        FileVanishedError: it is not there.
        TableError: it cannot be read, here or in the body.
    """
    with _as_table_errors(root, file), opened_parquet(str(root / file.path)) as parquet:
        yield OpenFile(parquet, root, file)


@contextmanager
def _as_table_errors(root: Path, file: DataFile) -> Iterator[None]:
    """Errors of reading a file of the table, as ours."""
    path = root / file.path
    try:
        yield
    except (FileNotFoundError, FileGone) as error:
        raise FileVanishedError(f"{path}: is not there, and the table's present version has it") from error
    except (pa.ArrowException, OSError, UnreadableFile) as error:
        what = f"; {NO_PART}" if file.may_change else ""  # a log names no file that is no part of its table
        raise TableError(f"{path}: cannot be read: {error}{what}") from error
