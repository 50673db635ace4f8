"""Values in Avro: what Spark's own module gives, which no job uses, for random data and for damaged ones."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from deduper.arrow_columns import DeclaredColumn
from deduper.config.kafka.sections import KafkaSource
from deduper.sources.declared_columns import arrow_types
from deduper.sources.kafka.reading import record_format
from tests import tiers
from tests.deduper.avro.test_decode import written

pytestmark = [pytest.mark.services, pytest.mark.spark, pytest.mark.night]

_SEED = tiers.seed()
_ROWS = 300
_MARK = b"the end!"
_POINT = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
}
_FIELDS: list[tuple[str, Any]] = [
    ("k", ["null", "string"]),
    ("i", "int"),
    ("l", ["long", "null"]),
    ("f", "float"),
    ("d", "double"),
    ("b", "boolean"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}),
    ("e2", ["null", "E"]),
    ("fx", {"type": "fixed", "name": "F", "size": 4}),
    ("by", "bytes"),
    ("n", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("n38", {"type": "fixed", "name": "N", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 4}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("us", {"type": "long", "logicalType": "timestamp-micros"}),
    ("lms", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("uuid", {"type": "string", "logicalType": "uuid"}),
    ("wide", ["int", "long"]),
    ("real", ["float", "double"]),
    ("many", ["null", "int", "string", _POINT]),
    ("list", {"type": "array", "items": ["null", "P"]}),
    ("map", ["null", {"type": "map", "values": {"type": "array", "items": "long"}}]),
]
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": name, "type": kind} for name, kind in _FIELDS],
}


def some_datum(rnd: random.Random) -> bytes:
    """A datum of the schema."""

    def text() -> str:
        return "".join(rnd.choice("aä😀 \n") for _ in range(rnd.randrange(6)))

    def maybe(number: int, absent: int, value: Any) -> tuple[int, Any]:
        return (absent, None) if rnd.random() < 0.3 else (number, value)

    def point() -> dict[str, Any]:
        return {"x": rnd.randrange(-9, 9), "y": maybe(1, 0, text())}

    value = {
        "k": maybe(1, 0, text()),
        "i": rnd.choice([0, -1, 2**31 - 1, -(2**31), rnd.randrange(10**6)]),
        "l": maybe(0, 1, rnd.choice([2**63 - 1, -(2**63), rnd.randrange(10**12)])),
        "f": rnd.choice([0.0, -0.0, 1.5, float("inf")]),
        "d": rnd.choice([0.1, -0.0, float("-inf"), rnd.random()]),
        "b": rnd.random() < 0.5,
        "e": rnd.randrange(3),
        "e2": maybe(1, 0, rnd.randrange(3)),
        "fx": rnd.randbytes(4),
        "by": rnd.randbytes(rnd.randrange(5)),
        "n": rnd.choice([0, -1, 999_999_999, -999_999_999]).to_bytes(rnd.choice([4, 5, 8]), "big", signed=True),
        "n38": rnd.choice([0, -1, 10**38 - 1, 1 - 10**38]).to_bytes(16, "big", signed=True),
        "day": rnd.choice([0, -719_162, 2_932_896, rnd.randrange(-(10**5), 10**5)]),
        "ms": rnd.choice([0, -1, -62_135_596_800_000, 253_402_300_799_999]),
        "us": rnd.choice([0, -1, -62_135_596_800_000_000, 253_402_300_799_999_999]),
        "lms": rnd.choice([0, -1, 253_402_300_799_999]),
        "uuid": text(),
        "wide": (0, rnd.randrange(100)) if rnd.random() < 0.5 else (1, 2**40),
        "real": (0, 0.1) if rnd.random() < 0.5 else (1, 0.1),
        "many": rnd.choice([(0, None), (1, 5), (2, text()), (3, point())]),
        "list": [maybe(1, 0, point()) for _ in range(rnd.randrange(4))],
        "map": maybe(1, 0, [(f"k{number}", [number] * number) for number in range(rnd.randrange(4))]),
    }
    return written(SCHEMA, value, {"P": _POINT})


def some_values(rnd: random.Random) -> list[bytes | None]:
    """Data, whole, cut off, with bytes behind them, or with one byte changed."""
    values: list[bytes | None] = []
    for _ in range(_ROWS):
        datum = some_datum(rnd)
        how = rnd.randrange(6)
        if how == 0:
            datum = datum[: rnd.randrange(len(datum))]
        elif how == 1:
            datum += rnd.randbytes(rnd.randrange(1, 4))
        elif how == 2:
            place = rnd.randrange(len(datum))
            datum = datum[:place] + rnd.randbytes(1) + datum[place + 1 :]
        values.append(None if how == 3 and rnd.random() < 0.1 else datum)
    return values


def test_both_give_the_same(session: SparkSession) -> None:
    """Of each value, or ours refuses what the schema does not allow, and Spark reads it as something else."""
    source = KafkaSource.model_validate(
        {
            "format": "kafka",
            "bootstrap_servers": "b:1",
            "topics": ["t"],
            "value": {"format": "avro", "avro_schema": SCHEMA},
        }
    )
    values = [value for value in some_values(random.Random(_SEED)) if value is not None]
    columns = tuple(
        DeclaredColumn(column.name, column.type, arrow)
        for column, arrow in zip(source.parsed_columns, arrow_types(source.parsed_columns), strict=True)
    )
    avro: Any = record_format(source, columns, "UTC").value
    ends = np.cumsum([len(value) for value in values]).astype(np.int64)
    starts = ends - np.array([len(value) for value in values], np.int64)
    ours = avro.parse(np.frombuffer(b"".join(values), np.uint8), starts, ends, range(len(columns)))
    is_read = ~(ours.malformed | ours.invalid_utf8)
    record, is_whole = by_spark(session, values, is_read.tolist())
    found = rows_of({column.name: ours.columns[number] for number, column in enumerate(columns)})
    read = rows_of({column.name: record.field(number) for number, column in enumerate(columns)})
    stricter = 0
    for number, (our, their) in enumerate(zip(found, read, strict=True)):
        if ours.malformed[number]:
            stricter += is_whole[number]
            continue
        assert is_whole[number], (values[number], our)
        if is_read[number]:
            assert comparable(our) == comparable(their), (values[number], our, their)
    assert stricter < _ROWS // 20


def by_spark(session: SparkSession, values: list[bytes], is_read: list[bool]) -> tuple[pa.StructArray, list[bool]]:
    """What Spark's module gives for the values that we read, and whether a value is one whole datum to it.

    It says nothing of bytes behind a datum: a mark, which is read as a last field, shows them.
    """
    fixed = {"type": "fixed", "name": "Mark", "namespace": "tests", "size": len(_MARK)}
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "mark", "type": fixed}]}
    table = pa.table(
        {"value": pa.array([value + _MARK for value in values]), "is_read": is_read, "n": range(len(values))}
    )
    rows = session.createDataFrame(table).withColumn(
        "record", from_avro(F.col("value"), json.dumps(schema), {"mode": "PERMISSIVE"})
    )
    is_whole = F.col("record.mark").eqNullSafe(F.lit(_MARK))
    read = (
        rows.select("n", F.when(F.col("is_read"), F.col("record")).alias("record"), is_whole.alias("is_whole"))
        .sort("n")
        .toArrow()
    )
    return read.column("record").combine_chunks(), read.column("is_whole").to_pylist()


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows, with days and times as numbers: a changed byte makes some that Python has not."""
    numbers = {"day": pa.int32(), "ms": pa.int64(), "us": pa.int64(), "lms": pa.int64()}
    made = {name: column.cast(numbers[name]) if name in numbers else column for name, column in columns.items()}
    return pa.table(made).to_pylist()


def comparable(value: Any) -> Any:
    """With maps in an order: Java's has none."""
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return sorted((key, comparable(one)) for key, one in value)
        return [comparable(one) for one in value]
    return repr(value)
