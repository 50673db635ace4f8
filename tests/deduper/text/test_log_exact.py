"""Lines of logs: their fields, and the values of their columns, by hand and by another parser."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import pytest

from deduper.log_formats import FIELDS, fields_of
from deduper.text.format import Malformed
from deduper.text.log_exact import pairs_of, record
from tests.deduper.text import log_lines
from tests.deduper.text.log_lines import log_format

COMMON = '192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 2326'
COMBINED = f'{COMMON} "https://example.org/" "curl/8.12.1"'
OF_COMMON = {
    "host": "192.0.2.1",
    "ident": None,
    "user": "alice",
    "time": "10/Oct/2000:13:55:36 -0700",
    "request": "GET /a?b=c HTTP/1.1",
    "method": "GET",
    "target": "/a?b=c",
    "protocol": "HTTP/1.1",
    "status": "200",
    "bytes": "2326",
    "rest": None,
}
OF_COMBINED = {**OF_COMMON, "referer": "https://example.org/", "agent": "curl/8.12.1"}
NO_REQUEST = {"method": None, "target": None, "protocol": None}


@pytest.mark.parametrize(
    ("form", "line", "differing"),
    [
        ("common_log", COMMON, {}),
        ("common_log", f"{COMMON}\r\r", {}),
        ("common_log", COMBINED, {"rest": '"https://example.org/" "curl/8.12.1"'}),
        ("common_log", COMMON.replace("alice", "alice smith"), {"user": "alice smith"}),
        ("common_log", COMMON.replace("2326", "-"), {"bytes": None}),
        ("common_log", COMMON.replace("GET /a?b=c HTTP/1.1", "-"), {"request": None, **NO_REQUEST}),
        ("common_log", COMMON.replace("GET /a?b=c HTTP/1.1", ""), {"request": None, **NO_REQUEST}),
        ("common_log", COMMON.replace(" HTTP/1.1", ""), {"request": "GET /a?b=c", **NO_REQUEST}),
        ("common_log", COMMON.replace("GET /a?b=c HTTP/1.1", "\\x16\\x03"), {"request": "\\x16\\x03", **NO_REQUEST}),
        ("common_log", COMMON.replace("/a?b=c", "/a b"), {"request": "GET /a b HTTP/1.1", "target": "/a b"}),
        ("combined_log", COMBINED, {}),
        ("combined_log", COMBINED.replace("curl/8.12.1", 'a \\"b\\"'), {"agent": 'a \\"b\\"'}),
        ("combined_log", f'{COMBINED} "10.0.0.1" 0.002', {"rest": '"10.0.0.1" 0.002'}),
        ("combined_log", COMBINED.replace("https://example.org/", "-"), {"referer": None}),
    ],
)
def test_fields_of_web_servers(form: str, line: str, differing: dict[str, str | None]) -> None:
    """Each by its name; `-` is null; what a server adds at the end is the rest."""
    expected = OF_COMBINED if form == "combined_log" else OF_COMMON
    found = pairs_of(line, form)
    assert dict(found) == {**expected, **differing}
    assert {name for name, _ in found} == set(fields_of(form))
    assert set(fields_of(form)) <= set(FIELDS)


@pytest.mark.parametrize(
    ("form", "line", "reason"),
    [
        ("combined_log", COMMON, "no referer stands where combined_log has it"),
        ("combined_log", COMBINED[:-1], "no agent stands where combined_log has it"),
        ("common_log", "", "no host stands where common_log has it"),
        ("common_log", COMMON.replace("Oct", "Okt"), "no time stands where common_log has it"),
        ("common_log", COMMON.replace("10/Oct", "31/Nov"), "no time stands where common_log has it"),
        ("common_log", COMMON.replace("-0700", "-1801"), "no time stands where common_log has it"),
        ("common_log", COMMON.replace('HTTP/1.1"', "HTTP/1.1"), "no request stands where common_log has it"),
        ("common_log", COMMON.removesuffix(" 2326"), "no status stands where common_log has it"),
        ("combined_log", f"{COMBINED}x", "something stands right behind the last field"),
        ("logfmt", "", "the line is blank"),
        ("logfmt", " \t\r", "the line is blank"),
        ("logfmt", 'a="b', "the line is not pairs name=value, with blanks between them"),
        ("logfmt", 'a="b"c', "the line is not pairs name=value, with blanks between them"),
        ("logfmt", 'a=b"c"', "the line is not pairs name=value, with blanks between them"),
        ("logfmt", "a= =b", "the line is not pairs name=value, with blanks between them"),
        ("logfmt", r'a="\x41"', "a text in quotes has an escape that is none"),
        ("logfmt", r'a="\u12"', "a text in quotes has an escape that is none"),
    ],
)
def test_lines_that_are_none(form: str, line: str, reason: str) -> None:
    """With the first thing that is wrong, and no value of the line."""
    with pytest.raises(Malformed) as raised:
        pairs_of(line, form)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("a=b", [("a", "b")]),
        (' a=1\tb="x y" retry \r', [("a", "1"), ("b", "x y"), ("retry", "true")]),
        ('a= b="" c=null d="null"', [("a", None), ("b", None), ("c", None), ("d", "null")]),
        ("a=b=c== a=2", [("a", "b=c=="), ("a", "2")]),
        (r'a="\"\\\/\n\u00fc\ud83d\ude00\ud83d"', [("a", '"\\/\nü😀?')]),
        ("é.x-1=é", [("é.x-1", "é")]),
        (r"path=C:\temp", [("path", r"C:\temp")]),
    ],
)
def test_pairs_of_logfmt(line: str, pairs: list[tuple[str, str | None]]) -> None:
    """Names and texts, in their order."""
    assert pairs_of(line, "logfmt") == pairs


def test_values_are_of_the_types_of_their_columns() -> None:
    """A server's time by its own zone; a name twice has the last value; columns without a field are null."""
    text = log_format("combined_log", "status int, time timestamp, bytes bigint, other int, agent string", "Asia/Tokyo")
    at = int(datetime(2000, 10, 10, 20, 55, 36, tzinfo=UTC).timestamp()) * 1_000_000
    assert record(COMBINED.encode(), text) == [200, at, 2326, None, "curl/8.12.1"]
    as_text = log_format("common_log", "time string")
    assert record(COMMON.encode(), as_text) == ["10/Oct/2000:13:55:36 -0700"]
    pairs = log_format("logfmt", "id int, ok boolean, ts timestamp")
    assert record(b"id=1 ts=2000-10-10T13:55:36-07:00 ok id=2", pairs) == [2, True, at]
    for line in (b"id=x id=2", b"id", b'ok="yes"'):
        with pytest.raises(Malformed):
            record(line, pairs)


