"""Values of a dedup key, and expiry keys, as typed on a command line, in the types of their columns. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from deduper.columns import Column, ColumnType
from deduper.config.model import Config
from deduper.config.sections import CategoryExpiry, EventTimeExpiry
from deduper.core.digests import KeyValue, plain_value
from deduper.errors import UsageError
from deduper.units import UNIT_US


def parse_key(texts: Sequence[str], columns: Sequence[Column], *, null: str) -> list[KeyValue]:
    """One value a column, in their order; a text equal to `null` is a null.

    Raises:
        UsageError: too many or too few, or a text that is no value of its column's type; the message shows both.
    """
    named = dict(text.split("=", 1) for text in texts if "=" in text)
    if texts and len(named) == len(texts) and named.keys() == {column.name for column in columns}:
        values = " ".join(named[column.name] for column in columns)
        raise UsageError(f"write the values alone, in the order of the key: {values}")
    if len(texts) != len(columns):
        wanted = ", ".join(f"{column.name} {column.type.text}" for column in columns)
        of_key = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        given = "1 value was" if len(texts) == 1 else f"{len(texts)} values were"
        raise UsageError(f"the key has {of_key} ({wanted}), and {given} given; give one for each, in this order")
    return [None if text == null else _value(text, column) for text, column in zip(texts, columns, strict=True)]


def parse_expiry(text: str, config: Config) -> int | float | str:
    """An expiry key in stored steps, or a category, as the job would read it from this text.

    Raises:
        UsageError: copies have no expiry key of their own, or the text is no value of its column's type.
    """
    column, expiry = config.expiry_column, config.expiry
    if column is None:
        raise UsageError(f"with `expiry.by: {expiry.by}` a copy has no expiry key of its own; leave out --at")
    if isinstance(expiry, CategoryExpiry):
        return text
    try:
        plain = plain_value(_value(text, column), column.type)
    except ValueError as error:
        raise UsageError(f"--at {text}: {error}") from error
    unit = UNIT_US[expiry.unit] if isinstance(expiry, EventTimeExpiry) and expiry.unit else 1
    assert not isinstance(plain, bytes)
    return float(plain) if config.expiry_key_scale.is_float else int(plain) * unit


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
