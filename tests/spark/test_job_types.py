"""Rows pass through Python on their way to a port: each type a source may have leaves as Spark would have written it.

Spark's own writer is the judge: what a port holds is read by Spark, written by it once more, and the files compared.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from deduper.columns import ddl_of
from tests.spark.harness import Job

pytestmark = pytest.mark.spark

_AT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
# Names that are those of our own columns, or hold what means something to Spark.
_COLUMNS: list[tuple[str, str, pa.DataType]] = [
    ("k", "string", pa.string()),
    ("t", "long", pa.int64()),
    ("_hi", "tinyint", pa.int8()),
    ("_lo", "smallint", pa.int16()),
    ("_order", "int", pa.int32()),
    ("_admission", "bigint", pa.int64()),
    ("_expiry", "float", pa.float32()),
    ("_raw", "double", pa.float64()),
    ("_rec", "decimal(9,2)", pa.decimal128(9, 2)),
    ("_0", "decimal(18,4)", pa.decimal128(18, 4)),
    ("_1", "decimal(38,10)", pa.decimal128(38, 10)),
    ("a.b", "decimal(38,38)", pa.decimal128(38, 38)),
    ("sp ace", "boolean", pa.bool_()),
    ("ti`ck", "date", pa.date32()),
    ("Ünï", "timestamp", _AT),
    ("order", "timestamp_ntz", _LOCAL),
    ("receipt", "binary", pa.binary()),
    ("row", "string", pa.string()),
    (
        "deep",
        "struct<x: int, `y.z`: struct<day: date, cost: decimal(30,5), at: timestamp>>",
        pa.struct(
            [("x", pa.int32()), ("y.z", pa.struct([("day", pa.date32()), ("cost", pa.decimal128(30, 5)), ("at", _AT)]))]
        ),
    ),
    (
        "items",
        "array<struct<at: timestamp_ntz, tags: array<string>>>",
        pa.list_(pa.struct([("at", _LOCAL), ("tags", pa.list_(pa.string()))])),
    ),
    ("matrix", "array<array<double>>", pa.list_(pa.list_(pa.float64()))),
    ("by_name", "map<string, int>", pa.map_(pa.string(), pa.int32())),
    (
        "by_day",
        "map<date, struct<n: bigint, costs: array<decimal(20,2)>>>",
        pa.map_(pa.date32(), pa.struct([("n", pa.int64()), ("costs", pa.list_(pa.decimal128(20, 2)))])),
    ),
    ("by_number", "map<int, map<string, binary>>", pa.map_(pa.int32(), pa.map_(pa.string(), pa.binary()))),
]
_NAMES = [name for name, _, _ in _COLUMNS]
_DDL = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind, _ in _COLUMNS)


def row(*values: Any) -> dict[str, Any]:
    """A row by the columns' names."""
    return dict(zip(_NAMES, values, strict=True))


def extremes(key: str, time: datetime, sign: int) -> dict[str, Any]:
    """The greatest or the least of every type."""
    day, local = time.date(), time.replace(tzinfo=None)
    minus = "-" if sign < 0 else ""  # a product would be rounded
    return row(
        key,
        1,
        127 if sign > 0 else -128,
        sign * 32767,
        sign * (2**31 - 1),
        sign * (2**63 - 1),
        sign * 3.4028234663852886e38,
        sign * float("inf"),
        Decimal(f"{minus}9999999.99"),
        Decimal(f"{minus}99999999999999.9999"),
        Decimal(f"{minus}9999999999999999999999999999.9999999999"),
        Decimal(f"{minus}0.{'9' * 38}"),
        sign > 0,
        day,
        time,
        local,
        bytes(range(256)),
        "\x00 'ü' 😀\n",
        {"x": sign, "y.z": {"day": day, "cost": Decimal(f"{minus}9999999999999999999999999.99999"), "at": time}},
        [{"at": local, "tags": ["a", None, ""]}, None, {"at": None, "tags": []}],
        [[1.5, None], [], None],
        [("", 0), ("a", None), ("ü", sign)],
        [(day, {"n": sign, "costs": [Decimal("1.10"), None]}), (date(2000, 2, 29), None)],
        [(sign, [("x", b"\xff"), ("y", None)]), (0, [])],
    )


_ROWS = [
    extremes("far", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), 1),
    extremes("old", datetime(1, 1, 1, tzinfo=UTC), -1),
    dict.fromkeys(_NAMES) | {"k": "nulls", "t": 1},
    dict.fromkeys(_NAMES)
    | {"k": "empty", "t": 1, "deep": {"x": None, "y.z": None}}
    | {name: [] for name in ("items", "matrix", "by_name", "by_day", "by_number")},
]


