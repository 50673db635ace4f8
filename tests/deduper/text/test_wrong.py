"""Why a line is no record or no header: the first thing that is wrong, and nothing that the record says."""

from __future__ import annotations

import json
import random

import pytest

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.text import csv_exact, json_exact
from deduper.text.format import Malformed, TextFormat
from deduper.text.values import Token
from deduper.text.wrong import MASKED, Explainer, described, header_fault, masked

COLUMNS = tuple(
    map(DeclaredColumn.of, parse_columns("user string, id bigint, ts timestamp, b boolean, x decimal(4,1), bin binary"))
)
JSON = TextFormat(COLUMNS, "UTC")
CSV = TextFormat(COLUMNS, "UTC", ",")
LOGFMT = TextFormat.of("logfmt", COLUMNS, "UTC")
WEB = TextFormat.of(
    "common_log", tuple(map(DeclaredColumn.of, parse_columns("status int, bytes bigint, agent string"))), "UTC"
)
CANARY = "Zq7xW"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("99/12/2024", "99/99/9999"),
        ("Grüße 1", "aaaaa 9"),
        ("a\tb\U0001f600", "a?a?"),
        ("٣", "9"),
        ("x" * (MASKED + 1), "a" * MASKED + "…"),
        ("", ""),
    ],
)
def test_a_text_is_shown_by_the_classes_of_its_characters(text: str, shown: str) -> None:
    """Digits of any script, letters of any script, ASCII's other signs; everything else is a question mark."""
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("token", "text", "shown"),
    [
        (Token.WHOLE, "-1733011200000", "a whole number of 13 digits"),
        (Token.WHOLE, "1", "a whole number of 1 digit"),
        (Token.FRACTION, "1.5", "a number with a point or an exponent"),
        (Token.BOOLEAN, "true", "true or false"),
        (Token.NOT_FINITE, "NaN", "NaN or an infinity"),
        (Token.NESTED, "{}", "an object or array"),
        (Token.TEXT, "", "an empty text"),
        (Token.TEXT, "7", 'text of 1 character like "9"'),
    ],
)
def test_a_value_is_described_by_its_kind(token: Token, text: str, shown: str) -> None:
    """Its length and classes, never itself."""
    assert described(token, text) == shown


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"ts":"99/12/2024"}', 'ts: timestamp expected, text of 10 characters like "99/99/9999"'),
        ('{"x":123456,"id":1.5}', "id: bigint expected, a number with a point or an exponent; x too"),
        ('{"b":0,"b":true}', "b: boolean expected, a whole number of 1 digit"),
        ('{"id":"1","ts":', "a value is none of JSON"),
        ("user,id", "the line is no object"),
        ('{"user":"a"} {}', "something follows the object"),
        ('{"user":"a"}', None),
    ],
)
def test_a_line_of_json(line: str, reason: str | None) -> None:
    """What breaks the line comes before what is wrong with a value; of columns the first of the schema is described."""
    assert Explainer(JSON).malformed(line) == reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,1,2024-01-01,true,1,", None),
        ("a,1", None),
        ("user,id,ts", 'id: bigint expected, text of 2 characters like "aa"; ts too'),
        ("a,1,2024,true,1,,7", "the line has 7 fields, 6 columns are declared"),
        ('a,"1', "a quote is never closed"),
        (' "a,b",1', "the line has quotes that may or may not hold delimiters"),
        ("  ", "the line is blank"),
    ],
)
def test_a_line_of_csv(line: str, reason: str | None) -> None:
    """The same for fields."""
    assert Explainer(CSV).malformed(line) == reason


WEB_LINE = '- - a [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" x 9'


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (LOGFMT, 'user="a b" id=1 b', None),
        (LOGFMT, "id=1x ts=2024-13-01", 'id: bigint expected, text of 2 characters like "9a"; ts too'),
        (LOGFMT, "id", 'id: bigint expected, text of 4 characters like "aaaa"'),
        (LOGFMT, 'user="a', "the line is not pairs name=value, with blanks between them"),
        (WEB, WEB_LINE.replace("x", "200"), None),
        (WEB, WEB_LINE, 'status: int expected, text of 1 character like "a"'),
        (WEB, WEB_LINE.replace("[10", "[40"), "no time stands where common_log has it"),
    ],
)
def test_a_line_of_a_log(text: TextFormat, line: str, reason: str | None) -> None:
    """The same for pairs and for the fields of a server's line."""
    assert Explainer(text).malformed(line) == reason


