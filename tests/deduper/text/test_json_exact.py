"""What a line of JSON holds, and which lines hold nothing. Spark gives the same answers: test_text_against_spark.py."""

from __future__ import annotations

import contextlib
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.text import json_exact
from deduper.text.format import Malformed, TextFormat

DDL = "s string, i int, d double, f float, b binary, c decimal(20,5), o boolean"


def text_format(ddl: str, zone: str = "UTC") -> TextFormat:
    """A format of these columns."""
    return TextFormat(tuple(map(DeclaredColumn.of, parse_columns(ddl))), zone)


TEXT = text_format(DDL)


def record(line: str, text: TextFormat = TEXT) -> dict[str, Any]:
    """The columns of a line that are not null."""
    values = json_exact.record(line.encode(), text)
    return {column.name: value for column, value in zip(text.columns, values, strict=True) if value is not None}


def nested(opening: str, closing: str, depth: int) -> str:
    """A one that deep."""
    return opening * depth + "1" + closing * depth


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{}", {}),
        (" \t\r\n{} \t\r\n", {}),
        ('{"i":1,"s":"x","d":1.5}', {"i": 1, "s": "x", "d": 1.5}),
        ('{ "i" :\t1\r,\n"s" : "x" }', {"i": 1, "s": "x"}),
        ('{"i":null,"s":null}', {}),
        ('{"I":1,"more":{"i":2},"i":3}', {"i": 3}),  # names are taken as they are written
        ('{"i":1,"i":2}', {"i": 2}),  # the last one counts
        ('{"i":1,"i":null}', {}),
        (r'{"\u0069":1}', {"i": 1}),
        ('{"":1,"i":2}', {"i": 2}),
        ("{'i':1,'s':'a\"b'}", {"i": 1, "s": 'a"b'}),
        (r"{'s':'it\'s'}", {"s": "it's"}),
        ("{'i':null,'o':true,'s':'null'}", {"o": True, "s": "null"}),
        ("{'o':false,'s':[null,true]}", {"o": False, "s": "[null,true]"}),
        (r'{"s":"it\'s"}', {"s": "it's"}),
        (r'{"s":"\"\\\/\b\f\n\r\t\u00e9\u0000"}', {"s": '"\\/\b\f\n\r\té\0'}),
        (r'{"s":"\ud83d\uDE00"}', {"s": "😀"}),
        (r'{"s":"\ud83d","more":"\ude00"}', {"s": "?"}),
        (r'{"s":"\ude00\ud83d"}', {"s": "??"}),
        (r'{"\ud83d":1,"i":2}', {"i": 2}),
        ('{"s":"}{][,:\x7f😀\u2028"}', {"s": "}{][,:\x7f😀\u2028"}),
        ('{"more":[[],{},[1,-0.5e3,"x",true,null,NaN,{"i":{"i":1}}]],"i":1}', {"i": 1}),
        ('{"more":-1.5E-7,"other":+INF,"i":1}', {"i": 1}),
    ],
)
def test_records(line: str, expected: dict[str, Any]) -> None:
    """A line is one object of members with blanks between them; columns get the values of their names."""
    assert record(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        *("", " ", "null", "1", '"x"', "[]", '[{"i":1}]', "{", "}", "{,}", '{"i"}', '{"i":}', '{"i":1', '{"i":1,}'),
        *(
            '{"i":1 "s":2}',
            '{"i":1]',
            '{"i":[}',
            "{i:1}",
            '{"i":1}/*x*/',
            '{"more":/**/1}',
            '#{"i":1}',
            '\ufeff{"i":1}',
        ),
        *('{"i":1}{"i":2}', '{"i":1} x', '{"i":1},', '{"i":1}}', '{"i":1}\x0b', '{"i":1}\x00', '{"i":1}\xa0', "\x0b{}"),
        *(
            '{"s":"a\tb"}',
            '{"more":"a\tb"}',
            '{"a\tb":1}',
            "{'s':'a\tb'}",
            r'{"s":"\x"}',
            r'{"more":"\x"}',
            r'{"s":"\u12g4"}',
            r'{"s":"\u12١9"}',
        ),
        *(r'{"\x":1}', '{"s":"x', '{"s":"x\\', "{'s':\"x'}", '{"s":truex}', '{"s":tru}', '{"s":True}', '{"s":nul}'),
        *(
            '{"d":01}',
            '{"d":-01}',
            '{"d":+1}',
            '{"d":1.}',
            '{"d":.5}',
            '{"d":-.5}',
            '{"d":1e}',
            '{"d":1e+}',
            '{"d":- 1}',
        ),
        *('{"d":-}', '{"d":--1}', '{"d":1.5.2}', '{"d":0x1}', '{"d":1x}', '{"d":INF}', '{"d":-NaN}', '{"d":NaNx}'),
        *('{"more":[1,]}', '{"more":[,]}', '{"more":{"a":1,}}', '{"more":{"a"}}', '{"more":{1:1}}', '{"more":[01]}'),
        *('{"more":[1}', '{"more":{"a":1]}', '{"more":[1 2]}', '{"more":["a\tb"]}', '{"more":[nul]}', '{"more":[[1]}'),
    ],
)
def test_no_records(line: str) -> None:
    """A line with a flaw anywhere, be it in a field that no column has, is no record."""
    with pytest.raises(Malformed):
        record(line)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", "1"),
        ("-0", "0"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1.50", "1.5"),
        ("-0.0", "-0.0"),
        ("1e2", "100.0"),
        ("0.001", "0.001"),
        ("0.0001", "1.0E-4"),
        ("1e7", "1.0E7"),
        ("123456789.12", "1.2345678912E8"),
        ("1e400", '"Infinity"'),
        ("NaN", '"NaN"'),
        ("+INF", '"Infinity"'),
        ("-Infinity", '"-Infinity"'),
        ("true", "true"),
        ("{}", "{}"),
        ("[ ]", "[]"),
        ('{ "a" : [ 1.0 , "x" , null ], \'b\' : {"c":1e2} }', '{"a":[1.0,"x",null],"b":{"c":100.0}}'),
        (
            r'["\u0041\/\u0001\n\"\\\u00e9\u2028", "😀", "\ud83d\ude00", "\ud83d"]',
            '["A/\\u0001\\n\\"\\\\é\u2028","\\uD83D\\uDE00","\\uD83D\\uDE00","\\uD83D"]',
        ),
        ('{"a":1,"a":NaN}', '{"a":1,"a":"NaN"}'),
    ],
)
def test_what_is_no_string_in_a_string_column(value: str, expected: str) -> None:
    """It is written anew: without blanks, whole numbers as they are, others as doubles."""
    assert record(f'{{"s":{value}}}') == {"s": expected}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s", "more"])
