"""The kernels of plain lines: which these are, the same values as exactly, and no byte read outside a line."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.text import block, kernels
from deduper.text.format import TextFormat
from tests.deduper.text import csv_lines, differential, json_lines, log_lines
from tests.deduper.text.csv_lines import csv_format
from tests.deduper.text.json_lines import KINDS, laid, text_format

ALL_KINDS = text_format(", ".join(f"c{number} {kind}" for number, kind in enumerate(KINDS)))
SAMPLES = (
    b'{"c0":"a text of more than eight","c1":-1,"c4":123456789012345678,"c5":-1.5e-3,"c6":0.25,"c7":12.34,"c10":true}',
    b'{ "c11" : "2024-02-29" ,\t"c12":"2026-01-01T00:00:00.123456+05:30","c13":"1969-12-31 23:59:59","c14":null } \r',
    rb'{"c0":"\ud83d\ude00 \u00e9\n","x":{"a":[1.5e3,true,null,{"b":"\\"}],"c":{}},"c9":-0.5,"c8":0.0000000001}',
    '{"é":"日本語","c0":"naïve €😀","c10":false}'.encode(),
)


ALL_FIELDS = csv_format(", ".join(f"c{number} {kind}" for number, kind in enumerate(KINDS)))
CSV_SAMPLES = (
    b"a text of more than eight,-1,32000,-007,123456789012345678,-1.5e-3,0.25,12.34,-0.5,0.001,TRUE,2024-02-29,"
    b"2026-01-01T00:00:00.123456+05:30,1969-12-31 23:59:59,AP8=\r",
    b'"a ""text"", quoted",,,,"9223372036854775807","1e22",,,,,"false","2024-02-29 x","2024-02-29","2024-02-29",""',
    '"日本語",\r'.encode(),
)


def statuses(lines: Sequence[bytes], text: TextFormat, between: bytes = b"\n") -> list[int]:
    """What the kernel says of every line."""
    data, starts, ends = laid(lines, between)
    found: list[int] = block._cells_of(block._bytes_of(data), starts, ends, text)[1].tolist()
    return found


def plain_value(line: str, text: TextFormat) -> Any:
    """The value of the first column of a plain line; `NotImplemented` when it is not plain."""
    if statuses([line.encode()], text) != [kernels.PLAIN]:
        return NotImplemented
    data, starts, ends = laid([line.encode()])
    (value,) = differential.values_of(block.parse(data, starts, ends, text, [0]).columns[0])
    return value


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_lines_are_plain(seed: int) -> None:
    """All of them: the exact parser is for the others alone."""
    text = json_lines.random_format(random.Random(seed))
    lines = list(json_lines.samples(text, seed, 300))
    found = statuses(lines, text)
    assert [line for line, status in zip(lines, found, strict=True) if status != kernels.PLAIN] == []


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_lines_of_csv_are_plain(seed: int) -> None:
    """All of them, but empty ones, if their delimiter is a byte."""
    rng = random.Random(seed)
    text = replace(csv_lines.random_format(rng), delimiter=rng.choice(",;\t|1e\0"))
    lines = [line for line in csv_lines.samples(text, seed, 300) if line.strip(b"\r")]
    assert set(statuses(lines, text)) == {kernels.PLAIN}
    wide = replace(text, delimiter="é")
    assert set(statuses(lines, wide)) == {kernels.NOT_PLAIN}


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_lines_of_logs_are_plain(seed: int) -> None:
    """All of them."""
    text = log_lines.random_format(random.Random(seed))
    lines = list(log_lines.samples(text, seed, 300))
    found = statuses(lines, text)
    assert [line for line, status in zip(lines, found, strict=True) if status != kernels.PLAIN] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "csv", "log"])
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_parser_agrees(seed: int, kind: str) -> None:
    """Of ordinary, odd and mutated lines the plain ones have the exact values; UTF-8 is what Python takes."""
    _, found = differential.block_differences(seed, 3_000, kind=kind)
    assert found.differences == []
    assert found.lines > 2_500
    is_plain = kind != "csv" or (csv_lines.random_format(random.Random(seed)).delimiter or "").isascii()
    assert found.plain > (found.lines / 10 if is_plain else -1)


def damaged(line: bytes) -> Iterator[bytes]:
    """Each truncation, each byte flipped, replaced or doubled."""
    for at in range(len(line)):
        yield line[:at]
        yield line[at:]
        yield line[:at] + line[at : at + 1] + line[at:]
        for byte in {line[at] ^ 1, line[at] ^ 0x20, line[at] ^ 0x80, *b'"\\ 0,}{]\x1f'} - {line[at]}:
            yield line[:at] + bytes([byte]) + line[at + 1 :]


@pytest.mark.parametrize("line", SAMPLES)
def test_every_truncation_and_flipped_byte(line: bytes) -> None:
    """Plain with the exact values, or not plain; alone, too, where the data ends with the line."""
    assert statuses([line], ALL_KINDS) == [kernels.PLAIN]
    lines = list(damaged(line))
    data, starts, ends = laid(lines, b"\n")
    assert differential.differences(data, starts, ends, ALL_KINDS).differences == []
    found = statuses(lines, ALL_KINDS)
    assert kernels.PLAIN in found
    assert kernels.NOT_PLAIN in found
    for number in range(0, len(lines), 7):
        assert statuses([lines[number]], ALL_KINDS, b"") == [found[number]], lines[number]


@pytest.mark.parametrize(
    "between", [b"", b'"', b"}", b'"}', b"0", b"Z", b"\xff", b"e", b"\\", b" ", b"null", b"\\u0041"]
)
def test_bytes_around_a_line_do_not_matter(between: bytes) -> None:
    """What stands before or behind it could end a text, a number or the record."""
    for samples, text in ((SAMPLES, ALL_KINDS), (CSV_SAMPLES, ALL_FIELDS)):
        lines = [line[:at] for line in samples for at in range(len(line) + 1)]
        assert statuses(lines, text, between) == statuses(lines, text, b"\n")


_AT_A_GUARDED_PAGE = """
import ctypes, mmap
import numpy as np
from deduper.text import block
from tests.deduper.text.json_lines import KINDS
from tests.deduper.text.test_text_kernels import ALL_FIELDS, ALL_KINDS, CSV_SAMPLES, SAMPLES

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * page)
whole = np.frombuffer(memory, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
for guard in (0, 2 * page):
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + guard), ctypes.c_size_t(page), 0) == 0
middle = whole[page : 2 * page]
json = [*SAMPLES, b"[" * 70, b'{"x":' + b"[" * 70, b'{"c0":"' + bytes(range(128, 256))]
csv = [*CSV_SAMPLES, b"," * 15, b'""', b"\\r" * 9, b" " * 9]
for line, format in ((line, format) for lines, format in ((json, ALL_KINDS), (csv, ALL_FIELDS)) for line in lines):
    for size in range(len(line) + 1):
        for text in (line[:size], line[len(line) - size :]):
            for start in (0, page - size):
                middle[:] = 10
                middle[start : start + size] = np.frombuffer(text, np.uint8)
                starts, ends = np.array([start]), np.array([start + size])
                cells, status = block._cells_of(block._bytes_of(middle), starts, ends, format)
                if status[0] == 0:
                    block.parse(middle, starts, ends, format, range(len(KINDS)))
                block.lines(middle[start:])
