"""What a line of CSV holds, and which lines hold nothing. Spark gives the same answers: test_text_against_spark.py."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.text import csv_exact
from deduper.text.format import Malformed, TextFormat
from tests.deduper.text.csv_lines import csv_format

TWO = csv_format("a string, b string")


def record(line: str, text: TextFormat = TWO) -> list[Any] | None:
    """The values of a line; None: malformed."""
    with contextlib.suppress(Malformed):
        return csv_exact.record(line.encode(), text)
    return None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a,b", ["a", "b"]),
        ("a", ["a", None]),
        ("a,", ["a", None]),
        (",b", [None, "b"]),
        (",", [None, None]),
        ("a,b,", None),
        ("a,b,c", None),
        ('a,b,"c"', None),
        # Blanks and line ends.
        ("", None),
        ("   ", None),
        ("\r", None),
        ("  \r\r", None),
        ("\t", ["\t", None]),
        (" , ", [" ", " "]),
        ("a,b\r", ["a", "b"]),
        ("a,b\r\r", ["a", "b"]),
        ("a,b\r ", ["a", "b\r "]),
        ("a\rb,c\nd", ["a\rb", "c\nd"]),
        # Quotes.
        ('"a","b"', ["a", "b"]),
        ('"a,b",c', ["a,b", "c"]),
        ('"a\r\nb",c', ["a\r\nb", "c"]),
        ('"a""b",""', ['a"b', None]),
        ('"""a""","b"""', ['"a"', 'b"']),
        ('""""', ['"', None]),
        ('"a" ,"b"\t', ["a", "b"]),
        ('"a"\x00\x1f,b', ["a", "b"]),
        ('"" ,b', [None, "b"]),
        ('" a ",b', [" a ", "b"]),
        ('"a\\",b', ["a\\", "b"]),
        ("'a','b'", ["'a'", "'b'"]),
        # Quotes that are never closed.
        ('"', None),
        ('"a', None),
        ('"a,b', None),
        ('a,"b', None),
        ('"a""', None),
        ('"""', None),
        # Something behind the last quote.
        ('"a"x,b', ['"a"x', "b"]),
        ('"a" x,b', ['"a" x', "b"]),
        ('""x,b', ['""x', "b"]),
        ('"a"\u00a0,b', ['"a"\u00a0', "b"]),
        ('"a""b"c,d', ['"a"b"c', "d"]),
        ('"a"b"c",d', ['"a"b"c"', "d"]),
        ('"a"x', ['"a"x', None]),
        # Quotes in other fields, and delimiters between them.
        ('a"b,c"', None),
        ('a"b,c', ['a"b', "c"]),
        ('a"b"c,d', ['a"b"c', "d"]),
        (' "a",b', [' "a"', "b"]),
        (' "a,b",c', None),
        ('a"b,c"d', None),
        ('a"b,"c,d"', ['a"b', "c,d"]),
        ('a"b,"c,d,e"', ['a"b', "c,d,e"]),
        ('"a"x"y,z",b', None),
        # Other signs.
        ("#a,b", ["#a", "b"]),
        ("\0a,b\0", ["\0a", "b\0"]),
        ("\ufeffa,\uffff", ["\ufeffa", "\uffff"]),
        ("null,\\N", ["null", "\\N"]),
    ],
)
def test_fields(line: str, expected: list[Any] | None) -> None:
    """Each is a text of the line, or null; a line in doubt is none."""
    assert record(line) == expected


def test_a_line_of_more_columns_is_filled_up() -> None:
    """By the delimiters outside pairs of quotes."""
    text = csv_format("a string, b string, c string, d string")
    assert record("a,b", text) == ["a", "b", None, None]
    assert record('"a,b",c', text) == ["a,b", "c", None, None]
    assert record('"a"",b",c', text) == ['a",b', "c", None, None]
    assert record('a"b,c"d', text) is None
    assert record("a,b,c,d,", text) is None


@pytest.mark.parametrize("delimiter", [";", "\t", " ", "\\", "'", "\0", "1", "_", "ß", "\uffff", "😀"])
def test_any_delimiter(delimiter: str) -> None:
    """Of one character; a blank ends a field in quotes like any other."""
    text = csv_format("a string, b string", delimiter)
    assert record(f"x{delimiter}y", text) == ["x", "y"]
    assert record(f'"x{delimiter}""z"{delimiter}"y"', text) == [f'x{delimiter}"z', "y"]
    assert record(f'"x"z{delimiter}y', text) == ['"x"z', "y"]
    assert record(f"x{delimiter}{delimiter}y", text) is None
    if delimiter != "\t":
        assert record(f'"x"\t{delimiter}y', text) == ["x", "y"]


