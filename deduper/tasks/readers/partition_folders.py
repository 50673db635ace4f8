"""Columns that stand in the names of folders, as Hive and Spark lay out a table: `in/day=2024-01-31/a.parquet`. PURE.

folder      name=value, anywhere between the source's folder and the file; of two with one name the inner one counts
name        a declared column of a scalar type, in any case; any other folder is just a folder
value       its text; `%` and two hexadecimal digits are one character; `__HIVE_DEFAULT_PARTITION__` is null
type        a text becomes a value as by Spark's cast, with the exceptions that SEMANTICS.md states for CSV
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Final

from deduper.columns import Column, ColumnType
from deduper.text.format import Malformed
from deduper.text.values import cast_of


class NoValue(Enum):
    """The value of a folder whose text is not of the column's type: its records are malformed."""

    OF_ANOTHER_TYPE = 1


FolderValue = None | bool | int | float | Decimal | str | bytes | NoValue
"""A date is days, a time µs since 1970."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def folder_texts(path: str, folder: Path, columns: Sequence[Column]) -> dict[str, str | None]:
    """The texts that a file's folders give to declared columns, by the names of these."""
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


def folder_value(text: str | None, kind: ColumnType, zone: str) -> FolderValue:
    """The value of a text in a column of this type. `zone` is that of times without one."""
    if text is None:
        return None
    try:
        text.encode()
        value: FolderValue = cast_of(kind, zone)(text)
        return value
    except (Malformed, UnicodeEncodeError):  # a name that is no UTF-8 is no text
        return NoValue.OF_ANOTHER_TYPE


def _unescaped(text: str) -> str:
    # One character for each escape, as Spark and Hive have it: they escape no letter beyond ASCII.
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
