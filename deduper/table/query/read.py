"""The rows of a table that have some keys; only the files that hold them are opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.batch import Batch
from deduper.table.errors import TableUsageError
from deduper.table.formats.protocol import DataFile, Snapshot
from deduper.table.index.keys import wide
from deduper.table.index.matching import SortedValues, WantedKeys, bounded_column, groups_with
from deduper.table.index.protocol import TableIndex
from deduper.table.index.reading import opened
from deduper.table.judge import Keep, judge_changes
from deduper.table.query.present import batch_of, of_one_version, present_keys, target_of_keys
from deduper.table.settings import LoadedLoad
from deduper.table.table_rows import TableRows
from deduper.table.target import Target


def read(keys: Any, loaded: LoadedLoad) -> pa.Table:
    """All rows of the table with these keys, in the table's columns, in any order.

    `keys`: as the rows of a load; the columns of the key count, and with `scope: partition` those of `partition_by`.
    Keys that the table does not have, or with a null, give no row. Only files that hold a key are opened, and of them
    only row groups whose bounds of the first integer, date or text column of the key allow one.

    It takes no lock, so it holds for the version at hand alone. The keys of files that the index lacks are read into
    memory: without an index all of the table.

    Raises:
        ConfigError: there is no table, or `keys` lacks a column.
        SchemaDriftError: a column has another type than the table's.
        FileVanishedError: a file that holds a key is gone.
        TableChangedError: other writers removed files each time while they were read.
        TableError: the table or its index cannot be read.
    """
    batch = batch_of(keys)
    target = target_of_keys(batch, loaded)
    return of_one_version(target.table, lambda found: _rows(batch, target, loaded.config.table_index, found))


def _rows(batch: Batch, target: Target, index: TableIndex, snapshot: Snapshot) -> pa.Table:
    """The rows of one version."""
    if snapshot.schema is None:
        raise TableUsageError(f"{target.table.root}: there is no table any more")
    columns = target.columns
    present = present_keys(target.table, snapshot, columns, index)
    found = judge_changes(batch, columns, Keep(), present, columns.digested)
    wanted = WantedKeys(found.found, columns, present.salt)
    by = bounded_column(columns)
    asked = None
    if by is not None:
        values = [wide(records.column(0)) for records in batch.batches([by.name])]
        asked = pa.chunked_array(values, None if values else by.arrow)
    rows_of = TableRows(target.table.root, snapshot.schema, columns)
    by_file = np.argsort(found.file, kind="stable")
    numbers, starts = np.unique(found.file[by_file], return_index=True)
    parts: list[pa.RecordBatch] = []
    for number, rows in zip(numbers.tolist(), np.split(found.row[by_file], starts[1:]), strict=False):
        file = present.files[number]
        with opened(target.table.root, file) as parquet:
            groups: Sequence[int] = range(parquet.num_row_groups)
            if by is not None and asked is not None:
                groups = groups_with(parquet, by, SortedValues(asked.take(pa.array(rows))))
            for group in groups:
                parts += _in_group(rows_of, parquet, file, wanted, group)
    return pa.Table.from_batches(parts, schema=snapshot.schema)


def _in_group(
    rows_of: TableRows, parquet: pq.ParquetFile, file: DataFile, wanted: WantedKeys, group: int
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a row group; without one, its key columns alone are read."""
    if any(wanted.among(arrays).any() for arrays in rows_of.keys(parquet, file, [group])):
        for records in rows_of.all(parquet, file, [group]):
            yield records.filter(pa.array(wanted.among(rows_of.key_of(records))))
