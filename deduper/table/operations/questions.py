"""Questions to a table: which rows a load would add, what an upsert would do with each, the rows of some keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from deduper.table.batch import Batch, Keep
from deduper.table.columns import KeyColumns
from deduper.table.errors import TableUsageError
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.keys import wide
from deduper.table.index.matching import SortedValues, WantedKeys, bounded_column, groups_with
from deduper.table.index.reading import OpenFile, opened
from deduper.table.operations.judge import Verdict, judge
from deduper.table.operations.target import Target, batch_of, of_one_version, target_of_keys, target_of_rows
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

    Example:
        >>> filter_exists(pa.table({"id": [1, 3, 3]}), table_config("load.yaml")).to_pylist()
        [False, True, False]
    """
    batch = batch_of(rows)
    target = target_of_rows(batch, loaded)
    rule = loaded.config.rule
    verdicts = of_one_version(target.table, lambda found: judge(batch, target.columns, rule, target.keys(found)))
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

    Example:
        >>> tag(pa.table({"id": [1, 3, 3]}), table_config("load.yaml")).column("action").to_pylist()
        ['update', 'insert', None]
    """
    batch = batch_of(rows)
    target = target_of_rows(batch, loaded)
    rule = loaded.config.rule

    def tags(found: Snapshot) -> pa.Table:
        keys = target.keys(found)
        verdicts = judge(batch, target.columns, rule, keys, replaces=True)
        codes = pa.array(verdicts.verdict)
        row = verdicts.rows[verdicts.place]
        order = np.argsort(row, kind="stable")
        paths = [keys.files[number].path for number in verdicts.file[order].tolist()]
        return pa.table(
            {
                "action": _named(codes, {int(code): name for code, name in _ACTION.items()}),
                "reason": _named(codes, {int(code): code.reason for code in Verdict if code not in _ACTION}),
                "files": _files(row[order], paths, len(codes)),
            }
        )

    return of_one_version(target.table, tags)


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

    Example:
        >>> read(pa.table({"id": [2, 3]}), table_config("load.yaml")).to_pylist()
        [{'id': 2, 'price': 20}]
    """
    batch = batch_of(keys)
    target = target_of_keys(batch, loaded)
    return of_one_version(target.table, lambda found: _rows(batch, target, found))


def _rows(batch: Batch, target: Target, snapshot: Snapshot) -> pa.Table:
    """The rows of one version."""
    if snapshot.schema is None:
        raise TableUsageError(f"{target.table.root}: there is no table any more")
    columns = target.columns
    present = target.keys(snapshot)
    found = judge(batch, columns, Keep(), present, replaces=True, required=columns.digested)
    wanted = WantedKeys(found.keys.chosen(found.is_found), columns, present.salt)
    by = bounded_column(columns)
    values = None
    if by is not None:
        chunks = [wide(records.column(0)) for records in batch.batches([by.name])]
        values = pa.chunked_array(chunks, None if chunks else by.arrow)
    by_file = np.argsort(found.file, kind="stable")
    numbers, starts = np.unique(found.file[by_file], return_index=True)
    parts: list[pa.RecordBatch] = []
    for number, rows in zip(numbers.tolist(), np.split(found.rows[found.place[by_file]], starts[1:]), strict=False):
        file = present.files[number]
        with opened(target.table.root, file) as opened_file:
            groups: Sequence[int] = range(opened_file.footer.num_row_groups)
            if by is not None and values is not None:
                groups = groups_with(opened_file.footer, by, SortedValues(values.take(pa.array(rows))))
            for group in groups:
                parts += _in_group(opened_file, snapshot.schema, columns, wanted, group)
    return pa.Table.from_batches(parts, schema=snapshot.schema)


def _in_group(
    file: OpenFile, schema: pa.Schema, columns: KeyColumns, wanted: WantedKeys, group: int
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a row group; without one, its key columns alone are read."""
    if any(wanted.among(arrays).any() for arrays in file.keys(columns, [group])):
        for records in file.rows(schema, columns, [group]):
            is_wanted = wanted.among([records.column(column.name) for column in columns.digested])
            yield records.filter(pa.array(is_wanted))
