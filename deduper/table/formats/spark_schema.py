"""PURE. Schemas as Spark has them in JSON: in the log of a Delta table, and in the notes of a Parquet file.

A column with CHAR(n) or VARCHAR(n), at any depth, is a text here, and its type stands in the column's metadata. Spark
refuses longer values, and fills those of CHAR(n) with blanks, in the file too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_NOTE = b"org.apache.spark.sql.parquet.row.metadata"
_LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"


def objects_in(part: Any) -> Iterator[dict[str, Any]]:
    """All objects of a part of a schema, at any depth: types, fields and their metadata."""
    if isinstance(part, dict):
        yield part
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from objects_in(inner)


def declared_lengths(part: Any) -> list[str]:
    """The types with declared lengths in a part of a schema, as `varchar(3)` or `array<char(4)>`."""
    return [str(found[_LENGTHS]) for found in objects_in(part) if _LENGTHS in found]


def noted_lengths(notes: dict[bytes, bytes]) -> list[str]:
    """The same of a Parquet file, by the key-value metadata of its footer; none without Spark's note."""
    try:
        return declared_lengths(json.loads(notes[_NOTE]))
    except (KeyError, ValueError):
        return []