def test_what_a_line_of_a_log_lacks() -> None:
    """A name without a value is null; a line of a server has all fields of its format."""
    assert Explainer(LOGFMT).absent("id= b=null", (0, 1, 2, 3)) == {
        0: "no such field",
        1: "null",
        2: "no such field",
        3: "null",
    }
    explain = Explainer(WEB)
    assert explain.absent(WEB_LINE.replace(" 9", " -").replace("x", "1"), (0, 1, 2)) == {1: "null", 2: "no such field"}
    assert explain.token(WEB_LINE, 0) == (Token.TEXT, "x")
    assert "agent" not in explain.names(WEB_LINE)


def test_a_missing_field_differs_from_a_null() -> None:
    """The names of a line tell them apart; in CSV the number of its fields does."""
    explain = Explainer(JSON)
    assert explain.absent('{"user":null,"usr":"a","id":1}', (0, 1, 2)) == {0: "null", 2: "no such field"}
    assert explain.absent('{"\\u0075ser":null}', (0,)) == {0: "null"}
    assert explain.names('{"usr":1,"ID":{"user":2}}') == {"usr", "ID"}
    of_csv = Explainer(CSV)
    assert of_csv.absent(",1", (0, 1, 2)) == {0: "an empty field", 2: "the line ends before it"}
    assert of_csv.fields('"a,b",c') == ["a,b", "c"]


@pytest.mark.slow
def test_an_explanation_agrees_with_the_parser_and_holds_no_value() -> None:
    """A line has a reason just if the exact parser refuses it; no line affects the next; no reason has a value."""
    draw = random.Random(5)
    explain, of_csv = Explainer(JSON), Explainer(CSV)
    pieces = [CANARY, f"{CANARY}1", 5, 10**30, 1.5, True, None, [CANARY], {CANARY: CANARY}, "2024-01-01", f"1,{CANARY}"]
    signs = '{}[]",:\\x\x01'
    refused = 0
    for _ in range(3000):
        names = draw.sample([column.name for column in COLUMNS], draw.randrange(7))
        line = json.dumps({name: draw.choice(pieces) for name in names})
        fields = ",".join(str(draw.choice(pieces)) for _ in range(draw.randrange(1, 8)))
        for text, one, record, explaining in (
            (line, JSON, json_exact.record, explain),
            (fields, CSV, csv_exact.record, of_csv),
        ):
            if draw.random() < 0.3:
                at = draw.randrange(len(text))
                text = text[:at] + draw.choice(signs) + text[at + draw.randrange(2) :]
            try:
                record(text.encode(), one)
                is_record = True
            except Malformed:
                is_record = False
            reason = explaining.malformed(text)
            assert (reason is None) == is_record, (text, reason)
            refused += not is_record
            said = f"{reason} {explaining.absent(text, range(len(COLUMNS)))}"
            assert CANARY not in said
    assert refused > 1000


_EXPECTED = "the header id, user is expected; "


@pytest.mark.parametrize("line", [b"id,user", b"ID, User ", b'"id","user"\r', b"id", b'"id" ,user'])
def test_the_declared_names_in_their_order(line: bytes) -> None:
    """In any case, quoted or not; the columns at the end may be missing."""
    assert header_fault(line, ["id", "user"], ",") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"user,id", "the first line is user, id"),
        (b"id,user,more", "the first line is id, user, more"),
        (b"id,name", 'the first line has fields like "aa", "aaaa"'),  # half of the names: it may be a record
        (b"7,zoe", 'the first line has fields like "9", "aaa"'),
        (b"id;user", 'the first line has fields like "aa;aaaa"'),
        (b"", "the first line is empty"),
        (b" \r", "the first line is empty"),
        (b"\xff\xfei\x00", "the first line is not UTF-8"),
        (b'"id,user', "in the first line a quote is never closed"),
    ],
)
def test_any_other_line(line: bytes, said: str) -> None:
    """What is expected and what was found; of a line that is a record, no value."""
    fault = header_fault(line, ["id", "user"], ",")
    assert fault == _EXPECTED + said


def test_many_names_and_long_ones() -> None:
    """The text has a bound."""
    names = [f"column_{number}" for number in range(1000)]
    fault = header_fault(",".join(reversed(names)).encode(), names, ",")
    assert fault is not None
    assert fault.count("and 980 more") == 2
    assert len(header_fault(b"id," + b"x" * 10**6, ["id", "user"], ",") or "") < 200


def test_a_file_without_columns_of_its_own() -> None:
    """All of them stand in the names of its folders: its lines count for nothing but their number."""
    assert header_fault(b"anything", [], ",") is None