print("done")
"""


@pytest.mark.slow
def test_nothing_outside_the_data_is_read() -> None:
    """Lines at the first and at the last byte of a page between two that nobody may read."""
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", _AT_A_GUARDED_PAGE], cwd=root, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


_NOT = NotImplemented


@pytest.mark.parametrize(
    ("kind", "literals"),
    [
        ("tinyint", {"0": 0, "-0": 0, "127": 127, "-128": -128, "128": _NOT, "-129": _NOT, "1.0": _NOT, '"1"': _NOT}),
        ("smallint", {"32767": 32767, "-32768": -32768, "32768": _NOT, "-32769": _NOT, "1e2": _NOT, "01": _NOT}),
        ("int", {"2147483647": 2**31 - 1, "-2147483648": -(2**31), "2147483648": _NOT, "-2147483649": _NOT}),
        ("bigint", {"9223372036854775807": 2**63 - 1, "-9223372036854775807": 1 - 2**63, "": _NOT, "-": _NOT}),
        ("bigint", {"9223372036854775808": _NOT, "-9223372036854775808": _NOT, "9" * 19: _NOT, "1" + "0" * 19: _NOT}),
        # 64 bits take these for 5.
        ("bigint", {"18446744073709551621": _NOT, "-18446744073709551621": _NOT, "36893488147419103237": _NOT}),
        ("double", {"18446744073709551621": _NOT, "18446744073709551621e-1": _NOT, "1.8446744073709551621": _NOT}),
        ("double", {"18446744073709551616": _NOT, "0.18446744073709551616": _NOT}),
        ("timestamp", {"18446744073709551621": _NOT}),
        # Their double is in the middle of two floats, and they are not, or may not be.
        ("float", {"144115196665790464": _NOT, "144115196665790465": _NOT, "144115196665790496": 144115205255725056.0}),
        ("double", {"9007199254740993": 2.0**53, "9007199254740993.0": _NOT, "9007199254740993.5": 2.0**53 + 2}),
        ("double", {"-1.5e23": -1.5e23, "1.5e24": _NOT, "0.13436424411240122": 0.13436424411240122, "-0.0": -0.0}),
        ("double", {"1e22": 1e22, "1e23": _NOT, "1e-22": 1e-22, "1e-23": _NOT, "0": 0.0, "-0": 0.0, "-0e9": -0.0}),
        ("double", {"0e99": 0.0, "0.30": 0.3, "123.456E+2": 12345.6, "1.": _NOT, ".5": _NOT, "1e": _NOT, "NaN": _NOT}),
        ("float", {"0.1": float(np.float32(0.1)), "16777217": 16777216.0, "8388608.5": _NOT, "33554435e0": 33554436.0}),
        ("boolean", {"true": True, "false": False, "null": None, "True": _NOT, "tru": _NOT, "falsey": _NOT, "1": _NOT}),
        ("date", {'"2024-02-29"': 19782, '"0001-01-01"': -719162, '"9999-12-31"': 2932896, '"2023-02-29"': _NOT}),
        ("date", {'"1900-02-29"': _NOT, '"0000-01-01"': _NOT, '"2026-1-01"': _NOT, '"1970-01-02T?"': 1, "1": _NOT}),
        (
            "date",
            {'"2026-00-01"': _NOT, '"2026-13-01"': _NOT, '"2026-01-00"': _NOT, '"2026-01-32"': _NOT, "null": None},
        ),
        (
            "timestamp_ntz",
            {'"1970-01-01T00:00:01"': 10**6, '"1970-01-01 00:00:00.1"': 10**5, '"1970-01-01"': 0, "1": _NOT},
        ),
        ("timestamp", {'"1970-01-02"': 86_400_000_000, "1": 10**6, "-1": -(10**6), "1" + "0" * 12: _NOT, "1.5": _NOT}),
        ("timestamp_ntz", {'"1970-01-01T00:00:01Z"': _NOT, '"1970-01-01T24:00:00"': _NOT, '"1970-01-01T00:00"': _NOT}),
        (
            "timestamp_ntz",
            {'"1970-01-01T00:60:00"': _NOT, '"1970-01-01T00:00:60"': _NOT, '"1970-01-01t00:00:00"': _NOT},
        ),
        (
            "string",
            {'""': "", '"a"': "a", "1": "1", "true": "true", "{}": "{}", "[ ]": "[]", "'a'": _NOT, "null": None},
        ),
        (
            "string",
            {"-0": _NOT, "9" * 500: "9" * 500, "0.5": "0.5", "1.50": _NOT, "1.0": "1.0", "1.00": _NOT, "1e2": _NOT},
        ),
        ("string", {"0.001": "0.001", "0.0009": _NOT, "9999999.5": "9999999.5", "10000000.0": _NOT, "0.0": _NOT}),
        ("string", {"0.12345678901234": "0.12345678901234", "0.1234567890123456": _NOT, "-1.5": "-1.5"}),
        ("string", {'{ "a b" : [ 1 ,\t"c, d" ] }': '{"a b":[1,"c, d"]}', r'{"a":"\n"}': _NOT, '["😀"]': _NOT}),
        ("string", {'[{"é":null},true,-1,[]]': '[{"é":null},true,-1,[]]', r'{"\u0061":1}': _NOT, "[1.50]": _NOT}),
        ("string", {r'"\u0041\"\\\/\b\f\n\r\t"': 'A"\\/\b\f\n\r\t', r'"\x"': _NOT, r'"\u00g0"': _NOT, '"\t"': _NOT}),
        ("string", {r'"\ud83d\uDE00"': "😀", r'"\ud83d"': _NOT, r'"\ude00"': _NOT, r'"\ud83d\ud83d"': _NOT}),
        ("string", {r'"\ud7ff\ue000\uffff\u0000"': "\ud7ff\ue000\uffff\0", '"\x7f"': "\x7f", '"\u2028é"': "\u2028é"}),
        ("binary", {"null": None, '"YQ=="': b"a", '"YWI="': b"ab", '"YWJj"': b"abc", '""': b"", '"YWJjYQ=="': b"abca"}),
        ("binary", {'"YQ="': _NOT, '"YQ"': _NOT, '"Y==="': _NOT, '"===="': _NOT, '"YQ==YQ=="': _NOT, '"Y Q="': _NOT}),
        ("binary", {'"+/9="': b"\xfb\xff", '"-_9="': _NOT, r'"YQ\u003d="': _NOT, "1": _NOT, "{}": _NOT, '"é=="': _NOT}),
    ],
)
def test_what_is_plain(kind: str, literals: dict[str, Any]) -> None:
    """Both sides of every edge, and the value."""
    text = text_format(f"c {kind}")
    for literal, value in literals.items():
        found = plain_value(f'{{"c":{literal}}}', text)
        assert (found, type(found)) == (value, type(value)), literal


@pytest.mark.parametrize(
    ("kind", "literals"),
    [
        ("decimal(4,2)", {"99.99": "99.99", "100": None, "99.995": None, "99.994": "99.99", "-0": "0.00", "1e1": None}),
        (
            "decimal(4,2)",
            {"1.005": "1.01", "-1.005": "-1.01", "-0.004": "0.00", '"1.5"': "1.50", '"1,5"': None, '"1': None},
        ),
        ("decimal(4,0)", {"9999.4": "9999", "9999.5": None, "0.5": "1", "0." + "0" * 18 + "9": None}),
        (
            "decimal(4,2)",
            {"0.01": "0.01", "-99.9": "-99.90", "000.1": None, "0.010": "0.01", "1.5E0": None, "9" * 19: None},
        ),
        (
            "decimal(18,18)",
            {"0." + "9" * 18: "0." + "9" * 18, "1": None, "0": "0." + "0" * 18, "0.5": "0.5" + "0" * 17},
        ),
        ("decimal(38,0)", {"18446744073709551621": None, "1844674407370955162.1": None}),
        ("decimal(38,0)", {"9" * 18: "9" * 18, "1" + "0" * 18: None, "-1": "-1"}),
        ("decimal(38,19)", {"0": None, "0." + "0" * 18 + "1": "0." + "0" * 18 + "1", "0.1": None}),
        ("decimal(38,38)", {"0": None, "0.1": None}),
    ],
)
def test_plain_decimals(kind: str, literals: dict[str, str | None]) -> None:
    """At most 18 digits at the declared scale, and none to be rounded away."""
    text = text_format(f"c {kind}")
    for literal, value in literals.items():
        found = plain_value(f'{{"c":{literal}}}', text)
        assert (None if found is _NOT else f"{found:f}") == value, literal


@pytest.mark.parametrize(
    ("zone", "offset", "ahead"),
    [
        ("UTC", "", 0),
        ("Etc/UTC", "", 0),
        ("Europe/Berlin", "", None),
        ("Europe/Berlin", "Z", 0),
        ("UTC", "+17:59", 17 * 60 + 59),
        ("UTC", "-12:45", -765),
        ("UTC", "-00:00", 0),
        ("UTC", "+18:00", None),
        ("UTC", "+01:60", None),
        ("UTC", "+0100", None),
        ("UTC", "+01", None),
        ("UTC", "z", None),
        ("UTC", "Z ", None),
        ("UTC", "[UTC]", None),
        ("Europe/Berlin", "+00:00", 0),
        ("UTC", "ZZ", None),
        ("UTC", "+1:000", None),
    ],
)
@pytest.mark.parametrize("clock", ["00:00:00", "23:59:59.999999", "12:30:00.5"])
def test_plain_timestamps(zone: str, offset: str, ahead: int | None, clock: str) -> None:
    """The zone is Z or hours and minutes; without one the session's zone is UTC."""
    text = text_format("c timestamp", zone)
    for day, days in {"0001-01-01": -719_162, "1969-12-31": -1, "2000-02-29": 11_016, "9999-12-31": 2_932_896}.items():
        found = plain_value(f'{{"c":"{day}T{clock}{offset}"}}', text)
        hours, minutes, seconds = clock.split(":")
        of_day = (int(hours) * 60 + int(minutes)) * 60_000_000 + round(float(seconds) * 1e6)
        wanted = _NOT if ahead is None else days * 86_400_000_000 + of_day - ahead * 60_000_000
        assert found == wanted, day


