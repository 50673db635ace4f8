"""Nested columns of JSON: values of structs, arrays and maps, and lines where one is of another type."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.text import block
from deduper.text.format import TextFormat
from deduper.text.wrong import Explainer

TEXT = TextFormat(
    tuple(
        map(
            DeclaredColumn.of,
            parse_columns(
                "k string, s struct<id:string,p:decimal(10,2),`x y`:struct<d:date,f:float>>, a array<bigint>, "
                "m map<string,array<timestamp>>, b array<binary>"
            ),
        )
    ),
    "Europe/Paris",
)
NAMES = [column.name for column in TEXT.columns]


def read(lines: list[str]) -> list[dict[str, Any] | None]:
    """The columns of each line that are not null; None of a line that is no record."""
    starts, ends, _ = block.lines(data := "".join(f"{line}\n" for line in lines).encode())
    parsed = block.parse(data, starts, ends, TEXT, range(len(NAMES)))
    for number, column in parsed.columns.items():
        column.validate(full=True)
        assert column.type == TEXT.columns[number].arrow
    rows = zip(*(as_numbers(parsed.columns[number]).to_pylist() for number in range(len(NAMES))), strict=True)
    given = [{name: value for name, value in zip(NAMES, row, strict=True) if value is not None} for row in rows]
    assert all(not record for record, is_wrong in zip(given, parsed.malformed, strict=True) if is_wrong)
    return [None if is_wrong else record for record, is_wrong in zip(given, parsed.malformed, strict=True)]


def as_numbers(column: pa.Array) -> pa.Array:
    """Times as µs."""
    if column.type == pa.map_(pa.string(), pa.list_(pa.field("element", pa.timestamp("us", "UTC")))):
        return column.cast(pa.map_(pa.string(), pa.list_(pa.field("element", pa.int64()))))
    return column


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"s":{"id":1.50,"p":1.005}}', {"s": {"id": "1.5", "p": Decimal("1.01"), "x y": None}}),
        ('{"s":{"id":{"z":[1 ,2]},"other":[{}]}}', {"s": {"id": '{"z":[1,2]}', "p": None, "x y": None}}),
        ('{"s":{"x y":{"f":1e39}}}', {"s": {"id": None, "p": None, "x y": {"d": None, "f": float("inf")}}}),
        ('{"s":{"p":1,"p":2}}', {"s": {"id": None, "p": Decimal("2.00"), "x y": None}}),
        ("{ 's' : { '\\u0069d' : 'a' } }", {"s": {"id": "a", "p": None, "x y": None}}),
        ('{"s":null,"a":null,"m":null}', {}),
        ('{"a":[ 1 , null,-0]}', {"a": [1, None, 0]}),
        ('{"a":[],"b":["AP8=",""]}', {"a": [], "b": [b"\x00\xff", b""]}),
        ('{"m":{"":[5],"z":null}}', {"m": [("", [5_000_000]), ("z", None)]}),
        ('{"m":{"a":[1],"b":[],"a":[2]}}', {"m": [("a", [2_000_000]), ("b", [])]}),
        ('{"m":{"a":["1970-01-01"]}}', {"m": [("a", [-3_600_000_000])]}),
        ('{"m":{"\\ud83d":[]}}', {"m": [("?", [])]}),
        *(
            (line, None)
            for line in ('{"a":[1.5]}', '{"a":["1"]}', '{"a":{}}', '{"a":1}', '{"a":[9223372036854775808]}')
        ),
        *((line, None) for line in ('{"m":[]}', '{"m":{"a":[true]}}', '{"s":"x"}', '{"s":[]}', '{"b":["AP8"]}')),
        *((line, None) for line in ('{"a":[1,]}', '{"a":[1}', '{"s":{"id"}}', '{"s":{"id":1,}}', '{"m":{1:[]}}')),
        ('{"s":{"p":"1e999999"}}', None),
        ('{"s":{"p":1,"p":"x"}}', None),
    ],
)
def test_values(line: str, record: dict[str, Any] | None) -> None:
    """As those of flat columns; other fields of a struct are dropped. One of another type makes the line malformed."""
    assert read([line, '{"k":"next"}', line]) == [record, {"k": "next"}, record]


@pytest.mark.parametrize("opening", ['{"a":', '{"s":{"id":', '{"s":{"other":', '{"m":{"x":'])
def test_depth_has_a_limit(opening: str) -> None:
    """Wherever objects and arrays stand within one another, the record counted; no depth ends the process."""
    around = opening.count("{")
    for depth in (1000, 1001, 100_000):
        inner = "[" * (depth - around) + "]" * (depth - around)
        (record,) = read([f"{opening}{inner}{'}' * around}"])
        is_typed = opening in ('{"a":', '{"m":{"x":')
        assert (record is None) == (is_typed or depth > 1000)


def test_explanations() -> None:
    """The column, its type, and what was there; a rule of JSON comes first."""
    explain = Explainer(TEXT).malformed
    assert explain('{"s":{"p":1},"a":[1]}') is None
    assert explain('{"a":[1.5],"m":7}') == ("a: array<bigint> expected, an object or array that is none; m too")
    assert explain('{"m":7}') == "m: map<string,array<timestamp>> expected, a whole number of 1 digit"
    assert explain('{"a":[x]}') == "a value is none of JSON"
