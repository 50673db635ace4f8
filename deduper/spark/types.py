"""Spark's types of columns: from a person's text as objects, as Spark's text, and as Arrow on their way to Python.

No text that a person has written is parsed by Spark, unless only Spark knows its type.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType, DdlError, parse_columns, quoted

_SCALARS: dict[str, T.DataType] = {
    "string": T.StringType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "smallint": T.ShortType(),
    "tinyint": T.ByteType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "boolean": T.BooleanType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "binary": T.BinaryType(),
}


def spark_type(kind: ColumnType) -> T.DataType:
    """The type of a column. Nested types need a running Spark."""
    if kind.name == "decimal" and kind.precision is not None and kind.scale is not None:
        return T.DecimalType(kind.precision, kind.scale)
    if kind.text in _SCALARS:
        return _SCALARS[kind.text]
    # Only Spark's parser knows nested types; the names of fields are quoted as it wants them.
    return T.DataType.fromDDL(kind.text)


def type_of_ddl(text: str) -> T.DataType:
    """The type that a DDL text names; one that no column can be declared with is Spark's to parse. Needs Spark."""
    try:
        (column,) = parse_columns(f"x {text}")
    except ValueError:
        return T.DataType.fromDDL(text)
    return spark_type(column.type)


def text_of(kind: T.DataType) -> str:
    """Spark's name for a type, with the names of fields quoted: `simpleString` leaves them as they are."""
    if isinstance(kind, T.StructType):
        return f"struct<{','.join(f'{quoted(field.name)}:{text_of(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{text_of(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{text_of(kind.keyType)},{text_of(kind.valueType)}>"
    return kind.simpleString()


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