@pytest.mark.parametrize(
    ("digits", "micros"), [("", 0), (".", _NOT), (".1234567", 123_456), (".999999999", 999_999), (".0000001", 0)]
)
def test_fractions_of_other_lengths(digits: str, micros: int) -> None:
    """What a timestamp does not hold is dropped; a point needs a digit behind it."""
    assert plain_value(f'{{"c":"1970-01-01T00:00:00{digits}Z"}}', text_format("c timestamp")) == micros


def test_every_double_of_the_writers() -> None:
    """The shortest text of a double of usual size is plain and gives back its bits; texts beside it are right too."""
    rng = random.Random(3)
    doubles = [rng.choice((rng.random(), rng.uniform(-1e6, 1e6), rng.lognormvariate(0, 9))) for _ in range(20_000)]
    texts = [repr(double) for double in doubles if 1e-4 < abs(double) < 1e16]
    texts += [f"{text[:-1]}{digit}" for text in texts for digit in (rng.randrange(10), "25", "5")]
    data, starts, ends = laid([f'{{"c":{text}}}'.encode() for text in texts])
    text = text_format("c double")
    status = block._cells_of(block._bytes_of(data), starts, ends, text)[1]
    found = block.parse(data, starts, ends, text, [0]).columns[0].to_pylist()
    assert found == [float(one) for one in texts]
    # Texts in the middle of two doubles are not.
    assert (status == kernels.PLAIN).mean() > 0.99
    assert (status[:15_000] == kernels.PLAIN).all()


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [
        ("{}", True),
        (" \t{ \t} \t\r", True),
        ("", False),
        ("  ", False),
        ("{", False),
        ("{}}", False),
        ("{}x", False),
        ("[]", False),
        ("\r{}", False),
        ("{\r}", False),
        ("\ufeff{}", False),
        ('{"a":1,}', False),
        ('{,"a":1}', False),
        ('{"a":1 "b":2}', False),
        ('{"a":1,,"b":2}', False),
        ('{"a"1}', False),
        ('{"a":}', False),
        ("{a:1}", False),
        ('{"a":1,"a":2}', False),
        ('{"a":null,"a":null}', False),
        ('{"x":1,"x":2}', True),
        (r'{"\u0061":1}', False),
        (r'{"\u0078":1}', False),
        (r'{"x":{"\u0061":1}}', True),
        ('{"":1,"b":2,"a":3}', True),
        ('{"A":"other","ab":[],"aa":{}}', True),
        ('{"x":' + "[" * 60 + "]" * 60 + "}", True),
        ('{"x":' + "[" * 61 + "]" * 61 + "}", False),
        ('{"x":' + '{"y":' * 60 + "1" + "}" * 60 + "}", True),
        ('{"x":' + '{"y":' * 61 + "1" + "}" * 61 + "}", False),
        ('{"x":[1,]}', False),
        ('{"x":[,1]}', False),
        ('{"x":{"y":1,}}', False),
        ('{"x":[}]}', False),
        ('{"x":{]}', False),
        ('{"x":[1}]', False),
        ('{"x":[[]}', False),
        ('{"x":01}', False),
        ('{"x":[ ]}', True),
        ('{"x":{ }}', True),
        ('{"x":[{},[],"",null,true,false,-1.5e+3]}', True),
        ('{"x":' + "1" * 500 + "}", True),
        ('{"x":' + "1" * 501 + "}", False),
        ('{"x":1e' + "9" * 400 + "}", True),
        ('{"' + "x" * 9_999 + '":1}', True),
        ('{"' + "x" * 10_001 + '":1}', False),
        ('{"x":{"' + "x" * 10_001 + '":1}}', False),
    ],
)
def test_which_records_are_plain(line: str, is_plain: bool) -> None:
    """Strict JSON of one object, with no doubt about its fields."""
    text = text_format("a int, b int")
    assert statuses([line.encode()], text) == [kernels.PLAIN if is_plain else kernels.NOT_PLAIN]


