"""The declared columns of a source as Arrow has them. PURE."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from deduper.columns import Column, ColumnType

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_NAMES = {arrow: name for name, arrow in _ARROW.items()}


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A declared column: its type as Spark has it, and as Arrow has that."""

    name: str
    kind: ColumnType
    arrow: pa.DataType

    @classmethod
    def of(cls, column: Column) -> DeclaredColumn:
        """A column of a declared type."""
        return cls(column.name, column.type, arrow_type(column.type))


def arrow_type(kind: ColumnType) -> pa.DataType:
    """How Arrow has a declared type; every value may be null."""
    if kind.name == "decimal":
        return pa.decimal128(kind.precision or 10, kind.scale or 0)
    if kind.name == "struct":
        return pa.struct([(field.name, arrow_type(field.type)) for field in kind.parts])
    if kind.name == "array":
        return pa.list_(pa.field("element", arrow_type(kind.parts[0].type)))
    if kind.name == "map":
        return pa.map_(*(arrow_type(part.type) for part in kind.parts))
    return _ARROW[kind.name]


def kind_of(found: pa.DataType) -> ColumnType | None:
    """The scalar type of Spark's that Arrow has so; None for all other types."""
    if pa.types.is_decimal128(found):
        return ColumnType("decimal", f"decimal({found.precision},{found.scale})", found.precision, found.scale)
    name = _NAMES.get(found)
    return None if name is None else ColumnType(name, name)
