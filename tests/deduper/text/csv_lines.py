"""Lines of CSV for the parsers, by seed: ordinary lines, odd ones, and mutants of both, as `json_lines` has them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from deduper.columns import ColumnType
from deduper.text.format import TextFormat
from tests.deduper.text import json_lines

DELIMITERS = (",", ",", ",", ",", ",", ";", "\t", "|", " ", "\0", "1", ".", "-", "e", "é", "😀")

_ODD_FIELDS = (
    '"', '""', '"""', '""""', '"a', '"a"x', '"a" ', '"a"\t', '"a" x', '"a"\r', '"a""', '"a""x', '"a""b"c', 'a"',
    'a"b"c', ' "a"', '"a"b"c"', '"" ""', '" "', '"\u3000"', '"a"\u00a0', '"a"\x1f', '"a"!', "'a'", "\\", '"\\"',
    '"a\\""', '"\n"', "\n", "\r", "a\r", "\uffff", "\ufeff", " ", "  ", "\t", "null", "NULL", "\\N",
)  # fmt: skip
_ODD_VALUES = (
    "+1", "-1", "007", "-007", "+", "-", "--1", "+-1", " 1", "1 ", "\t1.5\x1f", "\u0661", "\uff11\u0662",
    "\U0001d7d9", "+\u0663", "1\u0660.5", "1f", "1d", "1.5D", "1e5F", "1ff", "1L", ".5", "5.", ".", "+.5e-3", "e5",
    ".e5", "1e+", "0x1p3", "0x1", "Inf", "-Inf", "+Inf", "NaN", "+NaN", "-NaN", "Infinity", "+Infinity", "-Infinity",
    "inf", "nan", " NaN", "Infinity\t", "Inf ", "Inff", "TRUE", "True", "tRuE", "FALSE", "False", "ſalse", "t", "1,5",
    "1,234.5", ",1", ",", "1e99999", "1e100000", "1e-000000000000005", "0e99999999", "0" * 30 + "1", "9" * 19,
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "00009223372036854775807", "18446744073709551621",
)  # fmt: skip


def csv_format(ddl: str, delimiter: str = ",", zone: str = "UTC") -> TextFormat:
    """The columns of a DDL string as lines of CSV declare them."""
    return replace(json_lines.text_format(ddl, zone), delimiter=delimiter)


def random_format(rng: random.Random) -> TextFormat:
    """One to ten columns of any kinds."""
    return replace(json_lines.random_format(rng), delimiter=rng.choice(DELIMITERS))


def written(text: str, delimiter: str, *, always: bool = False) -> str:
    """A field as writers of CSV write it."""
    if not always and not any(sign in text for sign in (delimiter, '"', "\r", "\n")):
        return text
    return '"' + text.replace('"', '""') + '"'


def ordinary_field(kind: ColumnType, rng: random.Random, text: TextFormat) -> str:
    """A field as writers of CSV write it, which is plain."""
    assert text.delimiter is not None
    value = bare(json_lines.ordinary_value(kind, rng, text.zone))
    while kind.name == "timestamp" and value.lstrip("-").isdigit():  # seconds, in JSON
        value = bare(json_lines.ordinary_value(kind, rng, text.zone))
    return written(value, text.delimiter, always=rng.random() < 0.1)


def bare(value: str) -> str:
    """A value of JSON without its quotes; as it is when it is none."""
    try:
        found = json.loads(value) if value.startswith('"') else value
    except ValueError:
        found = value
    return str(found).encode("utf-8", "replace").decode()


def odd_field(rng: random.Random, text: TextFormat) -> str:
    """A field for any column: edges of every kind, and what is none; quotes in any place."""
    assert text.delimiter is not None
    choice = rng.random()
    if choice < 0.3:
        return rng.choice(_ODD_FIELDS)
    value = bare(json_lines.odd_value(rng)) if choice < 0.6 else rng.choice(_ODD_VALUES)
    return value if rng.random() < 0.2 else written(value, text.delimiter, always=rng.random() < 0.3)


def ordinary_line(text: TextFormat, rng: random.Random) -> bytes:
    """A line as writers of CSV write it: some fields empty, some missing at the end."""
    assert text.delimiter is not None
    count = len(text.columns) if rng.random() < 0.9 else rng.randint(1, len(text.columns))
    fields = ["" if rng.random() < 0.05 else ordinary_field(one.kind, rng, text) for one in text.columns[:count]]
    return (text.delimiter.join(fields) + rng.choice(("", "", "", "\r"))).replace("\n", " ").encode()


def odd_line(text: TextFormat, rng: random.Random) -> bytes:
    """A line with one or two odd fields, too many, too few, or none."""
    assert text.delimiter is not None
    fields = []
    for column in text.columns:
        is_odd = rng.random() < 0.3
        fields.append(odd_field(rng, text) if is_odd else ordinary_field(column.kind, rng, text))
    match rng.randrange(12):
        case 0:
            fields.append(rng.choice(("", "x", '"', '"x"')))
        case 1:
            fields = fields[: rng.randrange(len(fields))]
        case 2:
            fields = [field[:1] for field in fields]
    line = text.delimiter.join(fields) + rng.choice(("", "", "", "\r", "\r\r", " ", " \r"))
    return line.encode("utf-8", "surrogatepass").replace(b"\n", b" " if rng.random() < 0.5 else b"\x0b")


_BYTES = np.frombuffer(
    b'"""",,,;|\t \r0123456789-+.eETZ:truefalsNIn\0\x01\x1f\x20\x7f\x80\xbf\xc0\xc2\xe0\xed\xef\xf0\xf4\xf5\xff',
    np.uint8,
)


def block_of(text: TextFormat, lines: int, seed: int) -> NDArray[np.uint8]:
    """Some so many lines: a quarter ordinary, the others odd or mutated, with a line end behind each."""
    rng = random.Random(seed)
    base = [ordinary_line(text, rng) if rng.random() < 0.8 else odd_line(text, rng) for _ in range(max(1, lines // 8))]
    return json_lines.with_mutants(base, np.random.default_rng(seed), _BYTES)


def samples(text: TextFormat, seed: int, count: int) -> Iterator[bytes]:
    """Ordinary lines."""
    rng = random.Random(seed)
    for _ in range(count):
        yield ordinary_line(text, rng)