@pytest.mark.parametrize("name", ['a":1,"b', "a\\", 'quo"ted', "tab\there"])
def test_names_that_need_escapes_are_not_found_in_other_bytes(name: str) -> None:
    """Such a column is null in every plain line, whatever its bytes look like between quotes."""
    column = replace(text_format("x int").columns[0], name=name)
    text = TextFormat((column, *text_format("c string").columns), "UTC")
    assert plain_value('{"a":1,"b":2}', text) is None
    assert plain_value(f'{{"{name}":1}}', text) in (None, NotImplemented)
    assert plain_value('{"a\\":1,"c":"x"}', text) is NotImplemented


def utf8_cases() -> Iterator[bytes]:
    """All of two bytes, and of three and four those where a rule ends."""
    edges = (
        0x00,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xED,
        0xEF,
        0xF0,
        0xF4,
        0xF5,
        0xFF,
    )
    for first in range(0x80, 0x100):
        yield bytes([first])
        for second in range(0x100):
            yield bytes([first, second])
        for second in edges:
            for third in edges:
                yield bytes([first, second, third])
                if first >= 0xEE:
                    for fourth in edges:
                        yield bytes([first, second, third, fourth])


@pytest.mark.slow
def test_utf8_as_python_has_it() -> None:
    """No overlong form, no surrogate, nothing above U+10FFFF, nothing cut off."""
    lines = list(utf8_cases())
    data, starts, ends = laid(lines, b"\x80")
    found = block._cells_of(block._bytes_of(data), starts, ends, text_format("a int"))[1] == kernels.NOT_UTF8
    wrong = [line for line, one in zip(lines, found, strict=True) if one != differential._is_broken(line)]
    assert wrong == []
    assert not found.all()