def test_limits(name: str) -> None:
    """1000 objects and arrays within one another, 1000 digits, 50,000 signs of a name; no limit for texts."""

    def is_record(value: str, name: str = name) -> bool:
        try:
            record(f'{{"{name}":{value}}}')
        except Malformed:
            return False
        return True

    assert is_record(nested("[", "]", 999))
    assert not is_record(nested("[", "]", 1000))
    assert is_record(nested('{"a":', "}", 999))
    assert not is_record(nested('{"a":', "}", 1000))
    assert not is_record("[" * 1_000_000)
    assert is_record("-" + "1" * 1000)
    assert not is_record("1" * 1001)
    assert is_record("1." + "1" * 999)
    assert not is_record("1." + "1" * 1000)
    assert is_record("-1.5e-" + "0" * 998)
    assert not is_record("-1.5e-" + "0" * 999)
    assert is_record("[" + "1" * 1000 + "]")
    assert not is_record("[" + "1" * 1001 + "]")
    for text, length in (("n", 1), (r"\u006e", 1), ("ä", 1), ("😀", 2)):
        assert is_record("1", text * (50_000 // length))
        assert not is_record("1", text * (50_000 // length + 1))
        assert is_record(f'{{"{text * (50_000 // length)}":1}}')
        assert not is_record(f'{{"{text * 50_001}":1}}')
    assert is_record('"' + "x" * 25_000_000 + '"')


def test_base64_takes_control_characters_for_blanks() -> None:
    """They may stand between its groups, within quotes; within apostrophes a tab is a flaw."""
    assert record('{"b":"\tYWJj\x01 YQ==\\n"}') == {"b": b"abca"}
    assert record("{'b':' YWJj YQ=='}") == {"b": b"abca"}
    with pytest.raises(Malformed):
        record("{'b':'YWJj\t'}")


@pytest.mark.parametrize("value", ['"x"', '"1"', "1.0", "1e2", "true", "[1]", "{}", "2147483648", "NaN", '""'])
def test_a_value_of_another_type(value: str) -> None:
    """It makes the record malformed, wherever it stands."""
    for line in (f'{{"i":{value}}}', f'{{"i":{value},"i":1}}', f'{{"i":1,"s":"x","i":{value}}}'):
        with pytest.raises(Malformed) as error:
            record(line)
        assert str(error.value) == "not a value of type int"


def test_formats_are_told_apart() -> None:
    """Two formats in turns, and many after one another, each give their own columns."""
    for number in range(200):
        text = text_format(f"c{number} int, s string", "Europe/Berlin")
        assert record(f'{{"c{number}":{number},"s":"x"}}', text) == {f"c{number}": number, "s": "x"}
        assert record('{"i":1}') == {"i": 1}


def test_every_type() -> None:
    """A value of each type, as Arrow's builders take it."""
    text = text_format(
        f"{DDL}, t tinyint, h smallint, l bigint, day date, at timestamp, ntz timestamp_ntz", "Asia/Tokyo"
    )
    line = (
        '{"s":"x","i":-2147483648,"d":0.1,"f":0.1,"b":"YQ==","c":1.000005,"o":false,"t":-128,"h":32767,'
        '"l":9223372036854775807,"day":"1970-01-02","at":"1970-01-01 09:00:00.000001","ntz":"1970-01-01T00:00:01"}'
    )
    assert record(line, text) == {
        "s": "x",
        "i": -(2**31),
        "d": 0.1,
        "f": 0.10000000149011612,
        "b": b"a",
        "c": Decimal("1.00001"),
        "o": False,
        "t": -128,
        "h": 2**15 - 1,
        "l": 2**63 - 1,
        "day": 1,
        "at": 1,
        "ntz": 1_000_000,
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.text(), JSON),
    st.booleans(),
    st.text() | st.none(),
    st.floats(allow_nan=False),
    st.none() | st.integers(-5, 5),
)
def test_whatever_json_writes_is_read(
    more: dict[str, Any], is_ascii: bool, text: str | None, number: float, indent: int | None
) -> None:
    """Python's own writer: every text and double comes back, whatever other fields hold."""
    given_record = {name: value for name, value in more.items() if name not in DDL} | {"s": text, "d": number}
    line = json.dumps(given_record, ensure_ascii=is_ascii, indent=indent)
    found = record(line)
    assert found.get("s") == text
    assert found["d"] == number
    assert math.copysign(1, found["d"]) == math.copysign(1, number)


@given(st.binary(max_size=40) | st.text(alphabet="{}[]\",:\\'us10.e- ", max_size=30).map(str.encode))
def test_any_bytes_are_a_record_or_malformed(data: bytes) -> None:
    """No other error, whatever the line."""
    line = data.decode(errors="ignore")
    for text in (line, f'{{"s":{line}}}', f'{{"b":"{line}"}}', f'{{"d":{line}}}'):
        with contextlib.suppress(Malformed):
            record(text)
