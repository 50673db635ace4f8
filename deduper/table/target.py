"""The table of a configuration as it is, and the columns of its key, without a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from deduper.table.columns import KeyColumn, KeyColumns, key_columns, require_column
from deduper.table.errors import SettingError
from deduper.table.formats.open import open_table
from deduper.table.formats.protocol import Table
from deduper.table.schema import type_name
from deduper.table.settings import LoadConfig, LoadedLoad


@dataclass(frozen=True, slots=True)
class Target:
    """A table that is there, and what its index is to be of."""

    table: Table
    columns: KeyColumns


def target_of(loaded: LoadedLoad, keys: pa.Schema | None = None) -> Target:
    """The table of a configuration, with the types that the table has.

    Folders of plain Parquet name values and no types: those of partition columns are the index's, else those of `keys`
    if it has them all, else the source's.

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
        return Target(table, key_columns(schema, config.key, config.partition_by, config.scope))


def table_of(loaded: LoadedLoad, keys: pa.Schema | None = None) -> Table:
    """The table of a configuration, with or without files; types of partition columns as `target_of` has them.

    Raises:
        ConfigError: a setting does not fit.
    """
    config = loaded.config
    with loaded.placing_errors():
        by = _partitions(config, keys)
        return open_table(config.table.path, config.table.format, by, config.keep_versions)


def _partitions(config: LoadConfig, keys: pa.Schema | None) -> Sequence[KeyColumn]:
    if config.table.format == "delta":
        return [KeyColumn(name, "string") for name in config.partition_by]  # the log has their types
    indexed = config.table_index.columns_of(config.table.path)
    known = () if indexed is None else indexed.partition_by
    if tuple(column.name for column in known) == config.partition_by:
        return known
    if keys is None or not set(config.partition_by) <= set(keys.names):
        keys = config.source.batch(1).schema
    for name in config.partition_by:
        require_column("partition_by", name, keys)
    return [KeyColumn(name, type_name(keys.field(name).type)) for name in config.partition_by]