_REFERENCE = re.compile(
    r'^(?P<host>\S+) (?P<ident>\S+) (?P<user>\S+) \[(?P<time>[^]]+)\] "(?P<request>(?:\\.|[^"\\])*)" (?P<status>\S+) '
    r'(?P<bytes>\S+) "(?P<referer>(?:\\.|[^"\\])*)" "(?P<agent>(?:\\.|[^"\\])*)"(?: (?P<rest>.*))?$'
)
"""As such lines are often parsed."""


@pytest.mark.parametrize("seed", range(5))
def test_another_parser_of_web_logs_agrees(seed: int) -> None:
    """On ordinary lines, with times by strptime."""
    text = log_format("combined_log", "time timestamp, host string")
    for line in log_lines.samples(text, seed, 300):
        plain = line.decode().rstrip("\r")
        found = _REFERENCE.match(plain)
        assert found is not None
        values: dict[str, Any] = {name: None if value == "-" else value for name, value in found.groupdict().items()}
        ours = dict(pairs_of(line.decode(), "combined_log"))
        assert {name: ours[name] for name in values} == values
        if int(values["time"][7:11]) > 1:  # a day before the year 1 is none of datetime's
            at = datetime.strptime(values["time"], "%d/%b/%Y:%H:%M:%S %z")
            days = at.toordinal() - date(1970, 1, 1).toordinal()
            local_us = (days * 86_400 + at.hour * 3600 + at.minute * 60 + at.second) * 1_000_000
            offset = at.utcoffset()
            assert offset is not None
            assert record(line, text)[0] == local_us - int(offset.total_seconds()) * 1_000_000


@pytest.mark.parametrize("seed", range(5))
def test_another_parser_of_logfmt_agrees(seed: int) -> None:
    """Word by word, on ordinary lines."""
    text = log_format("logfmt", "user string, id int, msg string, ok boolean")
    for line in log_lines.samples(text, seed, 300):
        assert pairs_of(line.decode(), "logfmt") == list(_words(line.decode()))


def _words(line: str) -> Any:
    at = 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
            continue
        equals = line.index("=", at)
        name, at = line[at:equals], equals + 1
        value = ""
        if line[at] != '"':
            while at < len(line) and line[at] not in " \t":
                value, at = value + line[at], at + 1
        else:
            at += 1
            while line[at] != '"':
                at += line[at] == "\\"
                value, at = value + line[at], at + 1
            at += 1
        yield name, value or None
