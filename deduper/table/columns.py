"""The columns by which a table's rows are the same, and those by which they lie in folders. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType, parse_columns
from deduper.config.problems import suggestion
from deduper.table.errors import SettingError
from deduper.table.folder_names import ESCAPED, LONGEST_COLUMN
from deduper.table.schema import is_scalar, type_name

Scope = Literal["partition", "global"]

PARTITION_TYPES = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Floats are left out: engines write them into folders' names in different ways."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key, or of the partitions: its name in the table, and its type as Spark names it."""

    name: str
    type: str

    @property
    def kind(self) -> ColumnType:
        """Its type, parsed."""
        return parse_columns(f"c {self.type}")[0].type

    @property
    def arrow(self) -> pa.DataType:
        """Its type as Arrow has it."""
        return arrow_type(self.kind)


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The columns and the scope of a key by names: what a configuration says before the table's types are known."""

    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    scope: Scope


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """What makes rows the same: equal values in `digested`. Fixed for the life of an index.

    With scope `partition` the partition columns are digested too, so equal digests lie in one partition.
    """

    key: tuple[KeyColumn, ...]
    partition_by: tuple[KeyColumn, ...]
    scope: Scope

    @property
    def names(self) -> KeyNames:
        """Without the types."""
        key, by = (tuple(column.name for column in of) for of in (self.key, self.partition_by))
        return KeyNames(key, by, self.scope)

    @property
    def digested(self) -> tuple[KeyColumn, ...]:
        """The columns of a digest, in their order; a key column that is a partition column stands once."""
        if self.scope == "global":
            return self.key
        return (*(column for column in self.partition_by if column not in self.key), *self.key)

    @property
    def bucket_column(self) -> KeyColumn | None:
        """The column whose exact value is the bucket of a row; None when all rows are in bucket 0."""
        if self.scope == "global":
            return None
        return next((column for column in self.partition_by if column.type != "string"), None)

    @property
    def all(self) -> tuple[KeyColumn, ...]:
        """The columns of both kinds, each once."""
        return tuple(dict.fromkeys((*self.key, *self.partition_by)))


def key_columns(schema: pa.Schema, key: Sequence[str], partition_by: Sequence[str], scope: str) -> KeyColumns:
    """The columns of these names in a schema of the one form.

    Raises:
        SettingError: a name is missing or stands twice, or its type cannot be a key or a partition.
    """
    if not key:
        raise SettingError("key", "is empty", "name the columns that make a record the same record")
    if scope not in ("partition", "global"):
        raise SettingError("scope", f"`{scope}` is not a valid choice", "write `partition` or `global`")
    for setting, names in (("key", key), ("partition_by", partition_by)):
        if len(set(names)) < len(names):
            raise SettingError(setting, f"a column stands twice in {', '.join(names)}", "name it once")
        for name in names:
            require_column(setting, name, schema)
    named = {name: KeyColumn(name, type_name(schema.field(name).type)) for name in (*key, *partition_by)}
    for name in key:
        if not is_scalar(schema.field(name).type):
            raise SettingError(
                "key",
                f"`{name}` is {named[name].type}, which cannot be part of a key",
                "use numbers, decimals, texts, bytes, booleans, dates or times",
            )
    for name in partition_by:
        if found := sorted({"\0", *ESCAPED}.intersection(name)):
            what = f"`{name}` has {', '.join(map(repr, found))}, which some readers do not find in the names of folders"
            raise SettingError("partition_by", what, "rename the column, or partition by another one")
        if not name or name.startswith(".") or len(name.encode(errors="replace")) > LONGEST_COLUMN:
            why = "begins with `.`: readers skip such folders" if name.startswith(".") else "is empty or too long"
            what = f"`{name}` {why}"
            raise SettingError("partition_by", what, "rename the column, or partition by another one")
        if named[name].type not in PARTITION_TYPES:
            what = f"`{name}` is {named[name].type}, which cannot name a folder"
            raise SettingError("partition_by", what, f"use a column of {', '.join(PARTITION_TYPES)}")
    if len(partition_by) == len(schema):
        raise SettingError("partition_by", "names every column", "leave one to the files")
    return KeyColumns(
        tuple(named[name] for name in key),
        tuple(named[name] for name in partition_by),
        "global" if scope == "global" else "partition",
    )


def require_column(setting: str, name: str, schema: pa.Schema) -> None:
    """Raises SettingError unless the schema has the column."""
    if name not in schema.names:
        parts = [part.strip() for part in name.split(",")]
        is_list = len(parts) > 1 and set(parts) <= set(schema.names)
        write = f"write `{setting}: [{', '.join(parts)}]`" if is_list else suggestion(name, schema.names, "columns are")
        raise SettingError(setting, f"there is no column `{name}`", write)
