"""Blocks to lines, and lines to Arrow columns, whichever parser takes a line."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.text import block, kernels
from deduper.text.block import Parsed
from deduper.text.format import TextFormat
from tests.deduper.text import csv_lines, json_lines
from tests.deduper.text.differential import values_of
from tests.deduper.text.json_lines import KINDS, laid, text_format

ALL_KINDS = text_format(", ".join(f"c{number} {kind}" for number, kind in enumerate(KINDS)))
SIMPLE = text_format("k string, n bigint, t timestamp")


def parsed(lines: Sequence[bytes], text: TextFormat, wanted: Sequence[int] | None = None) -> Parsed:
    """Lines that lie one behind another."""
    data, starts, ends = laid(lines, b"\n")
    found = block.parse(data, starts, ends, text, range(len(text.columns)) if wanted is None else wanted)
    for number, column in found.columns.items():
        column.validate(full=True)
        assert column.type == text.columns[number].arrow
        assert len(column) == len(lines)
    return found


@given(
    st.lists(st.sampled_from([b"", b"a", b"\r", b"1234567", b"12345678", b"123456789", b"\x0b\x09", b"x" * 100])),
    st.booleans(),
)
def test_lines(parts: list[bytes], ends_with_line: bool) -> None:
    """Split at line ends alone; what follows the last one is the rest."""
    data = b"\n".join(parts) + (b"\n" if ends_with_line else b"")
    starts, ends, rest = block.lines(data)
    *whole, last = data.split(b"\n")
    assert [data[start:end] for start, end in zip(starts, ends, strict=True)] == whole
    assert data[rest:] == last


def test_many_short_lines() -> None:
    """More than there is room for at first."""
    starts, ends, rest = block.lines(b"\n" * 10_000)
    assert starts.tolist() == ends.tolist() == list(range(10_000))
    assert rest == 10_000


@pytest.mark.parametrize("data", [b"", pa.py_buffer(b""), np.zeros(0, np.uint8)])
def test_no_rows(data: Any) -> None:
    """Empty columns of the declared types."""
    starts, ends, rest = block.lines(data)
    assert (starts.size, ends.size, rest) == (0, 0, 0)
    found = block.parse(data, starts, ends, ALL_KINDS, range(len(KINDS)))
    assert [found.columns[number].type for number in range(len(KINDS))] == [one.arrow for one in ALL_KINDS.columns]
    assert {len(column) for column in found.columns.values()} == {0}
    assert (found.malformed.size, found.invalid_utf8.size, found.slow_lines) == (0, 0, 0)
    for column in found.columns.values():
        column.validate(full=True)


def test_no_columns() -> None:
    """A format without any, and none that are wanted: the lines are still looked at."""
    lines = [b"{}", b'{"k":"a"}', b"\xff", b"x"]
    for found in (parsed(lines, TextFormat((), "UTC")), parsed(lines, SIMPLE, [])):
        assert found.columns == {}
        assert found.malformed.tolist() == [False, False, False, True]
        assert found.invalid_utf8.tolist() == [False, False, True, False]


def test_rows_stand_in_their_order() -> None:
    """Plain, exact, malformed and broken ones; the last two are null in every column."""
    lines = [
        b'{"k":"a","n":1,"t":"1970-01-01T00:00:00Z"}',
        rb'{"\u006b":"b","n":2}',
        b'{"k":"never","n":3,"t":"1970-01-01T00:00:00Z"',
        b'{"k":"c\xff","n":4}',
        rb'{"k":"d\n","n":9223372036854775807}',
        b"",
        b'{"n":null,"k":""}',
    ]
    found = parsed(lines, SIMPLE)
    assert found.columns[0].to_pylist() == ["a", "b", None, None, "d\n", None, ""]
    assert found.columns[1].to_pylist() == [1, 2, None, None, 2**63 - 1, None, None]
    assert found.columns[2].view(pa.int64()).to_pylist() == [0, *[None] * 6]
    assert np.flatnonzero(found.malformed).tolist() == [2, 5]
    assert np.flatnonzero(found.invalid_utf8).tolist() == [3]
    assert found.slow_lines == 3


def test_not_utf8_comes_first() -> None:
    """A line that is no JSON either is invalid UTF-8, not malformed."""
    found = parsed([b"x\xff", b"\xed\xa0\x80"], SIMPLE)
    assert (found.malformed.tolist(), found.invalid_utf8.tolist()) == ([False, False], [True, True])


@pytest.mark.parametrize("seed", range(12))
def test_both_parsers_fill_equal_columns(seed: int) -> None:
    """A field whose name has an escape sends a line to the exact parser; its values stay the same."""
    text = json_lines.random_format(random.Random(seed))
    lines = list(json_lines.samples(text, seed, 60))
    escaped = [
        line.replace(b"{", b'{"\\u0078\\u0078":0' + (b"}" if line[1:].lstrip()[:1] == b"}" else b","), 1)
        for line in lines
    ]
    escaped = [line.removesuffix(b"}") if line.endswith(b"}}") and b"{" not in line[1:] else line for line in escaped]
    plain, exact = parsed(lines, text), parsed(escaped, text)
    assert (plain.slow_lines, exact.slow_lines) == (0, len(lines))
    assert not plain.malformed.any()
    assert not exact.malformed.any()
    for number, column in plain.columns.items():
        assert exact.columns[number].equals(column), text.columns[number]
    mixed = parsed([rows[number % 2] for number, rows in enumerate(zip(lines, escaped, strict=True))], text)
    for number, column in plain.columns.items():
        assert mixed.columns[number].equals(column), text.columns[number]


@pytest.mark.parametrize("seed", range(12))
def test_both_parsers_of_csv_fill_equal_columns(seed: int) -> None:
    """A blank behind a quote sends a line to the exact parser; its values stay the same."""
    given = replace(csv_lines.random_format(random.Random(seed)), delimiter=",")
    lines = [line.rstrip(b"\r") for line in csv_lines.samples(given, seed, 60)]
    text = replace(given, columns=(*given.columns, *text_format("last string").columns))
    lines = [line + b"," * (len(text.columns) - 1 - csv_fields(line)) + b'"x"' for line in lines]
    plain, exact = parsed(lines, text), parsed([line + b" " for line in lines], text)
    assert (plain.slow_lines, exact.slow_lines) == (0, len(lines))
    assert not exact.malformed.any()
    for number, column in plain.columns.items():
        assert exact.columns[number].equals(column), text.columns[number]


def csv_fields(line: bytes) -> int:
    """The delimiters of a line that has no quotes but around fields."""
    return sum(part.count(b",") for part in line.split(b'"')[::2])


def test_values_that_only_the_exact_parser_has() -> None:
    """Decimals of two words, with their signs; -0 and the ends of floats; texts of two ways in one column."""
    text = text_format("d decimal(38,2), f double, s string, b binary")
    lines = [
        b'{"d":123456789012345678901234567890123456.78,"f":-0.0,"s":"x"}',
        rb'{"d":-99999999999999999999.99,"f":1.7976931348623157e308,"\u0073":"yy"}',
        b'{"d":-0.01,"f":5e-324,"s":"zzz"}',
        b'{"d":9223372036854775808,"f":2.5,"s":"","b":"/w=="}',
    ]
    found = parsed(lines, text)
    assert [str(value) for value in found.columns[0].to_pylist()] == [
        "123456789012345678901234567890123456.78",
        "-99999999999999999999.99",
        "-0.01",
        "9223372036854775808.00",
    ]
    assert repr(found.columns[1].to_pylist()) == "[-0.0, 1.7976931348623157e+308, 5e-324, 2.5]"
    assert found.columns[2].to_pylist() == ["x", "yy", "zzz", ""]
    assert found.columns[3].to_pylist() == [None, None, None, b"\xff"]


def test_beyond_the_greatest_float() -> None:
    """Infinity, and no warning of numpy's; from either parser."""
    with warnings.catch_warnings(action="error"):
        found = parsed([b'{"f":999999999999999999e21}', b'{"f":-1e39}'], text_format("f float"))
    assert repr(found.columns[0].to_pylist()) == "[inf, -inf]"
    assert found.slow_lines == 1


