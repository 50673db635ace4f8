"""Values of a dedup key as typed on a command line, in the types of the key's columns. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from deduper.columns import Column, ColumnType
from deduper.core.digests import KeyValue
from deduper.errors import UsageError


def parse_key(texts: Sequence[str], columns: Sequence[Column], *, null: str) -> list[KeyValue]:
    """One value a column, in their order; a text equal to `null` is a null.

    Raises:
        UsageError: too many or too few, or a text that is no value of its column's type; the message shows both.
    """
    if len(texts) != len(columns):
        wanted = ", ".join(f"{column.name} {column.type.text}" for column in columns)
        raise UsageError(f"the key has {len(columns)} columns ({wanted}), and {len(texts)} values were given")
    return [None if text == null else _value(text, column) for text, column in zip(texts, columns, strict=True)]


def _value(text: str, column: Column) -> KeyValue:
    try:
        return _parsed(text, column.type)
    except (ValueError, InvalidOperation):
        raise UsageError(
            f"column {column.name}: `{text}` is no {column.type.text}; write {_example(column.type)}"
        ) from None


def _parsed(text: str, kind: ColumnType) -> KeyValue:
    match kind.name:
        case "string":
            return text
        case "boolean":
            return {"true": True, "false": False}.get(text.lower()) if text.lower() in ("true", "false") else _no()
        case "float" | "double":
            return float(text)
        case "decimal":
            return Decimal(text)
        case "date":
            return date.fromisoformat(text)
        case "timestamp":
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        case "timestamp_ntz":
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo is None else _no()
        case "binary":
            return bytes.fromhex(text.removeprefix("0x"))
        case _:
            return int(text)


def _no() -> KeyValue:
    raise ValueError


def _example(kind: ColumnType) -> str:
    return {
        "boolean": "true or false",
        "float": "a number such as 1.5",
        "double": "a number such as 1.5",
        "decimal": "digits such as 12.50",
        "date": "2024-12-31",
        "timestamp": "2024-12-31T23:59:59Z (UTC when no zone is written)",
        "timestamp_ntz": "2024-12-31T23:59:59 without a zone",
        "binary": "hexadecimal digits such as 0x00ff",
    }.get(kind.name, "a whole number")
