"""Columns that stand in the names of folders, as Hive and Spark lay out a table: `in/day=2024-01-31/a.parquet`. PURE.

folder      name=value, anywhere between the source's folder and the file; of two with one name the inner one counts
name        a declared column of a scalar type, in any case; any other folder is just a folder
value       its text; `%` and two hexadecimal digits are one character; `__HIVE_DEFAULT_PARTITION__` is null
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from deduper.columns import Column, ColumnType

FolderValue = str | int | date | None

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_WHOLE = re.compile("-?[0-9]{1,19}")
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def folder_texts(path: str, folder: Path, columns: Sequence[Column]) -> dict[str, str | None]:
    """The texts that a file's folders give, by the names of their columns; of those only that are declared."""
    if "=" not in path or not Path(path).is_relative_to(folder):
        return {}
    declared = {column.name.lower(): column.name for column in columns if column.type.is_scalar}
    texts = {}
    for part in Path(path).relative_to(folder).parts[:-1]:
        name, sign, value = part.partition("=")
        column = declared.get(_unescaped(name).lower())
        if sign and column is not None:
            texts[column] = None if value == _NULL else _unescaped(value)
    return texts


def folder_value(text: str | None, kind: ColumnType) -> FolderValue:
    """The value of a text where it can only mean one: whole numbers, days written `2024-01-31`, texts.

    Raises:
        ValueError: Spark's cast decides, on any other type or way to write it.
    """
    if text is None or kind.name == "string":
        return text
    if kind.name == "date" and _DAY.fullmatch(text):
        return date.fromisoformat(text)
    if kind.name in _BITS and _WHOLE.fullmatch(text):
        bound = 1 << (_BITS[kind.name] - 1)
        if -bound <= int(text) < bound:
            return int(text)
    raise ValueError(f"`{text}` of a folder is cast to {kind.text} by Spark")


def _unescaped(text: str) -> str:
    # One character for each escape, as Spark and Hive have it: they escape no letter beyond ASCII.
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