@pytest.mark.slow
@pytest.mark.parametrize("made", [json_lines, csv_lines])
@pytest.mark.parametrize("seed", range(8))
def test_verdicts_do_not_depend_on_the_projection(seed: int, made: Any) -> None:
    """Of ordinary, odd and mutated lines: any columns, in any order, and those that are built are equal."""
    rng = random.Random(seed)
    text = made.random_format(rng)
    data = made.block_of(text, 800, seed)
    starts, ends, _ = block.lines(data)
    numbers = range(len(text.columns))
    whole = block.parse(data, starts, ends, text, numbers)
    for _ in range(4):
        wanted = rng.sample(numbers, rng.randint(0, len(numbers)))
        found = block.parse(data, starts, ends, text, wanted)
        assert list(found.columns) == wanted
        np.testing.assert_array_equal(found.malformed, whole.malformed)
        np.testing.assert_array_equal(found.invalid_utf8, whole.invalid_utf8)
        assert found.slow_lines == whole.slow_lines
        for number in wanted:
            # Not `equals` of Arrow: it says that a NaN differs from itself.
            assert repr(values_of(found.columns[number])) == repr(values_of(whole.columns[number]))


def test_any_kind_of_memory() -> None:
    """Bytes, a buffer, an array that can be written or not, a slice of one, and places of other types."""
    data, starts, ends = laid(list(json_lines.samples(ALL_KINDS, 3, 50)), b"\n")
    array = np.frombuffer(data, np.uint8)
    every_other = np.zeros(2 * array.size, np.uint8)
    every_other[::2] = array
    wanted = range(len(KINDS))
    expected = block.parse(data, starts, ends, ALL_KINDS, wanted).columns
    for same in (pa.py_buffer(data), array, array.copy(), every_other[::2], memoryview(data), bytearray(data)):
        assert block.parse(same, starts, ends, ALL_KINDS, wanted).columns == expected  # type: ignore[arg-type]
        assert block.lines(same)[0].tolist() == block.lines(data)[0].tolist()  # type: ignore[arg-type]
    narrow = block.parse(data, starts.astype(np.int32), ends.astype(np.uint32), ALL_KINDS, wanted)  # type: ignore[arg-type]
    assert narrow.columns == expected


