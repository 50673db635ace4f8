"""The columns by which a table's rows are the same, and those by which they lie in folders. PURE.

Names of folders, `column=value`, are as Spark and Hive write them: control signs and `"#%'*/:=?\\{[]^` as `%` and two
hex digits, all others, those beyond ASCII too, as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

import pyarrow as pa

from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType, parse_columns
from deduper.config.problems import suggestion
from deduper.table.errors import SettingError, TableUsageError
from deduper.table.schema import is_scalar, type_name

PartitionValue = int | str | None
"""A value of a partition column; a date is its days since 1970-01-01."""

Scope = Literal["partition", "global"]

PARTITION_TYPES = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Floats are left out: engines write them into folders' names in different ways."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The folder's name for null."""
ESCAPED = frozenset((*map(chr, range(1, 32)), "\x7f", *"\"#%'*/:=?\\{[]^"))
"""The signs that names of folders have as `%` and two hex digits.

Source: Spark's ExternalCatalogUtils.charToEscape, which is Hive's.
"""
_LONGEST_NAME = 255
"""The bytes of a name in file systems."""
LONGEST_COLUMN = 128
"""The bytes of a partition column's name, so that its values have room."""
_EPOCH = date(1970, 1, 1)
_DATE, _INTEGER = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), re.compile(r"[+-]?[0-9]+")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


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


def folder_name(column: str, text: str | None) -> str:
    """The folder of a value of a partition column, None for null."""
    return f"{_escaped(column)}={NO_VALUE if text is None else _escaped(text)}"


def fits_a_name(column: str, text: str) -> bool:
    """Whether a file system can have the folder."""
    return len(folder_name(column, text).encode()) <= _LONGEST_NAME


def folder_values(path: str) -> tuple[tuple[str, str], ...]:
    """(column, text of the value) of each folder of a relative path.

    Raises:
        TableUsageError: readers do not agree on a text.
    """
    parts = [part for part in path.split("/")[:-1] if "=" in part]
    for part in parts:
        for code in re.findall(r"%([89A-Fa-f][0-9A-Fa-f])", part):
            raise TableUsageError(
                f"{path}: `%{code}` in the folder's name is a letter to Spark and Hive, and a part of one to Arrow; "
                "rename the folder, with letters beyond ASCII as they are"
            )
    return tuple((_unescaped(name), _unescaped(value)) for name, _, value in (part.partition("=") for part in parts))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(sign):02X}" if sign in ESCAPED else sign for sign in text)


def _unescaped(text: str) -> str:
    return re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), text) if "%" in text else text


def other_partitions(where: str, found: Sequence[str], wanted: Sequence[str]) -> str:
    """The refusal of a table, or a file of one, with other partition columns than those of the settings."""
    of_table, of_settings = (", ".join(names) or "nothing" for names in (found, wanted))
    write = f"write `partition_by: [{of_table}]`" if found else "leave `partition_by` out"
    return f"{where}: is partitioned by {of_table}, and the load's partition_by is {of_settings}; {write}"


def partition_of(path: str, columns: Sequence[KeyColumn]) -> tuple[PartitionValue, ...]:
    """The values of partition columns that the folders of a path name.

    Raises:
        TableUsageError: they name other columns, or a value is not of its column's type.
    """
    values = folder_values(path)
    found, wanted = [name for name, _ in values], [column.name for column in columns]
    if found != wanted:
        raise TableUsageError(other_partitions(path, found, wanted))
    return tuple(_value_of(text, column, path) for (_, text), column in zip(values, columns, strict=True))


def text_of(value: PartitionValue, column: KeyColumn) -> str | None:
    """The value of a partition column as text, None for null."""
    if column.type == "date" and isinstance(value, int):
        return (_EPOCH + timedelta(days=value)).isoformat()
    return None if value is None else str(value)


def _value_of(text: str, column: KeyColumn, path: str) -> PartitionValue:
    if text == NO_VALUE:
        return None
    try:
        if column.type == "string":
            return text
        # Python takes more for numbers and dates than readers do, as `1_0` and `20240101`.
        if column.type == "date":
            return (date.fromisoformat(_matched(_DATE, text)) - _EPOCH).days
        value, most = int(_matched(_INTEGER, text)), 1 << (_BITS[column.type] - 1)
        if not -most <= value < most:
            raise ValueError(text)
        return value
    except ValueError as error:
        raise TableUsageError(
            f"{path}: `{text}` is no {column.type}, which the batch's column `{column.name}` is"
        ) from error


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(text)
    return text
