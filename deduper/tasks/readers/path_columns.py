"""Columns that stand in the path of a file: in the names of its folders, as Hive and Spark lay out a table, and in its
own name, by a pattern: `in/day=2024-01-31/web1.log`. PURE.

folder      name=value, anywhere between the source's folder and the file; of two with one name the inner one counts
name        a declared column of a scalar type, in any case; any other folder is just a folder
value       its text; `%` and two hexadecimal digits are one character; `__HIVE_DEFAULT_PARTITION__` is null
file        the pattern matches its whole name; each named group is a column, before one of a folder. A group that takes
            no part in the match is null. Under a name that does not match, these columns have no values
type        a text becomes a value as by Spark's cast, with the exceptions that SEMANTICS.md states for CSV
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from deduper.columns import Column, ColumnType
from deduper.text.format import Malformed, TextFormat
from deduper.text.values import cast_of


class NoValue(Enum):
    """Why a path has no value for a column that it should give: the records of the file are malformed."""

    OF_ANOTHER_TYPE = 1
    OTHER_NAME = 2
    """The name of the file does not match the pattern."""


PathText: TypeAlias = str | NoValue | None
PathValue: TypeAlias = bool | int | float | Decimal | str | bytes | NoValue | None
"""A date is days, a time µs since 1970."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class PathRule:
    """The parts of a path that give columns: folders below `folder`, and the groups of `name_pattern`."""

    folder: Path
    name_pattern: str | None = None

    def texts(self, path: str, columns: Iterable[Column]) -> dict[str, PathText]:
        """The texts that a file's path gives to declared columns, by the names of these."""
        texts = self._of_folders(path, columns) if "=" in path else {}
        return texts if self.name_pattern is None else texts | name_texts(self.name_pattern, path)

    def _of_folders(self, path: str, columns: Iterable[Column]) -> dict[str, PathText]:
        if not Path(path).is_relative_to(self.folder):
            return {}
        declared = {column.name.lower(): column.name for column in columns if column.type.is_scalar}
        texts: dict[str, PathText] = {}
        for part in Path(path).relative_to(self.folder).parts[:-1]:
            name, sign, value = part.partition("=")
            column = declared.get(_unescaped(name).lower())
            if sign and column is not None:
                texts[column] = None if value == _NULL else _unescaped(value)
        return texts


def name_texts(pattern: str, path: str) -> dict[str, PathText]:
    """The texts of a pattern's groups in the name of a file, by the groups' names."""
    found = re.compile(pattern).fullmatch(path.rpartition("/")[2])
    return dict.fromkeys(groups_of(pattern), NoValue.OTHER_NAME) if found is None else {**found.groupdict()}


def groups_of(pattern: str) -> tuple[str, ...]:
    """The names of a pattern's groups."""
    return tuple(re.compile(pattern).groupindex)


def path_value(text: PathText, kind: ColumnType, zone: str) -> PathValue:
    """The value of a text in a column of this type. `zone` is that of times without one."""
    if text is None or isinstance(text, NoValue):
        return text
    try:
        text.encode()
        value: PathValue = cast_of(kind, zone)(text)
        return value
    except (Malformed, UnicodeEncodeError):  # a name that is no UTF-8 is no text
        return NoValue.OF_ANOTHER_TYPE


def name_values(pattern: str | None, path: str, text: TextFormat) -> dict[int, PathValue]:
    """The values that a file's name gives to columns of a format, by their numbers."""
    texts = {} if pattern is None else name_texts(pattern, path)
    return {
        number: path_value(texts[column.name], column.kind, text.zone)
        for number, column in enumerate(text.columns)
        if column.name in texts
    }


def constant(value: PathValue, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of one value; of nulls where there is none."""
    return pa.nulls(rows, kind) if isinstance(value, NoValue) else pa.repeat(pa.scalar(value, kind), rows)


def is_malformed(in_path: Mapping[int, PathValue]) -> bool:
    """Whether all records of a file with these values are malformed."""
    return any(isinstance(value, NoValue) for value in in_path.values())


def _unescaped(text: str) -> str:
    # One character for each escape, as Spark and Hive have it: they escape no letter beyond ASCII.
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def is_hidden(name: str) -> bool:
    """Whether readers of a folder pass over a file or folder of this name.

    Source: Spark's HadoopFSUtils.shouldFilterOutPathName; `_p=1` is the folder of a column `_p`.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
