"""Texts of aggregates, and the types that they take."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deduper.errors import UsageError
from deduper.ranges.aggregate.aggregates import Aggregate, Kind, answer_type, parse_aggregate, require_types


def test_texts_are_read() -> None:
    """With blanks, without a column, with a number, with a column of any name."""
    assert parse_aggregate("count") == Aggregate(Kind.COUNT, None)
    assert parse_aggregate(" sum( points )") == Aggregate(Kind.SUM, "points")
    assert parse_aggregate("top_k(`odd, name`, 3)") == Aggregate(Kind.TOP_K, "odd, name", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("median(points)", "`median.points.` is not an aggregate; write one of count, sum"),
        ("sum", "`sum` has no column; write `sum.points.`"),
        ("sum(points, 2)", "`top_k` alone has a number, 1 to 1000"),
        ("top_k(points)", "`top_k` alone has a number, 1 to 1000"),
        ("top_k(points, 0)", "`top_k` alone has a number, 1 to 1000"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    """With what to write."""
    with pytest.raises(UsageError, match=message):
        parse_aggregate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sum(name)", "n: sum takes numbers, and `name` is string"),
        ("list(tags)", "n: list takes values with an order, and `tags` is list"),
        ("max(age)", "n: ranges have no column `age`; columns are name, tags, price"),
    ],
)
def test_columns_that_do_not_fit_are_refused(text: str, message: str) -> None:
    """With the aggregate, the column and its type."""
    types = {"name": pa.string(), "tags": pa.list_(pa.string()), "price": pa.decimal128(30, 2)}
    with pytest.raises(UsageError, match=message):
        require_types({"n": parse_aggregate(text)}, types, "ranges")
    require_types({"n": parse_aggregate("count(tags)"), "m": parse_aggregate("sum(price)")}, types, "ranges")


def test_types_of_answers() -> None:
    """A sum of decimals has ten digits more, as in Spark, up to 38."""
    assert answer_type(parse_aggregate("sum(p)"), pa.decimal128(30, 2)) == pa.decimal128(38, 2)
    assert answer_type(parse_aggregate("sum(p)"), pa.int16()) == pa.int64()
    assert answer_type(parse_aggregate("mean(p)"), pa.int16()) == pa.float64()
    assert answer_type(parse_aggregate("set(p)"), pa.string()) == pa.list_(pa.string())
