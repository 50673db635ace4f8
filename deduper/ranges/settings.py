"""The settings that range aggregates of files and of streams share: columns and aggregates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import AfterValidator, Field

from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType, DdlError, parse_columns
from deduper.config.load import OwnFile
from deduper.config.sections import Key
from deduper.config.values import Duration, refusal
from deduper.errors import UsageError
from deduper.ranges.aggregate.aggregates import Aggregate, AnyAggregate, Own, answer_type, parse_aggregate

_OWN = re.compile(r"\s*([\w.]+):(\w+)\s*")
_EXAMPLE = "write `package.module:name` of an `Own` that Python finds (PYTHONPATH)"


def _readable(text: str) -> str:
    _parsed(text)
    return text


class RangeSettings(OwnFile):
    """The columns of events and ranges, and the aggregates."""

    page = "docs/range-aggregates.md"
    mark = "aggregates"

    on: Key = Field(examples=["id"])
    time: str = Field(examples=["at"])
    start: str = Field(examples=["start"])
    end: str = Field(examples=["end"])
    ends: Literal["[]", "[)", "(]", "()"] = Field(default="[]", examples=['"[]"'])
    aggregates: dict[str, Annotated[str, AfterValidator(_readable)]] = Field(
        min_length=1, examples=['{points: "sum(points)"}']
    )
    longest: Duration | None = Field(default=None, examples=["30d"])

    @cached_property
    def parsed(self) -> dict[str, AnyAggregate]:
        """The aggregates by their names; parsed once, since every window uses them."""
        return {name: _parsed(text) for name, text in self.aggregates.items()}

    @property
    def known(self) -> dict[str, Aggregate]:
        """The built-in aggregates."""
        return {name: one for name, one in self.parsed.items() if isinstance(one, Aggregate)}

    @property
    def own(self) -> dict[str, Own]:
        """The custom aggregates."""
        return {name: one for name, one in self.parsed.items() if isinstance(one, Own)}

    @property
    def own_types(self) -> dict[str, pa.DataType]:
        """The types of the custom aggregates' answers."""
        return {name: _own_type(one) for name, one in self.own.items()}

    def answer_types(self, columns: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """The type of each aggregate, of columns of these types."""
        types = {name: answer_type(one, one.column and columns[one.column]) for name, one in self.known.items()}
        types |= self.own_types
        return {name: types[name] for name in self.aggregates}


def _parsed(text: str) -> AnyAggregate:
    """A built-in aggregate, or the custom one of this name, whose module is imported once in a process.

    Raises:
        PydanticCustomError: it is none, cannot be imported, is no `Own`, or its answers have no type of a column.
    """
    match = _OWN.fullmatch(text)
    if match is None:
        try:
            return parse_aggregate(text)
        except UsageError as error:
            what, _, write = str(error).partition("; ")
            raise refusal(what, write) from None
    try:
        found = getattr(import_module(match[1]), match[2])
    except Exception as error:  # noqa: BLE001  whatever a module raises is a mistake in the settings
        what = f"`{text}` cannot be imported: {type(error).__name__}: {error}"
        raise refusal(what, _EXAMPLE) from None
    if not isinstance(found, Own):
        raise refusal(f"`{text}` is no `Own`", f"write `{match[2]} = Own(…)` there")
    _own_type(found)
    return found


def _own_type(own: Own) -> pa.DataType:
    """The type of a custom aggregate's answers."""
    write = 'write `type="double"` there, or another scalar, or an array of one'
    try:
        columns = parse_columns(f"answer {own.type}")
        if len(columns) == 1 and _item(columns[0].type).is_scalar:
            kind = columns[0].type
            return pa.list_(arrow_type(_item(kind))) if kind.name == "array" else arrow_type(kind)
    except DdlError as error:
        raise refusal(f"its type `{own.type}`: {error.what}", write) from None
    raise refusal(f"its type `{own.type}` is not one of a column", write)


def _item(kind: ColumnType) -> ColumnType:
    """The type of the values of an array, or else the type itself."""
    return parse_columns(f"item {kind.text[len('array<') : -1]}")[0].type if kind.name == "array" else kind
