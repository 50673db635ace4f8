"""Lines of JSON for the parsers, by seed: formats of any columns, ordinary lines, odd ones, and mutants of both."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import ColumnType, parse_columns, quoted
from deduper.text.format import TextFormat

KINDS = (
    "string",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "double",
    "float",
    "decimal(10,2)",
    "decimal(18,18)",
    "decimal(30,3)",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
)
NAMES = (
    "k",
    "ts",
    "payload",
    "id",
    "a",
    "A",
    "ab",
    "é",
    "user name",
    "a.b",
    "null",
    'quo"ted',
    "back\\slash",
    "x" * 40,
)
ZONES = ("UTC", "Etc/UTC", "Europe/Berlin", "America/St_Johns", "+05:30")

_TEXTS = (
    "", "a", "user-17", "seven b", "eight by", "nine byte", "naïve €", "😀 and more", "\x7f", "x" * 15, "x" * 16,
    "x" * 17, "long " * 30, "1", "true", "null", "2026-01-01", "}", "{", "[", ",", ":", "a,b", "\u2028", "\ufeff",
    "\uffff", "日本語",
)  # fmt: skip
_ESCAPED = (
    r"\"", r"\\", r"\/", r"\b\f\n\r\t", r"\u0041", r"\u00e9", r"\u20ac", r"\ud83d\ude00", r"\uD83D\uDE00", r"\u0000",
    r"\uFFFF", r"a\nb", r"eight by\t", r"1234567\\", r"\\\\\\", r"\\\"", r"\udbff\udfff", r"\ud800\udc00",
    r"\u07ff\u0800",
)  # fmt: skip
_ODD_ESCAPES = (
    r"\ud83d", r"\ude00", r"\ud83d\n", r"\ud83dx", r"\ud83d\u0041", r"\ud83d\ud83d\ude00", r"\x41", r"\'", r"\a",
    r"\u12", r"\u12g4", r"\U0041", r"\u+041", r"\u 041", r"\0", "\\", "\\\\\\", "tab\there", "nul\0", "\x1f", "\r",
)  # fmt: skip
_NUMBERS = (
    "0", "1", "-1", "9", "10", "127", "128", "-128", "-129", "32767", "32768", "-32768", "-32769", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "999999999999999999", "1000000000000000000", "-999999999999999999", "9007199254740991",
    "9007199254740992", "9007199254740993", "-0", "0.0", "-0.0", "0e0", "-0e5", "0.00", "1.0", "1e2", "1E2", "1e+2",
    "1e-2", "100e-2", "1.5", "-1.5", "0.1", "0.25", "12.34", "12.345", "99999999.99", "100000000.00", "99999999.994",
    "99999999.995", "0.000000000000000001", "0.0000000000000000001", "1e22", "1e23", "1e-22", "1e-23", "1e38", "1e39",
    "1e308", "1e309", "1e-45", "1e-46", "1e-324", "1e400", "1e-400", "123456789012345678901234567", "16777217",
    "16777217.0", "16777219", "33554433", "33554435", "1.00000005960464477539", "8388608.5", "8388609.5",
    "4503599627370497.5", "179769313486231570000", "0.30000000000000004", "9007199254740991e22", "9007199254740991e-22",
    "72057594037927935", "0.1e1", "1.e1", "000000000000000000000000000001", "0.000000000000000000000000000001",
    "1" * 30, "1" * 400, "1" * 600, "0." + "0" * 600,
)  # fmt: skip
_ODD_NUMBERS = (
    "01", "-01", "00", "+1", ".5", "-.5", "1.", "-", "+", "1e", "1e+", "e1", "0x10", "1_000", "NaN", "Infinity",
    "-Infinity", "+Infinity", "INF", "-INF", "nan", "1f", "1d", "1L", "--1", "1-", "1.2.3", "1e2e3", "1 2", "١",
)  # fmt: skip
_DAYS = (
    "2026-01-01", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "2024-02-29", "2000-02-29", "1900-02-28",
    "1600-02-29", "2023-12-31", "2024-12-31", "1582-10-04", "1582-10-10", "1582-10-15", "0004-02-29", "0100-02-28",
    "2024-03-01", "2026-11-30",
)  # fmt: skip
_ODD_DAYS = (
    "0000-01-01", "2023-02-29", "1900-02-29", "2026-04-31", "2026-00-01", "2026-13-01", "2026-01-00", "2026-01-32",
    "2026-1-1", "26-01-01", "2026-01", "2026", "+2026-01-01", "-2026-01-01", "10000-01-01", "2026-01-01 ",
    " 2026-01-01", "2026/01/01", "2026-01-0a", "20260101", "2026-01-01T", "2O26-01-01", "12345", "", "2026-W01-1",
    "2026-001", "today", "epoch",
)  # fmt: skip
_CLOCKS = (
    "00:00:00", "23:59:59", "12:34:56", "00:00:01", "10:20:30.1", "10:20:30.12", "10:20:30.123", "10:20:30.123456",
    "23:59:59.999999", "01:02:03.123456789",
)  # fmt: skip
_AS_WRITTEN = (
    "17", "-1", "true", "false", "12345678901234567890123", "1.5", "-0.25", "{}", "[]", '{"a":1,"b":[true,null,"x y"]}',
    '{ "a b" : [ 1 , 2.5 ] ,\t"é":{} }', '[ "a, b" ]', "0.001", "9999999.5", "[[],{}]",
)  # fmt: skip
_ODD_CLOCKS = (
    "24:00:00", "23:60:00", "23:59:60", "1:2:3", "10:20", "10", "10:20:30.", "10:20:30.1234567", "10:20:30.123456789",
    "10:20:30,5", "10.20.30", "102030", "10:20:3a", "10:20:30.12a", "1O:20:30", "10:20:30 ",
)  # fmt: skip
_OFFSETS = ("Z", "+00:00", "-00:00", "+01:00", "-01:00", "+05:30", "-12:45", "+17:59", "-17:59")
_ODD_OFFSETS = (
    "", " Z", "z", "+18:00", "-18:00", "+18:01", "+01", "+0100", "+1:00", "+01:60", "UTC", "GMT", " UTC",
    "Europe/Berlin", " Europe/Berlin", "[Europe/Berlin]", "+01:00:00", "+01:00:30", "ZZ", "+", "+aa:bb", "UTC+01:00",
    "CET", "+01:0", "X", "EST",
)  # fmt: skip
_NESTED = (
    "{}", "[]", "[1,2]", '{"k":1}', '{"a":{"b":[{}]}}', '[[],[[]],{"a":null}]', '[ true , false , null ]',
    '{ "a" : 1.5e3 , "b":"x" }', '["\\n","\\ud83d\\ude00"]', "[" * 59 + "]" * 59, "[" * 60 + "]" * 60,
    "[" * 61 + "]" * 61, '{"a":' * 30 + "1" + "}" * 30, '[-0.0,1E400]',
)  # fmt: skip
_ODD_NESTED = (
    "[1,]", "[,1]", '{"a":1,}', '{"a"}', '{"a":}', "{a:1}", "[1 2]", '{"a":1 "b":2}', "[}", "{]", "[1", '{"a":1',
    "[1]]", "{1:2}", '["\\ud83d"]', '["\t"]', "[tru]", "[nul]", "[falsee]", "[01]", "[+1]", "[.1]", "[NaN]", "['a']",
    "{'a':1}", "[//x\n1]", "[/**/]", '{"a":1,"a":2}', '{"\\u0061":1}', "[\u00a01]", "[\f1]",
)  # fmt: skip
_WORDS = ("true", "false", "null")
_ODD_WORDS = (
    "True",
    "TRUE",
    "tru",
    "truee",
    "fals",
    "falsee",
    "nul",
    "nulll",
    "None",
    "yes",
    "t",
    "undefined",
    "'a'",
    "a",
    "",
)


def text_format(ddl: str, zone: str = "UTC") -> TextFormat:
    """The columns of a DDL string as lines declare them."""
    return TextFormat(tuple(map(DeclaredColumn.of, parse_columns(ddl))), zone)


def random_format(rng: random.Random) -> TextFormat:
    """One to ten columns of any kinds."""
    count = rng.choice((1, 2, 3, 3, 4, 6, 10))
    names: list[str] = []
    for name in rng.sample(NAMES, count):
        # Names that differ only in case are not declared together.
        if name.lower() not in [other.lower() for other in names]:
            names.append(name)
    columns = ", ".join(f"{quoted(name)} {rng.choice(KINDS)}" for name in names)
    return text_format(columns, rng.choice(ZONES))


def ordinary_value(kind: ColumnType, rng: random.Random, zone: str) -> str:
    """A value as writers of JSON write it, which is plain."""
    match kind.name:
        case "string":
            if rng.random() < 0.1:
                return rng.choice(_AS_WRITTEN)
            return f'"{rng.choice(_TEXTS)}{rng.choice(_ESCAPED) if rng.random() < 0.2 else ""}{rng.choice(_TEXTS)}"'
        case "binary":
            return f'"{base64.b64encode(rng.randbytes(rng.randrange(20))).decode()}"'
        case "tinyint" | "smallint" | "int" | "bigint":
            most = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[kind.name]
            number = rng.getrandbits(rng.randint(0, most))
            return str(number if rng.random() < 0.7 else -number)
        case "double":
            if rng.random() < 0.3:
                return repr(rng.choice((rng.random(), rng.uniform(-180, 180), rng.gauss(0, 1e6), 0.0, -0.0)))
            number = rng.randint(1, 10 ** rng.randint(1, 15) - 1)
            return _with_point(rng, number if rng.random() < 0.7 else -number, 20)
        case "float":
            return _with_point(rng, rng.randint(1, 2**24) * rng.choice((-1, 1)), 9)
        case "decimal":
            scale, most = kind.scale or 0, min(kind.precision or 0, 18)
            fraction = rng.randint(0, scale) if scale else 0
            number = rng.randrange(10 ** max(0, most - (scale - fraction)))
            whole, rest = divmod(number, 10**fraction)
            written = f"{rng.choice(('', '-'))}{whole}" + (f".{rest:0{fraction}d}" if fraction else "")
            return f'"{written}"' if rng.random() < 0.2 else written
        case "boolean":
            return rng.choice(("true", "false"))
        case "date":
            return f'"{_day(rng)}{rng.choice(("", "", "T", " 00:00:00"))}"'
        case "timestamp":
            if rng.random() < 0.1:
                return str(rng.randrange(-(10**11), 10**12))
            bare = zone in ("UTC", "Etc/UTC") and rng.random() < 0.3
            return f'"{_time(rng)}{"" if bare else rng.choice(_OFFSETS)}"'
        case "timestamp_ntz":
            return f'"{_time(rng)}"'
    raise ValueError(kind)


def _with_point(rng: random.Random, number: int, places: int) -> str:
    """The number as it is, or with a point in it, or a power of ten behind it, so that few powers are beyond 10^22."""
    form = rng.random()
    if form < 0.3:
        return str(number)
    if form < 0.7:
        digits = f"{abs(number):04d}"
        place = rng.randint(1, len(digits) - 1)
        whole = digits[:-place].lstrip("0") or "0"
        return f"{'-' if number < 0 else ''}{whole}.{digits[-place:]}"
    return f"{number}{rng.choice('eE')}{rng.choice(('', '-'))}{rng.randint(0, places)}"


def _day(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return rng.choice(_DAYS)
    return f"{rng.randint(1, 9999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _time(rng: random.Random) -> str:
    return f"{_day(rng)}{rng.choice('T T')}{rng.choice(_CLOCKS)}"


def odd_value(rng: random.Random) -> str:
    """A value for any column: edges of every kind, and what is none."""
    match rng.randrange(9):
        case 0:
            return f'"{rng.choice(_TEXTS)}{rng.choice(_ODD_ESCAPES + _ESCAPED)}{rng.choice(_TEXTS)}"'
        case 1 | 2:
            return rng.choice(_NUMBERS)
        case 3:
            if rng.random() < 0.5:
                # Of more digits than a double has, and often in the middle of two.
                number = rng.choice(
                    (rng.randrange(10**15, 10**20), (2**53 + rng.randrange(2**20)) * rng.choice((1, 5, 25)))
                )
                return _with_point(rng, number if rng.random() < 0.7 else -number, 24)
            return rng.choice(_ODD_NUMBERS)
        case 4:
            return f'"{rng.choice(_ODD_DAYS + _DAYS)}"'
        case 5:
            day, clock = rng.choice((rng.choice(_DAYS), rng.choice(_ODD_DAYS))), rng.choice(_CLOCKS + _ODD_CLOCKS)
            return f'"{day}{rng.choice("TTTT t")}{clock}{rng.choice(_OFFSETS + _ODD_OFFSETS)}"'
        case 6:
            return rng.choice(_NESTED + _ODD_NESTED) if rng.random() < 0.6 else _nested(rng, 3)
        case 7:
            return f'"{rng.choice(_NUMBERS + _ODD_NUMBERS + _WORDS)}"'
    return rng.choice(_WORDS + _ODD_WORDS)


def _nested(rng: random.Random, depth: int) -> str:
    """An object or array of any values, with blanks or without."""
    blank = rng.choice(("", "", " ", "\t "))
    values = []
    for _ in range(rng.randrange(4)):
        value = _nested(rng, depth - 1) if depth and rng.random() < 0.3 else odd_value(rng)
        values.append(f"{value}{blank}" if rng.random() < 0.5 else f"{rng.choice(_NUMBERS[:60])}{blank}")
    if rng.random() < 0.5:
        return f"[{blank}{f',{blank}'.join(values)}]"
    fields = [f"{json.dumps(rng.choice(_TEXTS), ensure_ascii=False)}:{value}" for value in values]
    return f"{{{blank}{f',{blank}'.join(fields)}}}"


def ordinary_line(text: TextFormat, rng: random.Random) -> bytes:
    """A line as writers of JSON write it: fields in order, some missing, some null, some unknown."""
    fields = []
    blank, colon = rng.choice((("", ":"), ("", ":"), (" ", ": "), (" ", " :\t")))
    for column in text.columns:
        if rng.random() < 0.1:
            continue
        if rng.random() < 0.1:
            fields.append(f'"other{rng.randrange(10)}"{colon}{rng.choice((*_NESTED[:8], "1", "-2.5e7", "true"))}')
        if any(sign in '"\\' for sign in column.name):
            continue
        value = "null" if rng.random() < 0.05 else ordinary_value(column.kind, rng, text.zone)
        fields.append(f'"{column.name}"{colon}{value}')
    if rng.random() < 0.1:
        rng.shuffle(fields)
    return f"{{{f',{blank}'.join(fields)}}}".encode()


def odd_line(text: TextFormat, rng: random.Random) -> bytes:
    """A line with one or two odd values, fields twice, names with escapes or unknown."""
    fields = []
    for column in text.columns:
        name = json.dumps(column.name, ensure_ascii=rng.random() < 0.1)
        if rng.random() < 0.03:
            name = f'"\\u{ord(column.name[0]):04x}{column.name[1:]}"'
        value = odd_value(rng) if rng.random() < 0.3 else ordinary_value(column.kind, rng, text.zone)
        fields.append(f"{name}{rng.choice((':', ':', ': ', ' :'))}{value}")
    if rng.random() < 0.3:
        fields.append(f'"{rng.choice((*NAMES[:5], "x", ""))}":{odd_value(rng)}')
    if rng.random() < 0.1:
        fields.append(rng.choice(fields))
    line = f"{{{rng.choice((',', ',', ', ')).join(fields)}}}"
    match rng.randrange(12):
        case 0:
            line += rng.choice(("\r", " ", "\t\r", " x", "}", "{}", ",", "\0", "\u00a0", "//", "#"))
        case 1:
            line = rng.choice((" ", "\t", "\ufeff", "[", "x", "\r", "\0")) + line
    return line.encode("utf-8", "surrogatepass").replace(b"\n", b" ")


_BYTES = np.frombuffer(
    b'{}[]":,\\/ \t\r0123456789-+.eEuntfalsTZbr\0\x01\x1f\x20\x7f\x80\xbf\xc0\xc2\xe0\xed\xef\xf0\xf4\xf5\xff', np.uint8
)


def mutated(
    block: NDArray[np.uint8], share: float, rng: np.random.Generator, signs: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """The block with so many bytes of it replaced, put in, taken out, or made line ends."""
    count = max(1, int(block.size * share))

    def places() -> NDArray[np.int64]:
        found = rng.integers(0, block.size, count)
        return found[block[found] != 10]

    block = block.copy()
    at = places()
    block[at] = rng.choice(signs, at.size)
    at = places()[: count // 2]
    block[at] ^= np.uint8(1) << rng.integers(0, 8, at.size).astype(np.uint8)
    block = np.delete(block, places())
    at = places()
    block = np.insert(block, at, block[np.maximum(at - rng.integers(0, 4, at.size), 0)])
    at = places()[: count // 2]
    block = np.insert(block, at, rng.choice(signs, at.size))
    return np.insert(block, places()[: count // 4], 10)


def block_of(text: TextFormat, lines: int, seed: int) -> NDArray[np.uint8]:
    """Some so many lines: a quarter ordinary, the others odd or mutated, with a line end behind each."""
    rng = random.Random(seed)
    base = [ordinary_line(text, rng) if rng.random() < 0.8 else odd_line(text, rng) for _ in range(max(1, lines // 8))]
    return with_mutants(base, np.random.default_rng(seed), _BYTES)


def with_mutants(base: Sequence[bytes], rng: np.random.Generator, signs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Lines twice as they are, and six times mutated by these signs."""
    whole = np.frombuffer(b"\n".join(base) + b"\n", np.uint8)
    parts = [whole, whole, *(mutated(np.tile(whole, 3), share, rng, signs) for share in (0.002, 0.008))]
    return np.concatenate(parts)


def samples(text: TextFormat, seed: int, count: int) -> Iterator[bytes]:
    """Ordinary lines."""
    rng = random.Random(seed)
    for _ in range(count):
        yield ordinary_line(text, rng)


def laid(lines: Sequence[bytes], between: bytes = b"") -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """(data, starts, ends) of lines one behind another, with some bytes before, between and behind."""
    sizes = np.array([len(line) for line in lines], np.int64)
    ends = np.cumsum(sizes + len(between))
    return between + between.join(lines) + between, ends - sizes, ends
