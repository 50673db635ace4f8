"""The rows of a batch that a load would add, with nothing written.

What an upsert would do with each row of a batch, with nothing written.

The rows of a table that have some keys; only the files that hold them are opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.batch import Batch, Keep
from deduper.table.errors import TableUsageError
from deduper.table.formats.protocol import DataFile, Snapshot
from deduper.table.index.keys import wide
from deduper.table.index.matching import SortedValues, WantedKeys, bounded_column, groups_with
from deduper.table.index.protocol import TableIndex, VersionKeys
from deduper.table.index.reading import TableRows, opened
from deduper.table.operations.judge import Verdict, judge, judge_changes
from deduper.table.operations.target import (
    Question,
    Target,
    batch_of,
    of_one_version,
    present_keys,
    question_of,
    target_of_keys,
)
from deduper.table.settings import LoadedLoad


def filter_exists(rows: Any, loaded: LoadedLoad) -> pa.BooleanArray:
    """Whether each row is new: True for those that a load of these rows would add now. Nothing is written.

    `rows`: as for `load`, of `loaded` the table, the key and `keep` count; columns that are in none of them need not be
    there. False are rows whose key the table has, repeats within `rows`, and errors. The mask is for `rows.filter`.

    It takes no lock, so it holds for the version at hand alone. The keys of files that the index lacks are read into
    memory: without an index all of the table.

    Raises:
        ConfigError: a setting does not fit the columns.
        TableUsageError: the columns are not those of the table.
        TableChangedError: other writers removed files each time while they were read.
        TableError: the table or its index cannot be read.
    """
    question = question_of(rows, loaded)
    verdicts = of_one_version(
        question.table, lambda found: judge(question.batch, question.columns, question.keep, question.keys(found))
    )
    return pa.array(verdicts.verdict == Verdict.NEW)


_CHUNK_ROWS = 1 << 20
_ACTION = {Verdict.NEW: "insert", Verdict.IN_TABLE: "update"}


def tag(rows: Any, loaded: LoadedLoad) -> pa.Table:
    """For each row of `rows`, in their order, what an upsert of them would do now:

        action   string        `insert`, `update`; null for a row that an upsert leaves out
        reason   string        why it does: `same_load` (a repeat within the rows), `null_key`, `null_partition`,
                               `bad_partition`; else null
        files    list<string>  of an update the files that hold its key, relative to the table's folder: one, unless
                               another writer has added the key again; else null

    The different `files` are all that a MERGE of these rows has to touch. Arguments, promises and errors are those of
    `filter_exists`.
    """
    question = question_of(rows, loaded)
    return of_one_version(question.table, lambda found: _tags(question, question.keys(found)))


def _tags(question: Question, keys: VersionKeys) -> pa.Table:
    verdicts = judge_changes(question.batch, question.columns, question.keep, keys, question.columns.all)
    codes = pa.array(verdicts.verdict)
    return pa.table(
        {
            "action": _named(codes, {int(code): name for code, name in _ACTION.items()}),
            "reason": _named(codes, {int(code): code.reason for code in Verdict if code not in _ACTION}),
            "files": _files(verdicts.row, [keys.files[number].path for number in verdicts.file.tolist()], len(codes)),
        }
    )


def _named(codes: pa.Array, names: dict[int, str]) -> pa.Array:
    """The name of each code, null for one that has none."""
    places = pa.compute.index_in(codes, pa.array(list(names), codes.type))
    return pa.array(list(names.values()), pa.string()).take(places)


def _files(row: np.ndarray, path: list[str], rows: int) -> pa.ChunkedArray:
    """The paths of each row in a list, null for none; `row` ascends. In chunks: all paths may take more than 2 GiB."""
    count = np.bincount(row, minlength=rows)
    ends = np.concatenate(([0], np.cumsum(count)))
    chunks = []
    for begin in range(0, rows, _CHUNK_ROWS):
        edges = ends[begin : begin + _CHUNK_ROWS + 1]
        paths = pa.array(path[edges[0] : edges[-1]], pa.string())
        is_none = pa.array(count[begin : begin + _CHUNK_ROWS] == 0)
        chunks.append(pa.ListArray.from_arrays(pa.array(edges - edges[0], pa.int32()), paths, mask=is_none))
    return pa.chunked_array(chunks, pa.list_(pa.string()))


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