def test_some_of_the_lines_in_any_order() -> None:
    """A line is where its start and end say."""
    lines = list(json_lines.samples(SIMPLE, 5, 30))
    data, starts, ends = laid(lines, b"\n")
    chosen = np.array([7, 3, 3, 29, 0])
    found = block.parse(data, starts[chosen], ends[chosen], SIMPLE, [0, 1, 2])
    whole = block.parse(data, starts, ends, SIMPLE, [0, 1, 2])
    for number in range(3):
        assert found.columns[number].equals(whole.columns[number].take(pa.array(chosen)))


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (0, 4), (2, 1)])
def test_lines_outside_the_data(start: int, end: int) -> None:
    """They are refused before any byte is read."""
    with pytest.raises(ValueError, match="lines outside a block of 3 bytes"):
        block.parse(b"{}\n", np.array([0, start]), np.array([2, end]), SIMPLE, [])


def test_more_text_than_arrow_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do; from plain lines and from others."""
    lines = [b'{"k":"12345678"}', b'{"k":"12345678"}']
    monkeypatch.setattr(block, "MOST_TEXT", 16)
    assert parsed(lines, SIMPLE).columns[0].to_pylist() == ["12345678"] * 2
    monkeypatch.setattr(block, "MOST_TEXT", 15)
    with pytest.raises(
        ValueError, match="16 bytes of text in one column of a block; Arrow holds 15: read smaller blocks"
    ):
        parsed(lines, SIMPLE)
    with pytest.raises(ValueError, match="17 bytes of text"):
        parsed([rb'{"\u006b":"12345678901234567"}'], SIMPLE)
    assert parsed(lines, SIMPLE, [1]).columns[1].null_count == 2


def test_very_long_lines() -> None:
    """A line of a MiB is plain; beyond 16 MiB the exact parser takes it."""
    value = b"x" * (1 << 20)
    found = parsed([b'{"k":"%s"}' % value, b'{"k":"%s","n":1}' % value], SIMPLE)
    assert found.slow_lines == 0
    assert found.columns[0].to_pylist() == [value.decode()] * 2
    short, long = (b'{"n":7%s}' % (b" " * (kernels.MOST_BYTES - 7 + more)) for more in (0, 1))
    found = parsed([short, long], SIMPLE)
    assert found.slow_lines == 1
    assert found.columns[1].to_pylist() == [7, 7]


def test_warm_runs_without_the_exact_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker daemon loads the kernels before it forks; each has one signature, for any memory."""
    monkeypatch.delattr(block, "json_exact")
    for form in ("json", "csv", "logfmt", "common_log"):
        block.warm(form)
    parsers = (
        kernels.parse_json_lines,
        kernels.parse_csv_lines,
        kernels.parse_web_log_lines,
        kernels.parse_logfmt_lines,
    )
    for compiled in (*parsers, kernels.gather_texts, kernels.line_ends):
        assert len(compiled.signatures) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("decimal", "time", "rounded"),
    [
        ("1.00", "2024-01-01T12:00:00.000001Z", set()),
        ("1.2", "2024-01-01T12:00:00.123456000Z", set()),
        ("1.250", "2024-01-01T12:00:00Z", set()),
        ("1.004", "2024-01-01T12:00:00Z", {0}),
        ("-1.005", "2024-01-01T12:00:00.0000000Z", {0}),
        ("1", "2024-01-01T12:00:00.0000001Z", {1}),
        ("0.001", "2024-01-01 12:00:00.123456789+01:00", {0, 1}),
    ],
)
@pytest.mark.parametrize("delimiter", [None, ","])
def test_values_of_more_digits_than_their_columns(
    decimal: str, time: str, rounded: set[int], delimiter: str | None
) -> None:
    """Are noted, whichever column is wanted; zeros say nothing."""
    columns = tuple(map(DeclaredColumn.of, parse_columns("d decimal(10,2), t timestamp, n bigint")))
    line = f"{decimal},{time},3" if delimiter else f'{{"d":{decimal},"t":"{time}","n":3}}'
    sound = "1,2024-01-01,3" if delimiter else '{"n":3}'
    found = parsed([sound.encode(), line.encode(), sound.encode()], TextFormat(columns, "UTC", delimiter), [2])
    assert found.slow_lines == 0
    assert found.rounded == rounded
