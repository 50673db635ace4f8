"""How Arrow has the types of Spark's columns on their way to Python, in every release of PySpark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from deduper.arrow_columns import arrow_type
from deduper.columns import DdlError, parse_columns


class NoArrowTypeError(TypeError):
    """A type that Spark does not hand to Python as a column of Arrow; the text is its name."""


def arrow_of(kind: T.DataType) -> pa.DataType:
    """The type of a column, nested ones too; times are UTC, and every value may be null.

    An interval is its microseconds: Parquet has no type for it, and Spark reads them back as an interval.

    Raises:
        NoArrowTypeError: Spark has no way to hand it over.
    """
    if isinstance(kind, T.StructType):
        return pa.struct([(field.name, arrow_of(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_of(kind.elementType)))
    if isinstance(kind, T.MapType):
        return pa.map_(arrow_of(kind.keyType), arrow_of(kind.valueType))
    if isinstance(kind, T.UserDefinedType):
        return arrow_of(kind.sqlType())
    if isinstance(kind, T.DayTimeIntervalType):
        return pa.int64()
    if isinstance(kind, T.NullType):
        return pa.null()
    if isinstance(kind, T.StringType):
        return pa.string()  # of any collation
    try:
        (column,) = parse_columns(f"x {kind.simpleString()}")
    except DdlError:
        raise NoArrowTypeError(kind.simpleString()) from None
    return arrow_type(column.type)
