"""Rows as lines of JSON are read as the same rows."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.text.block import lines, parse
from deduper.text.format import TextFormat
from deduper.text.json_written import json_lines

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
        {'a "b"': None, "list": None, "row": None, "x": 2.5, "times": [], "rows": [[]], "texts": ["\x00"]},
    ]
    assert json_lines(rows.slice(1)).to_pylist() == json_lines(rows).to_pylist()[1:]
    assert json_lines(pa.table({"n": pa.array([Decimal("1E+2")])})).to_pylist() == ['{"n":100}']
    assert json_lines(pa.table({"n": pa.array([], pa.int64())})).to_pylist() == []
