"""Rows as lines of JSON are read as the same rows."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.text.block import lines, parse
from deduper.text.format import TextFormat
from deduper.text.written import csv_blocks, csv_header, json_blocks, json_lines, text_of_day

_DDL = (
    "s string, i bigint, t tinyint, d double, f float, b boolean, day date, at timestamp, local timestamp_ntz, "
    "raw binary, n decimal(12,3)"
)
_COLUMNS = tuple(map(DeclaredColumn.of, parse_columns(_DDL)))
_TIMES = st.datetimes()
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": st.text(st.sampled_from('ab"\\/\x00\n\x1f\x7f\u2028é😀'), max_size=6),
    "i": st.integers(-(2**63), 2**63 - 1),
    "t": st.integers(-128, 127),
    "d": st.floats(allow_nan=False),
    "f": st.floats(width=32, allow_nan=False),
    "b": st.booleans(),
    "day": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "at": _TIMES.map(lambda at: at.replace(tzinfo=UTC)),
    "local": _TIMES,
    "raw": st.binary(max_size=9),
    "n": st.decimals(-(10**9) + 1, 10**9 - 1, places=3),
}


@pytest.mark.slow
@given(st.lists(st.fixed_dictionaries({name: st.none() | value for name, value in _VALUES.items()}), max_size=8))
def test_what_is_written_is_read_as_the_same(rows: list[dict[str, Any]]) -> None:
    """Every type a text can declare, with nulls, quotes, control signs, infinities, and times of any year."""
    table = pa.Table.from_pylist(rows, pa.schema([(column.name, column.arrow) for column in _COLUMNS]))
    written = json_lines(table)
    data = "".join(f"{line}\n" for line in written.to_pylist()).encode()
    starts, ends, rest = lines(data)
    assert (len(starts), rest) == (len(rows), len(data))
    read = parse(data, starts, ends, TextFormat(_COLUMNS, "UTC"), range(len(_COLUMNS)))
    assert not read.malformed.any()
    found = pa.table({column.name: read.columns[number] for number, column in enumerate(_COLUMNS)})
    assert found.to_pylist() == rows


def test_a_line_is_json_of_any_table() -> None:
    """Also of nested columns, of NaN, of names with quotes, and of no columns."""
    rows = pa.table(
        {
            'a "b"': [1, None],
            "list": [[1, 2], None],
            "row": [{"at": date(2026, 1, 1)}, None],
            "x": [float("nan"), 2.5],
            "times": [[datetime(2026, 1, 1, tzinfo=UTC), None], []],
            "rows": [[[1.5, float("inf")], None], [[]]],
            "texts": [['a"b', "c"], ["\x00"]],
        }
    )
    assert [json.loads(line) for line in json_lines(rows).to_pylist()] == [
        {'a "b"': 1, "list": [1, 2], "row": {"at": "2026-01-01"}, "x": "NaN"}
        | {"times": ["2026-01-01T00:00:00.000000Z", None], "rows": [[1.5, "Infinity"], None], "texts": ['a"b', "c"]},
        {"x": 2.5, "times": [], "rows": [[]], "texts": ["\x00"]},
    ]
    assert b"".join(block.tobytes() for block in json_blocks(rows)).decode().split("\n") == [
        *json_lines(rows).to_pylist(),
        "",
    ]
    assert json_lines(rows.slice(1)).to_pylist() == json_lines(rows).to_pylist()[1:]
    assert json_lines(pa.table({"n": pa.array([], pa.int64())})).to_pylist() == []


def json_of(values: Any, kind: pa.DataType, zone: str = "UTC") -> list[Any]:
    """What the lines of a column say."""
    lines = json_lines(pa.table({"x": pa.array(values, kind)}), zone).to_pylist()
    return [json.loads(line, parse_float=str).get("x") for line in lines]


def csv_of(rows: pa.Table, zone: str = "UTC") -> str:
    """The text of a file."""
    return (csv_header(rows.column_names) + b"".join(block.tobytes() for block in csv_blocks(rows, zone))).decode()


def test_a_map_is_an_object() -> None:
    """Its keys are texts, whatever they are; a null is there; an entry of another map is not."""
    assert json_of([[('a "b"', 1), ("b", None)], None, [], [("a", 3)]], pa.map_(pa.string(), pa.int8())) == [
        {'a "b"': 1, "b": None},
        None,
        {},
        {"a": 3},
    ]
    assert json_of([[(-7, [1]), (8, [])]], pa.map_(pa.int32(), pa.list_(pa.int32()))) == [{"-7": [1], "8": []}]
    assert json_of([[(datetime(2026, 1, 1, tzinfo=UTC), True)]], pa.map_(pa.timestamp("us", "UTC"), pa.bool_())) == [
        {"2026-01-01T00:00:00.000000Z": True}
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_texts_of_any_kind_are_escaped(kind: pa.DataType) -> None:
    """Every sign that JSON has no other way for, and no other."""
    values = ["".join(map(chr, range(0x20))), '"\\"', "\x7f\u2028é😀", "", None]
    assert json_of(values, kind) == values
    line = json_lines(pa.table({"x": pa.array(["\x7f\u2028é/"], kind)})).to_pylist()
    assert line == ['{"x":"\x7f\u2028é/"}']


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    """So every line is JSON, of UTF-8."""
    texts = pa.array([b"a\xff", b"\xed\xa0\x80", b"ok", None], pa.binary()).view(pa.string())
    assert json_of(texts, pa.string()) == ["a\ufffd", "\ufffd\ufffd\ufffd", "ok", None]


@given(st.lists(st.none() | st.binary(max_size=12)))
def test_bytes_are_base64(values: list[bytes | None]) -> None:
    """Of any length, wherever they lie in their column."""
    expected = [None if value is None else base64.b64encode(value).decode() for value in values]
    for kind in (pa.binary(), pa.large_binary()):
        assert json_of(values, kind) == expected
        column = pa.table({"x": pa.array([b"before", *values], kind)}).slice(1)
        assert [json.loads(line).get("x") for line in json_lines(column).to_pylist()] == expected


_UTC = ["1970-01-01T00:00:00.000000Z", "1893-03-31T23:06:32.000000Z", "1992-07-22T23:20:00.000000Z"]
_BERLIN = ["1970-01-01T01:00:00.000000+01:00", "1893-04-01T00:06:32.000000+01:00", "1992-07-23T01:20:00.000000+02:00"]
_WEST = ["1969-12-31T20:30:00.000000-03:30", "1893-03-31T19:36:32.000000-03:30", "1992-07-22T19:50:00.000000-03:30"]


@pytest.mark.parametrize(
    ("zone", "texts"), [("UTC", _UTC), ("Europe/Berlin", _BERLIN), ("-03:30", _WEST), ("SystemV/PST8", _UTC)]
)
def test_times_have_the_offset_of_the_zone(zone: str, texts: list[str]) -> None:
    """At their instant, to the second where Berlin had seconds; UTC for a zone that only Java has."""
    at = [0, -2_422_054_408_000_000, 711_847_200_000_000]
    assert json_of(at, pa.timestamp("us", "UTC"), zone) == texts
    assert json_of([at[1] - 1], pa.timestamp("us", "UTC"), "Europe/Berlin") == ["1893-03-31T23:59:59.999999+00:53:28"]
    assert json_of([0, None], pa.timestamp("us"), zone) == ["1970-01-01T00:00:00.000000", None]


def test_years_beyond_four_digits_have_a_sign() -> None:
    """Up to the last day and microsecond that their types hold."""
    days = [-(2**31), -719_529, -719_528, 2_932_896, 2_932_897, 2**31 - 1]
    texts = ["-5877641-06-23", "-0001-12-31", "0000-01-01", "9999-12-31", "+10000-01-01", "+5881580-07-11"]
    assert json_of(days, pa.date32()) == [text_of_day(day) for day in days] == texts
    assert json_of([-(2**63), 2**63 - 1], pa.timestamp("us", "UTC"), "+01:00") == [
        "-290308-12-21T20:59:05.224192+01:00",
        "+294247-01-10T05:00:54.775807+01:00",
    ]
    assert json_of([10**12, 0], pa.timestamp("s")) == ["+33658-09-27T01:46:40", "1970-01-01T00:00:00"]


def test_numbers_keep_their_value_and_kind() -> None:
    """A whole double has a point; the shortest digits of its own width; a decimal all its digits."""
    assert json_of([1.0, -0.0, 1e7, 0.1, 2.5], pa.float64()) == ["1.0", "-0.0", "10000000.0", "0.1", "2.5"]
    assert json_of([0.1, 16_777_216], pa.float32()) == ["0.1", "16777216.0"]
    assert json_of([Decimal("1.50"), Decimal("-0.05")], pa.decimal128(20, 2)) == ["1.50", "-0.05"]


def test_fields_of_csv_are_quoted_only_where_they_must_be() -> None:
    """Null is nothing and an empty text is not; quotes are doubled; nested values are JSON."""
    rows = pa.table(
        {
            "plain": ["a b", None, ""],
            'odd, "name"': ["a,b", 'say "hi"', "two\nlines\r"],
            "real": [float("nan"), -float("inf"), 2.5],
            "row": [{"x": 1, "y": None}, None, {"x": None, "y": "a,b"}],
            "at": pa.array([0, None, None], pa.timestamp("us", "UTC")),
            "day": [None, None, date(2026, 1, 2)],
        }
    )
    assert csv_of(rows, "+02:00") == (
        'plain,"odd, ""name""",real,row,at,day\n'
        'a b,"a,b",NaN,"{""x"":1}",1970-01-01T02:00:00.000000+02:00,\n'
        ',"say ""hi""",-Infinity,,,\n'
        '"","two\nlines\r",2.5,"{""y"":""a,b""}",,2026-01-02\n'
    )


def test_large_rows_are_written_a_few_at_a_time() -> None:
    """The lines are in memory for some megabytes of rows, whatever their number."""
    rows = pa.table({"x": ["a" * (1 << 20)] * 40})
    blocks = [len(block) for block in json_blocks(rows)]
    assert sum(blocks) == 40 * ((1 << 20) + len('{"x":""}\n'))
    assert max(blocks) < 17 << 20