@given(st.text(), st.binary(max_size=3), st.text())
def test_utf8_among_other_signs(before: str, middle: bytes, behind: str) -> None:
    """Wherever the bad bytes stand."""
    line = before.encode() + middle + behind.encode()
    assert (statuses([line], ALL_KINDS) == [kernels.NOT_UTF8]) == differential._is_broken(line)


@given(st.text(), st.randoms())
def test_texts_come_out_as_they_were(value: str, rng: random.Random) -> None:
    """With each sign as it is, or as one of its escapes."""
    known = {'"': r"\"", "\\": r"\\", "/": r"\/", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    written = []
    for sign in value:
        units = sign.encode("utf-16-be").hex()
        escaped = "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        choices = [escaped, escaped.upper().replace(r"\U", r"\u"), known.get(sign, escaped)]
        if sign not in '"\\' and ord(sign) >= 0x20:
            choices += [sign] * 3
        written.append(rng.choice(choices))
    assert plain_value(f'{{"c":"{"".join(written)}"}}', text_format("c string")) == value


# --- CSV


def plain_field(field: str, kind: str) -> Any:
    """The value of a plain line of one field; `NotImplemented` when it is not plain."""
    return plain_value(field, csv_format(f"c {kind}", ";"))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            "tinyint",
            {"0": 0, "-0": 0, "+7": 7, "-007": -7, "127": 127, "-128": -128, "128": _NOT, "-129": _NOT, "-": _NOT},
        ),
        ("tinyint", {"+": _NOT, " 1": _NOT, "1 ": _NOT, "1.0": _NOT, "\u0661": _NOT, '"1"': 1, '"1""1"': _NOT}),
        (
            "bigint",
            {
                "9223372036854775807": 2**63 - 1,
                "-9223372036854775807": 1 - 2**63,
                "1234567890123456789": 1234567890123456789,
            },
        ),
        (
            "bigint",
            {"9223372036854775808": _NOT, "-9223372036854775808": _NOT, "18446744073709551621": _NOT, "0" * 20: _NOT},
        ),
        (
            "double",
            {"1": 1.0, "-0": -0.0, "1.5": 1.5, "-1.5e3": -1500.0, "1e22": 1e22, "1e23": _NOT, "01": _NOT, ".5": _NOT},
        ),
        (
            "double",
            {"5.": _NOT, "+1": _NOT, "1d": _NOT, " 1": _NOT, "NaN": _NOT, "Inf": _NOT, '"0.1"': 0.1, "1e5x": _NOT},
        ),
        ("float", {"0.1": float(np.float32(0.1)), "16777217": 16777216.0, "8388608.5": _NOT, "-0": -0.0}),
        (
            "boolean",
            {"true": True, "TRUE": True, "tRue": True, "false": False, "False": False, "tru": _NOT, "falsey": _NOT},
        ),
        (
            "boolean",
            {"t": _NOT, "1": _NOT, "\x14rue": _NOT, "fals": _NOT, "false ": _NOT, "trueE": _NOT, '"true"': True},
        ),
        (
            "date",
            {"2024-02-29": 19782, "2024-02-29T?": 19782, "2024-02-29 ": 19782, "2023-02-29": _NOT, "2024-2-29": _NOT},
        ),
        ("date", {"2024-02-29x": _NOT, "2024-02-2": _NOT, '"1970-01-02 a"': 1, "19700-01-02": _NOT}),
        ("timestamp", {"1970-01-01T00:00:01Z": 10**6, "1970-01-01 00:00:00.5": 500_000, "1970-01-02": 86_400_000_000}),
        (
            "timestamp",
            {"1970-01-01T00:00:01": 10**6, "1": _NOT, "1970-01-01T00:00:01Zx": _NOT, "1970-01-01T00:00": _NOT},
        ),
        (
            "timestamp",
            {"1970-01-01T00:00:01.": _NOT, '"1970-01-01T00:00:01+00:01"': -59_000_000, "1970-01-01T00:00:01+00": _NOT},
        ),
        ("timestamp_ntz", {"1970-01-01T00:00:01": 10**6, "1970-01-01T00:00:01Z": _NOT, "1970-01-01": 0, "": _NOT}),
        (
            "string",
            {
                "a": "a",
                " a ": " a ",
                '"a"': "a",
                '"a""b"': 'a"b',
                '""""': '"',
                '""': None,
                '"a;b"': "a;b",
                "'a'": "'a'",
            },
        ),
        (
            "string",
            {
                "": _NOT,
                " ": _NOT,
                "   ": _NOT,
                "\t": "\t",
                "\r": _NOT,
                "a\r": "a",
                "a\r\r": "a",
                "a\rb": "a\rb",
                "a;": _NOT,
            },
        ),
        (
            "string",
            {'a"b': _NOT, '"a': _NOT, '"a"b': _NOT, '"a" ': _NOT, ' "a"': _NOT, '"': _NOT, '"""': _NOT, '"a""': _NOT},
        ),
        (
            "string",
            {'"eight by""tes; ""and"" more"': 'eight by"tes; "and" more', "\0\uffffé": "\0\uffffé", '"a\nb"': "a\nb"},
        ),
        ("binary", {"YQ==": b"YQ==", '"é"': "é".encode(), '"a""b"': b'a"b', '""': None}),
    ],
)
def test_what_is_a_plain_field(kind: str, fields: dict[str, Any]) -> None:
    """Both sides of every edge, and the value."""
    for field, value in fields.items():
        found = plain_field(field, kind)
        assert (repr(found), type(found)) == (repr(value), type(value)), field


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            "decimal(4,2)",
            {"99.99": "99.99", "100": None, "99.995": None, "-1.005": "-1.01", "-0": "0.00", "1e1": None, "+1": None},
        ),
        ("decimal(38,19)", {"0." + "0" * 18 + "1": "0." + "0" * 18 + "1", "0.1": None, "01": None}),
    ],
)
def test_plain_decimals_of_csv(kind: str, fields: dict[str, str | None]) -> None:
    """As in JSON."""
    for field, value in fields.items():
        found = plain_field(field, kind)
        assert (None if found is _NOT else f"{found:f}") == value, field


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a,1", ["a", 1]),
        ("a", ["a", None]),
        ("a,", ["a", None]),
        (",1", [None, 1]),
        (",", [None, None]),
        ('"a",""\r', ["a", None]),
        *((line, None) for line in ("a,1,", "a,1,2", '"a", 1', '"a" ,1', 'a,"1')),
    ],
)
def test_fields_of_a_plain_line(line: str, expected: list[Any] | None) -> None:
    """Missing ones are null, too many are not plain."""
    text = csv_format("s string, n int")
    data, starts, ends = laid([line.encode()])
    found = block.parse(data, starts, ends, text, [0, 1])
    assert (found.slow_lines == 0) == (expected is not None)
    if expected is not None:
        assert [found.columns[number].to_pylist()[0] for number in (0, 1)] == expected


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), min_size=1))
def test_texts_of_csv_come_out_as_they_were(value: str) -> None:
    """Within quotes."""
    assert plain_field(csv_lines.written(value, ";", always=True), "string") == value