def leaves(file: Path) -> list[tuple[Any, ...]]:
    """Path, physical type and meaning of every leaf of a Parquet file."""
    schema = pq.ParquetFile(file).schema
    columns = [schema.column(number) for number in range(len(schema))]
    return [
        (
            column.path,
            column.physical_type,
            column.length,
            str(column.logical_type),
            column.max_repetition_level,
        )
        for column in columns
    ]


def read_by_arrow(directory: Path) -> pa.Table:
    """The rows of a directory of Parquet files, by key."""
    files = sorted(directory.glob("*.parquet"))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]).sort_by("k")


def test_every_type_leaves_as_spark_would_write_it(
    session: SparkSession, new_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Same types, same values, for Spark and for Arrow; the extremes of each, nulls in and around them; any name."""
    job = new_job(
        source={"file_format": "parquet", "schema": _DDL},
        expiry={"by": "ordered", "field": "t", "period": 500, "span": 100},
    )
    given = pa.Table.from_pylist(_ROWS, pa.schema([(name, kind) for name, _, kind in _COLUMNS]))
    job.add_table(given)
    job.run()
    port, again = job.directory / "out/unique", tmp_path / "again"
    read = session.read.parquet(str(port))
    expected = StructType.fromDDL(f"{_DDL}, {ddl_of([job.config.dedup_column.of('unique')])}")
    assert read.schema.simpleString() == expected.simpleString()
    read.coalesce(1).write.parquet(str(again))
    (by_spark,) = again.glob("*.parquet")
    for file in port.glob("*.parquet"):
        assert leaves(file) == leaves(by_spark)
    ours, theirs = read_by_arrow(port), read_by_arrow(again)
    assert (ours.schema.names, ours.schema.types) == (theirs.schema.names, theirs.schema.types)
    # What Spark has read it takes for nullable.
    assert [field.name for field in ours.schema if not field.nullable] == ["_dedup"]
    assert ours.to_pylist() == theirs.to_pylist()
    assert ours.drop_columns("_dedup").to_pylist() == given.sort_by("k").to_pylist()


@pytest.mark.parametrize(
    ("column", "expiry", "kind", "value"),
    [
        ("long", {"by": "ordered", "period": 50, "span": 10}, "bigint", 70),
        ("double", {"by": "ordered", "period": 50, "span": 10}, "double", 70.0),
        ("decimal(12,3)", {"by": "ordered", "period": 50, "span": 10}, "decimal(18,3)", Decimal("70.000")),
        (
            "timestamp",
            {"by": "event_time", "period": "1h", "span": "10m"},
            "timestamp",
            datetime(1970, 1, 1, 0, 1, 10, tzinfo=UTC),
        ),
        ("string", {"by": "category", "live_categories": 3}, "bigint", None),
        ("long", {"by": "never"}, "bigint", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_copys_expiry_key_has_the_columns_type(
    session: SparkSession, new_job: Callable[..., Job], column: str, expiry: dict[str, Any], kind: str, value: Any
) -> None:
    """In `_dedup.first_seen`, for readers of the port; null where tuples have no expiry key."""
    field = {} if expiry["by"] == "never" else {"field": "e"}
    job = new_job(
        source={"schema": f"k string, e {column}"},
        expiry=expiry | field,
        spark={"spark.sql.parquet.compression.codec": "zstd"},
    )
    job.add_records([{"k": "a", "e": "1970-01-01T00:01:10Z" if column == "timestamp" else 70}] * 2)
    job.run()
    port = job.directory / "out/duplicate"
    first = session.read.parquet(str(port)).schema["_dedup"].dataType["first_seen"].dataType
    assert first.simpleString() == f"struct<window:bigint,source:string,position:bigint,expiry:{kind}>"
    (found,) = job.rows("duplicate")
    assert found["_dedup"]["first_seen"]["expiry"] == value
    (file,) = port.glob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_the_text_of_a_record_is_told_for_errors_alone(new_job: Callable[..., Job]) -> None:
    """Also where the guard might refuse any record, as in the first window, and where it lets one pass."""
    job = new_job(
        source={"schema": "k string, t long", "max_files_per_batch": 1},
        expiry={"by": "ordered", "field": "t", "period": 50, "span": 10, "max_jump": 100},
    )
    job.add_records([{"k": "a", "t": 100}, {"k": "a", "t": 100}, {"k": "b", "t": 20}, {"k": "far", "t": 900}])
    job.add_records([{"k": "c", "t": 199}, {"k": "d", "t": 290}, {"k": "far", "t": 901}])
    job.run()
    reported = {
        port: sorted((row["k"], row["_dedup"]["raw"]) for row in job.rows(port))
        for port in ("unique", "duplicate", "expired", "error")
    }
    assert reported == {
        "unique": [("a", None), ("c", None), ("d", None)],
        "duplicate": [("a", None)],
        "expired": [("b", None)],
        "error": [("far", '{"k": "far", "t": 900}'), ("far", '{"k": "far", "t": 901}')],
    }
