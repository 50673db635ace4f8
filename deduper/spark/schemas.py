"""Spark's types for columns, as objects: no text that a person has written is parsed by Spark."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import types as T

from deduper.columns import Column, ColumnType, parse_columns, quoted

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


def spark_schema(columns: Iterable[Column], *more: T.StructField) -> T.StructType:
    """The columns, and `more` behind them. Nested types need a running Spark."""
    return T.StructType([*(T.StructField(column.name, spark_type(column.type)) for column in columns), *more])


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
