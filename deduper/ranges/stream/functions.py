"""Custom aggregates in the settings, as `package.module:name`, and the types of their answers."""

from __future__ import annotations

import re
from importlib import import_module

import pyarrow as pa

from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType, DdlError, parse_columns
from deduper.config.values import refusal
from deduper.ranges.aggregate.aggregates import Own

_TEXT = re.compile(r"\s*([\w.]+):(\w+)\s*")
_EXAMPLE = "write `package.module:name` of an `Own` that Python finds (PYTHONPATH)"


def is_own(text: str) -> bool:
    """Whether the text names a custom aggregate."""
    return _TEXT.fullmatch(text) is not None


def own_of(text: str) -> Own:
    """The aggregate of this name; its module is imported once in a process.

    Raises:
        PydanticCustomError: it cannot be imported, is no `Own`, or its answers have no type of a stream.
    """
    match = _TEXT.fullmatch(text)
    assert match is not None, "asked by `is_own`"
    try:
        found = getattr(import_module(match[1]), match[2])
    except Exception as error:  # noqa: BLE001  whatever a module raises is a mistake in the settings
        what = f"`{text}` cannot be imported: {type(error).__name__}: {error}"
        raise refusal(what, _EXAMPLE) from None
    if not isinstance(found, Own):
        raise refusal(f"`{text}` is no `Own`", f"write `{match[2]} = Own(…)` there")
    _type_of(found)
    return found


def answer_type(own: Own) -> pa.DataType:
    """The type of its answers."""
    kind = _type_of(own)
    return pa.list_(arrow_type(_item(kind))) if kind.name == "array" else arrow_type(kind)


def _type_of(own: Own) -> ColumnType:
    write = 'write `type="double"` there, or another scalar, or an array of one'
    try:
        columns = parse_columns(f"answer {own.type}")
        if len(columns) == 1 and _item(columns[0].type).is_scalar:
            return columns[0].type
    except DdlError as error:
        raise refusal(f"its type `{own.type}`: {error.what}", write) from None
    raise refusal(f"its type `{own.type}` is not one of a stream", write)


def _item(kind: ColumnType) -> ColumnType:
    """The type of the values of an array, or else the type itself."""
    return parse_columns(f"item {kind.text[len('array<') : -1]}")[0].type if kind.name == "array" else kind
