"""Spark DDL without Spark: the columns, or what is wrong and where."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from deduper.arrow_columns import arrow_type
from deduper.columns import DdlError, backticked, ddl_of, parse_columns, quoted
from deduper.spark.types import arrow_of


def test_columns_in_their_order_with_sparks_own_type_names() -> None:
    """Every spelling of a type becomes the one Spark prints."""
    columns = parse_columns(
        "user string, id LONG, price decimal(10, 2) NOT NULL, tags array<string>, `odd ``name` INT COMMENT 'it''s', "
        "at: timestamp, n numeric, where struct<lat: double, `the lon`: double>, m map<string,array<int>>"
    )
    assert [(column.name, column.type.text) for column in columns] == [
        ("user", "string"),
        ("id", "bigint"),
        ("price", "decimal(10,2)"),
        ("tags", "array<string>"),
        ("odd `name", "int"),
        ("at", "timestamp"),
        ("n", "decimal(10,0)"),
        ("where", "struct<lat:double,`the lon`:double>"),
        ("m", "map<string,array<int>>"),
    ]
    assert [column.type.is_scalar for column in columns] == [True, True, True, False, True, True, True, False, False]
    assert (columns[2].type.precision, columns[2].type.scale) == (10, 2)


def test_nested_types_have_parts() -> None:
    """Which are types themselves; Arrow has them as it has Spark's."""
    (column,) = parse_columns("x struct<`a b`: decimal(9,2) NOT NULL COMMENT 'x', m: map<string, array<timestamp>>>")
    amount, pairs = column.type.parts
    assert (amount.name, amount.type.text, pairs.name) == ("a b", "decimal(9,2)", "m")
    assert [part.type.text for part in pairs.type.parts] == ["string", "array<timestamp>"]
    spark = T.StructType(
        [
            T.StructField("a b", T.DecimalType(9, 2)),
            T.StructField("m", T.MapType(T.StringType(), T.ArrayType(T.TimestampType()))),
        ]
    )
    assert arrow_type(column.type).equals(arrow_of(spark))
    assert str(arrow_type(column.type)) == str(arrow_of(spark))


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("", 0, "expected a column name, found the end; write columns as `name type, name type`"),
        ("id", 2, "expected a type, found the end; write columns as `name type, name type`"),
        ("id lng", 3, "`lng` is not a type; did you mean `long`?"),
        (
            "id quux",
            3,
            "`quux` is not a type; types are string, int, bigint, smallint, tinyint, float, double, decimal, boolean, "
            "date, timestamp, timestamp_ntz, binary",
        ),
        ("id int,", 7, "expected a column name, found the end; write columns as `name type, name type`"),
        ("id int name string", 7, "expected `,`, found `name`; write columns as `name type, name type`"),
        ("id int, ID string", 8, "column `ID` appears twice; remove one of the two"),
        ("p decimal(40,2)", 2, "decimal(40,2) does not exist; precision is 1 to 38 and scale at most the precision"),
        ("p decimal(2,4)", 2, "decimal(2,4) does not exist; precision is 1 to 38 and scale at most the precision"),
        ("p decimal(x)", 10, "expected a number, found `x`; write it as `decimal(10,2)`"),
        ("a array<int", 11, "expected `>`, found the end; write columns as `name type, name type`"),
        ("m map<int>", 9, "expected `,`, found `>`; write columns as `name type, name type`"),
        ("id int not", 10, "expected `null`, found the end; write columns as `name type, name type`"),
        ("id int comment x", 15, "COMMENT needs a text in quotes; write it as `COMMENT 'text'`"),
        ("'id' int", 0, "expected a column name, found `'id'`; write columns as `name type, name type`"),
        ("id; int", 2, "expected a type, found `;`; write columns as `name type, name type`"),
    ],
)
def test_a_mistake_has_its_offset(text: str, offset: int, message: str) -> None:
    """So that the caret can stand under it."""
    with pytest.raises(DdlError) as caught:
        parse_columns(text)
    assert (caught.value.offset, str(caught.value)) == (offset, message)


@pytest.mark.parametrize("name", ["größe", "ключ", "1st", "a b", "a.b", "a`b", "ſ", "x²"])
def test_names_that_spark_takes_in_backquotes_alone(name: str) -> None:
    """Every other name than an ASCII identifier has them, and reads back as it was."""
    assert quoted(name) == backticked(name)
    (column,) = parse_columns(f"{backticked(name)} struct<{backticked(name)}: int>")
    assert column.type.text == f"struct<{backticked(name)}:int>"
    assert parse_columns(ddl_of([column])) == (column,)


def test_plain_names_stay_bare() -> None:
    """Messages and stored descriptions show them as they are."""
    assert [quoted(name) for name in ("a", "_a1", "Ab")] == ["a", "_a1", "Ab"]
