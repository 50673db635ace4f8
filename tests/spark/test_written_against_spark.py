"""Lines of JSON and CSV hold the values that Spark would write: every type, nested ones too, in several zones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bucket_store.places.local import local_place
from deduper.columns import Column, ddl_of, parse_columns
from deduper.sinks.published import csv_texts
from deduper.sources.declared_columns import arrow_types
from deduper.spark_promises import TIME_ZONE
from deduper.text.written import csv_blocks, csv_header, json_blocks
from tests import tiers

pytestmark = pytest.mark.spark

_SCALARS = (
    "s string, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f float, d double, n decimal(38,18), "
    "m decimal(9,2), day date, at timestamp, ntz timestamp_ntz, `ü \"x\", 'y'` string"
)
_NESTED = (
    "st struct<x:int,`odd name`:string,at:timestamp,deep:struct<d:double,raw:binary>>, "
    "list array<string>, numbers array<double>, lists array<array<date>>, rows array<struct<a:int,b:string>>, "
    "by_name map<string,timestamp>, by_number map<int,array<decimal(5,1)>>"
)
_LOCAL = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_OPTIONS = {"timestampFormat": f"{_LOCAL}XXXXX", "timestampNTZFormat": _LOCAL}
"""With which Spark writes microseconds, and offsets to the second."""
_SIGNS = [*"ab ,#'\"\\\n\r\t\x00\x1b\x7fé\u2028😀\ufeff"]
_YEARS_US = 366 * 86_400_000_000
_NOT_FINITE = [float(text) for text in ("nan", "inf", "-inf")]
_ROWS = 400
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "-03:30", "Asia/Kolkata"]


@pytest.mark.parametrize("zone", ZONES)
def test_json(session: SparkSession, tmp_path: Path, zone: str) -> None:
    """The same members, without nulls; texts and times to the letter; numbers of the same value."""
    columns = parse_columns(f"{_SCALARS}, raw binary, {_NESTED}")
    rows = _table(columns)
    with _zone(session, zone):
        _as_spark_has(session, columns, rows, tmp_path).write.options(**_OPTIONS).json(str(tmp_path / "json"))
    (file,) = (tmp_path / "json").glob("*.json")
    theirs = file.read_bytes().split(b"\n")
    ours = b"".join(block.tobytes() for block in json_blocks(rows, zone)).split(b"\n")
    assert len(ours) == len(theirs) == _ROWS + 1
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        mine, its = _read(one), _read(other)
        assert _float(mine.pop("f", None)) == _float(its.pop("f", None))
        assert _same(mine, its), (one.decode(), other.decode())


@pytest.mark.parametrize("zone", ZONES[:2])
def test_csv(session: SparkSession, tmp_path: Path, zone: str) -> None:
    """The same header and fields, a null and an empty text apart; nested values are the same JSON."""
    nested = [column.name for column in parse_columns(_NESTED)]
    columns = parse_columns(f"{_SCALARS}, {_NESTED}")
    rows = _table(columns)
    with _zone(session, zone):
        given = _as_spark_has(session, columns, rows, tmp_path)
        for name in nested:
            given = given.withColumn(name, F.to_json(name, _OPTIONS))
        writer = given.write.options(**_OPTIONS, header="true", escape='"')
        writer.options(ignoreLeadingWhiteSpace="false", ignoreTrailingWhiteSpace="false").csv(str(tmp_path / "csv"))
    (theirs,) = (tmp_path / "csv").glob("*.csv")
    ours = tmp_path / "ours.csv"
    ours.write_bytes(csv_header(rows.column_names) + b"".join(block.tobytes() for block in csv_blocks(rows, zone)))
    one, other = (csv_texts(local_place(path), rows.column_names) for path in (ours, theirs))
    for name in rows.column_names:
        read = _read if name in nested else _float if name == "f" else _Number if name in ("d", "n", "m") else str
        for mine, its in zip(one[name], other[name], strict=True):
            assert (mine is None) == (its is None), name
            assert mine is None or its is None or _same(read(mine), read(its)), (name, mine, its)


def _table(columns: tuple[Column, ...]) -> pa.Table:
    rng = random.Random(tiers.seed())
    kinds = zip(columns, arrow_types(columns), strict=True)
    return pa.table({column.name: pa.array([_value(kind, rng) for _ in range(_ROWS)], kind) for column, kind in kinds})


def _value(kind: pa.DataType, rng: random.Random) -> Any:
    """A value, null now and then; of times the number, since Python has not all of them."""
    if rng.random() < 0.15:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, rng) for field in kind}
    if pa.types.is_map(kind):
        keys = {key for _ in range(rng.randrange(4)) if (key := _value(kind.key_type, rng)) is not None}
        return [(key, _value(kind.item_type, rng)) for key in sorted(keys)]
    if pa.types.is_list(kind):
        return [_value(kind.value_type, rng) for _ in range(rng.randrange(4))]
    if pa.types.is_string(kind):
        return "".join(rng.choices(_SIGNS, k=rng.choice([0, 1, 1, 2, 3, 8])))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        beyond = 1 << kind.bit_width - 1
        return rng.choice([0, -1, beyond - 1, -beyond, rng.randrange(-beyond, beyond)])
    if pa.types.is_floating(kind):
        edges = [0.0, -0.0, 1.0, 0.001, 1e7, 9_999_999.0, 1e10, 1e22, 5e-324, 1.7e308, *_NOT_FINITE]
        return rng.choice([*edges, rng.random(), rng.gauss(0, 1e6), rng.gauss(0, 1) * 10.0 ** rng.randrange(-30, 30)])
    if pa.types.is_decimal(kind):
        digits = rng.choice([0, 1, 10, 123, rng.randrange(10 ** min(kind.precision, 30))])
        return Decimal(rng.choice([1, -1]) * (digits % 10**kind.precision)).scaleb(-kind.scale)
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randrange(6))
    if pa.types.is_date(kind):
        return rng.choice([0, -141_428, -719_529, 2_932_897, rng.randrange(-(10**6), 10**6)])
    # 1970, Berlin's first offset of whole minutes, the years 1 and 9999, a summer time, and years of five digits.
    edges = [0, -2_422_054_408_000_000, -62_135_596_800_000_000, 253_402_300_800_000_000, 711_846_000_000_000]
    edge = rng.choice([*edges, 1 << 62, 3 << 61, -(1 << 62)])
    return rng.choice([edge, edge - 1, edge + rng.randrange(10**13), rng.randrange(-900, 900) * _YEARS_US])


@contextmanager
def _zone(session: SparkSession, zone: str) -> Iterator[None]:
    before = str(session.conf.get(TIME_ZONE))
    session.conf.set(TIME_ZONE, zone)
    try:
        yield
    finally:
        session.conf.set(TIME_ZONE, before)


def _as_spark_has(session: SparkSession, columns: tuple[Column, ...], rows: pa.Table, folder: Path) -> DataFrame:
    parquet.write_table(rows, folder / "rows.parquet", store_schema=False)
    return session.read.schema(ddl_of(columns)).parquet(str(folder / "rows.parquet")).coalesce(1)


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _read(text: str | bytes) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number)


def _float(text: str | None) -> Any:
    """Before Java 19 a float has a digit too many now and then; NaN is its text."""
    return text if text is None or text == "NaN" else np.float32(text)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and [*one] == [*other] and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, _Number) and isinstance(other, _Number) and one != other:
        return Decimal(one) == Decimal(other) or float(one) == float(other)
    return type(one) is type(other) and bool(one == other)
