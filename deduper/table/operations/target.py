"""A table as it is, and the keys of a version: for questions and plans, which take no lock, and for writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from deduper.table.batch import ArrowBatch, Batch, FileBatch, TextBatch, require_rule
from deduper.table.columns import KeyColumn, KeyColumns, key_columns, require_column
from deduper.table.errors import FileVanishedError, SettingError, TableChangedError
from deduper.table.formats.protocol import Snapshot, Table, open_table
from deduper.table.index.protocol import TableIndex, VersionKeys
from deduper.table.schema import require_same, type_name
from deduper.table.settings import LoadConfig, LoadedLoad

_TRIES = 10
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Target:
    """A table, what makes its rows the same, and the index of these keys."""

    table: Table
    columns: KeyColumns
    index: TableIndex

    def keys(self, found: Snapshot) -> VersionKeys:
        """The keys of the table's present version; files that the index lacks are read.

        Raises:
            SchemaDriftError: the table has other types than `columns`.
            TableError: a file or the index cannot be read.
        """
        root, columns = self.table.root, self.columns
        self.require_partitions(found)
        if found.schema is not None:
            names = [column.name for column in columns.all]
            of_table = pa.schema([field for field in found.schema if field.name in names])
            require_same(root, of_table, pa.schema([(column.name, column.arrow) for column in columns.all]))
        return self.index.view(root, columns).version(root, found.files)

    def require_partitions(self, found: Snapshot) -> None:
        """The partition columns of a folder table, whose folders have no types, are those of the index, if it has some.

        Raises:
            SchemaDriftError: they are of other types.
        """
        if self.table.format == "delta" or found.schema is None:
            return
        indexed = self.index.columns_of(self.table.root)
        if indexed is not None and indexed.names.partition_by == self.columns.names.partition_by:
            both = (indexed.partition_by, self.columns.partition_by)
            require_same(self.table.root, *(pa.schema([(one.name, one.arrow) for one in of]) for of in both))


def target_of(loaded: LoadedLoad, keys: pa.Schema | None = None) -> Target:
    """The table of a configuration, with the types that the table has.

    Folder tables name values of partitions, and no types: those are the index's, else those of `keys` if it has all
    partition columns, else the source's.

    Raises:
        ConfigError: there is no table, or a setting does not fit its columns.
        TableError: as `Table.snapshot`.
    """
    config = loaded.config
    table = table_of(loaded, keys)
    with loaded.placing_errors():
        schema = table.snapshot().schema
        if schema is None:
            raise SettingError("table.path", f"{config.table.path} has no table yet", "load files into it first")
        columns = key_columns(schema, config.key, config.partition_by, config.scope)
        return Target(table, columns, config.table_index)


def table_of(loaded: LoadedLoad, keys: pa.Schema | None = None) -> Table:
    """The table of a configuration, with or without files; types of partition columns as `target_of` has them.

    Raises:
        ConfigError: a setting does not fit.
    """
    config = loaded.config
    with loaded.placing_errors():
        by = _partitions(config, keys)
        return open_table(config.table.path, config.table.format, by)


def _partitions(config: LoadConfig, keys: pa.Schema | None) -> Sequence[KeyColumn]:
    if config.table.format == "delta":
        return [KeyColumn(name, "string") for name in config.partition_by]  # the log has their types
    indexed = config.table_index.columns_of(config.table.path)
    known = () if indexed is None else indexed.partition_by
    if tuple(column.name for column in known) == config.partition_by:
        return known
    if keys is None or not set(config.partition_by) <= set(keys.names):
        keys = config.source.batch(most_files=1).schema
    for name in config.partition_by:
        require_column("partition_by", name, keys)
    return [KeyColumn(name, type_name(keys.field(name).type)) for name in config.partition_by]


def of_one_version(table: Table, ask: Callable[[Snapshot], _T]) -> _T:
    """What `ask` gives for the table's present version. It is called again, with the new one, if a file goes meanwhile.

    Raises:
        FileVanishedError: the present version has a file that is gone.
        TableChangedError: files went each time.
        TableError: the table cannot be read; and what `ask` raises.
    """
    tries = 0
    while True:
        found = table.snapshot()
        try:
            return ask(found)
        except FileVanishedError as error:
            tries += 1
            if table.snapshot().files == found.files:
                raise
            if tries == _TRIES:
                raise TableChangedError(
                    f"{error}; other writers removed files {_TRIES} times while they were read; repeat it when they "
                    "write less"
                ) from error


def batch_of(rows: Any) -> Batch:
    """The rows of a call: a batch as it is, else Arrow data.

    Raises:
        TableUsageError: they are no Arrow data.
    """
    return rows if isinstance(rows, ArrowBatch | FileBatch | TextBatch) else ArrowBatch(rows)


def target_of_keys(batch: Batch, loaded: LoadedLoad) -> Target:
    """The table of a configuration whose keys a batch has: the key columns, and in partition scope the partitions'.

    Raises:
        ConfigError: there is no table, or the batch lacks a column.
        SchemaDriftError: it has one of another type than the table.
    """
    target = target_of(loaded, batch.schema)
    with loaded.placing_errors():
        for column in target.columns.digested:
            require_column("key" if column in target.columns.key else "partition_by", column.name, batch.schema)
    wanted = pa.schema([(column.name, column.arrow) for column in target.columns.digested])
    require_same(target.table.root, wanted, pa.schema([batch.schema.field(name) for name in wanted.names]))
    return target


def target_of_rows(batch: Batch, loaded: LoadedLoad) -> Target:
    """The table of a configuration for rows of all its columns; it need not be there yet.

    Raises:
        ConfigError: a setting does not fit the columns.
    """
    config = loaded.config
    with loaded.placing_errors():
        columns = key_columns(batch.schema, config.key, config.partition_by, config.scope)
        require_rule(config.rule, batch)
        return target_with(config.table.path, config.table.format, columns, config.table_index)


def target_with(path: str | Path, table_format: str, columns: KeyColumns, index: TableIndex) -> Target:
    """The table in a folder for rows with these columns; it need not be there yet.

    Raises:
        SettingError: there is no such format, or readers would not find the files of the new table.
    """
    table = open_table(path, table_format, columns.partition_by)
    # A Delta table's files are found by its log, and a table that is there has readers that find them.
    name = next((column.name for column in columns.partition_by if column.name.startswith("_")), None)
    if name is not None and table.format == "parquet" and table.snapshot().schema is None:
        what = f"`{name}` begins with `_`, and Arrow passes over such folders"
        raise SettingError("partition_by", what, "rename the column, or write `format: delta`")
    return Target(table, columns, index)
