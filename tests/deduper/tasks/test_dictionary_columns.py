"""Dictionaries go to columns whose values repeat, by the paths that a file has them under."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.tasks.row_files import dictionary_columns

ROWS = 10_000


def with_dictionary(table: pa.Table, file: Path) -> set[str]:
    """The columns of a file written with the chosen ones that have a dictionary there."""
    parquet.write_table(table, file, use_dictionary=dictionary_columns(table), store_schema=False)
    group = parquet.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


def test_what_repeats_has_one_and_what_does_not_has_none(tmp_path: Path) -> None:
    """Whatever they are in: columns, structs, texts that come as codes."""
    unique = pa.array(np.arange(ROWS))
    few = pa.array([f"city {number % 100}" for number in range(ROWS)])
    table = pa.table(
        {
            "id": unique,
            "city": few,
            "coded": few.dictionary_encode(),
            "none": pa.nulls(ROWS, pa.string()),
            "struct": pa.StructArray.from_arrays([unique, few], ["id", "city"]),
        }
    )
    assert with_dictionary(table, tmp_path / "f") == {"city", "coded", "none", "struct.city"}
    assert parquet.read_table(tmp_path / "f").column("coded").type == pa.string()


def test_elements_have_one(tmp_path: Path) -> None:
    """Of lists and maps, in structs and in each other, by the names that the file gives them."""
    deep = pa.struct([("names", pa.list_(pa.string())), ("counts", pa.map_(pa.string(), pa.list_(pa.int64())))])
    value = {"names": ["a", "b"], "counts": [("a", [1, 2]), ("b", [])]}
    table = pa.table(
        {
            "deep": pa.array([value] * 100, deep),
            "rows": pa.array(
                [[{"x": 1, "y": "z"}]] * 100, pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))
            ),
        }
    )
    assert with_dictionary(table, tmp_path / "f") == {
        "deep.names.list.element",
        "deep.counts.key_value.key",
        "deep.counts.key_value.value.list.element",
        "rows.list.element.x",
        "rows.list.element.y",
    }


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        float("nan"),
        Decimal("1.50"),
        date(2026, 1, 1),
        b"\xff",
        True,
        np.datetime64("2026-01-01", "us"),
        np.timedelta64(1, "us"),
        None,
    ],
    ids=str,
)
def test_every_type_is_looked_at(value: object) -> None:
    """One value over and over repeats."""
    assert dictionary_columns(pa.table({"c": pa.array([value] * 8)})) == ["c"]


def test_only_the_first_rows_are_looked_at() -> None:
    """Over all chunks that they are in."""
    unique, same = np.arange(ROWS), np.zeros(ROWS, np.int64)
    late = pa.chunked_array([unique[:4000], same])
    early = pa.chunked_array([same[:4000], unique])
    assert dictionary_columns(pa.table({"late": late, "early": early})) == ["early"]


def test_more_rows_are_looked_at_where_some_repeat() -> None:
    """Values of 4,096 look new at first: two thirds of so many rows are. Where half of all are new they get none."""
    some = np.random.default_rng(1).integers(0, 4096, 20_000)
    half = np.arange(20_000) % 12_000
    half[:1000] = 0
    assert dictionary_columns(pa.table({"some": some, "half": half})) == ["some"]
