"""PURE. Folders of partitions, `column=value`, by name.

Names are as Spark and Hive write them: control signs and `"#%'*/:=?\\{[]^` as `%` and two hex digits, all others, those
beyond ASCII too, as they are.
"""

from __future__ import annotations

import re

from deduper.table.errors import TableUsageError

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
SHORT_TEXT = 40
"""The bytes of a text that fits a name whatever it is: a sign takes three at most for each."""


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