_NOT = NotImplemented
_NAN = math.nan


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            "tinyint",
            {"1": 1, "+1": 1, "-1": -1, "007": 7, "-0": 0, "127": 127, "-128": -128, "128": _NOT, "-129": _NOT},
        ),
        ("tinyint", {"1.0": _NOT, "1e0": _NOT, " 1": _NOT, "1 ": _NOT, "+": _NOT, "-": _NOT, "--1": _NOT, "1L": _NOT}),
        ("tinyint", {"\u0661": 1, "-\uff11\u0662": -12, "\U0001d7d9": _NOT, "1_0": _NOT, "null": _NOT, "0x1": _NOT}),
        ("bigint", {str(2**63 - 1): 2**63 - 1, str(-(2**63)): -(2**63), str(2**63): _NOT, "0" * 40 + "1": 1}),
        ("bigint", {"9" * 5000: _NOT, "-" + "0" * 5000: 0, "²": _NOT, "\u00bd": _NOT}),
        ("double", {"1": 1.0, "-0": -0.0, "+1.5": 1.5, ".5": 0.5, "5.": 5.0, "1E+5": 1e5, "00.1": 0.1, " 1.5\t": 1.5}),
        ("double", {"1f": 1.0, "1.5D": 1.5, "2e3d": 2e3, "1e": _NOT, ".": _NOT, "e5": _NOT, "1 f": _NOT, "1ff": _NOT}),
        ("double", {"NaN": _NAN, "-NaN": _NAN, "Infinity": math.inf, "-Infinity": -math.inf, "+Infinity": math.inf}),
        ("double", {"Inf": math.inf, "-Inf": -math.inf, "+Inf": _NOT, " Inf": _NOT, " NaN ": _NAN, "nan": _NOT}),
        ("double", {"1e400": math.inf, "-1e-400": -0.0, "0x1p3": _NOT, "1,5": _NOT, "\u0661": _NOT, "\u00a01": _NOT}),
        ("float", {"16777217": 16777216.0, "1.00000005960464477539": 1.0, "1.0000000596046447754": 1.0000001192092896}),
        ("float", {"1e39": math.inf, "-0": -0.0, "NaN": _NAN, "Inf": math.inf, "1.5f": 1.5, "x": _NOT}),
        ("boolean", {"true": True, "TRUE": True, "tRuE": True, "False": False, "t": _NOT, "1": _NOT, " true": _NOT}),
        ("boolean", {"fal\u017fe": _NOT, "yes": _NOT}),
        ("decimal(4,2)", {"1": "1.00", "+1.005": "1.01", ".5": "0.50", "1e1": "10.00", "99.995": _NOT, " 1": _NOT}),
        ("decimal(4,2)", {"1,2.5": "12.50", "\u0661": "1.00", "NaN": _NOT, "1e-99999": "0.00", "1e100000": _NOT}),
        ("date", {"1970-01-02": 1, "1970": 0, "1970-1-2": 1, " 1970-01-02 x": 1, "20240101": _NOT, "5": _NOT}),
        ("timestamp", {"1970-01-01T00:00:01Z": 10**6, "1970-01-02": 86400 * 10**6, "1": _NOT, "12:30:00": _NOT}),
        ("timestamp_ntz", {"1970-01-01 00:00:01": 10**6, "1970-01-01T00:00:01Z": _NOT, "1": _NOT}),
        ("binary", {"é": b"\xc3\xa9", "YQ==": b"YQ=="}),
    ],
)
def test_values(kind: str, fields: dict[str, Any]) -> None:
    """Of every type, in quotes or not."""
    text = csv_format(f"c {kind}", ";")
    for field, value in fields.items():
        for line in (field, f'"{field}"'):
            found = record(line, text)
            if value is _NOT:
                assert found is None, line
            else:
                assert found is not None, line
                wanted = Decimal(value) if "decimal" in kind else value
                assert (repr(found[0]), type(found[0])) == (repr(wanted), type(wanted)), line


def test_the_zone_of_times_without_one() -> None:
    """The session's."""
    assert record("1970-01-01 01:00:00", csv_format("c timestamp", zone="+01:00")) == [0]


@given(st.lists(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_what_is_written_is_read(fields: list[str]) -> None:
    """Of Python's writer; an empty text is null."""
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="").writerow(fields)
    text = csv_format(", ".join(f"c{number} string" for number in range(len(fields))))
    assert record(written.getvalue(), text) == [field or None for field in fields]


@given(st.text(st.sampled_from('a",; \t1\\')), st.integers(1, 4))
def test_every_line_is_a_record_or_malformed(line: str, columns: int) -> None:
    """And nothing else; a record has all columns."""
    found = record(line, csv_format(", ".join(f"c{number} string" for number in range(columns))))
    assert found is None or len(found) == columns
