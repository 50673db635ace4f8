"""Texts and JSON numbers as values. Spark and Java give the same (tests/spark/test_text_against_spark.py)."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.columns import parse_columns
from deduper.text import values
from deduper.text.format import Malformed
from deduper.text.values import Token

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  local times are meant


def read(kind: str, token: Token, text: str, zone: str = "UTC") -> Any:
    """The value; None when it is malformed."""
    try:
        return values.reader(parse_columns(f"c {kind}")[0].type, zone)(token, text)
    except Malformed:
        return None


@pytest.mark.parametrize(("kind", "bits"), [("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64)])
def test_whole_numbers(kind: str, bits: int) -> None:
    """Exactly the range of the type; nothing that has a point, an exponent or quotes."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    assert [read(kind, Token.WHOLE, str(number)) for number in (low, high, 0)] == [low, high, 0]
    assert read(kind, Token.WHOLE, "-0") == 0
    assert read(kind, Token.WHOLE, str(low - 1)) is read(kind, Token.WHOLE, str(high + 1)) is None
    assert read(kind, Token.WHOLE, "9" * 1000) is None
    for token, text in ((Token.FRACTION, "1.0"), (Token.TEXT, "1"), (Token.BOOLEAN, "true"), (Token.NESTED, "[]")):
        assert read(kind, token, text) is None


def test_booleans() -> None:
    """The words without quotes."""
    assert read("boolean", Token.BOOLEAN, "true") is True
    assert read("boolean", Token.BOOLEAN, "false") is False
    assert read("boolean", Token.TEXT, "true") is read("boolean", Token.WHOLE, "1") is None


@pytest.mark.parametrize("kind", ["float", "double"])
def test_not_finite(kind: str) -> None:
    """Six texts, with quotes or without; a number beyond the type is an infinity."""
    for token in (Token.TEXT, Token.NOT_FINITE):
        assert math.isnan(read(kind, token, "NaN"))
        assert {read(kind, token, text) for text in ("Infinity", "+Infinity", "+INF")} == {math.inf}
        assert {read(kind, token, text) for text in ("-Infinity", "-INF")} == {-math.inf}
    assert [read(kind, Token.TEXT, text) for text in ("INF", "inf", "nan", "1.5", "", "-NaN")] == [None] * 6
    assert read(kind, Token.FRACTION, "-1e400") == read(kind, Token.FRACTION, "-1e9999999999") == -math.inf
    assert math.copysign(1, read(kind, Token.FRACTION, "-0.0")) == -1
    assert math.copysign(1, read(kind, Token.FRACTION, "-1e-400")) == -1
    assert math.copysign(1, read(kind, Token.WHOLE, "-0")) == 1


def single(bits: int) -> float:
    """The float of these bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.00000017881393432617187500", 1 + 2**-22),  # halfway: to the even one
        ("1.00000017881393432617187499", 1 + 2**-23),
        ("1.00000017881393432617187501", 1 + 2**-22),
        ("340282356779733661637539395458142568447", single(0x7F7FFFFF)),
        ("340282356779733661637539395458142568448", math.inf),
        ("340282356779733661637539395458142568447.9", single(0x7F7FFFFF)),
        ("-340282356779733661637539395458142568448.0", -math.inf),
        ("7.006492321624085e-46", 0.0),
        ("7.006492321624086e-46", 2.0**-149),
    ],
)
def test_floats_are_rounded_once(text: str, expected: float) -> None:
    """A double between would round a second time."""
    assert read("float", Token.FRACTION if "." in text else Token.WHOLE, text) == expected


@given(st.integers(0, 0x7F7FFFFE), st.integers(-3, 3), st.integers(1, 60))
def test_floats_are_the_nearest(bits: int, beside: int, digits: int) -> None:
    """Around the middle of any two floats, by exact fractions."""
    low, high = Fraction(single(bits)), Fraction(single(bits + 1))
    middle = (low + high) / 2 + beside * (high - low) / 10**digits
    text = exact_text(middle)
    found = Fraction(read("float", Token.FRACTION, text))
    given_number = Fraction(text)
    assert abs(found - given_number) == min(abs(low - given_number), abs(high - given_number))


def exact_text(number: Fraction) -> str:
    """Its first 200 digits after the point."""
    return f"{number.numerator * 10**200 // number.denominator}e-200"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_texts_of_numbers(number: float) -> None:
    """They are read as the same number, and have a point."""
    text = values.number_text(number)
    assert float(text) == number
    assert "." in text
    assert len(text.partition("E")[0].strip("-")) <= 25


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5e-324, "4.9E-324"),
        (1e23, "1.0E23"),
        (9999999.999999998, "9999999.999999998"),
        (1e-3, "0.001"),
        (9e-4, "9.0E-4"),
    ],
)
def test_texts_of_numbers_at_edges(number: float, text: str) -> None:
    """As Java 19 and later write them."""
    assert values.number_text(number) == text
    assert values.number_text(-number) == f"-{text}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.005", "1.01"),
        ("-1.005", "-1.01"),
        ("1.00499999", "1.00"),
        ("99999999.994", "99999999.99"),
        ("99999999.995", None),
        ("100000000", None),
        ("1e7", "10000000.00"),
        ("1E8", None),
        ("0.0049", "0.00"),
        ("0.005", "0.01"),
        ("-0.0", "0.00"),
        ("-0.001", "0.00"),
        ("1e-400", "0.00"),
        ("1e-2147483647", None),
        ("1e-2147483648", None),
        ("0e2147483647", None),
        ("0e2147483648", None),
        ("1e2147483647", None),
        ("1e00000000000000000005", "100000.00"),
        ("1e" + "9" * 5000, None),
        ("0." + "0" * 5000 + "1", "0.00"),
        ("0" * 5000 + "1", "1.00"),
        ("1" * 5000, None),
    ],
)
def test_decimals(text: str, expected: str | None) -> None:
    """Rounded half up to the scale, at most of the precision; -0 is 0."""
    found = read("decimal(10,2)", Token.TEXT, text)
    assert found is None if expected is None else str(found) == expected


def test_decimals_in_quotes() -> None:
    """Commas count for nothing; digits of other scripts are digits; blanks are not."""
    expected = {
        "1,000.5": "1000.50",
        "1,,0,": "10.00",
        "+1": "1.00",
        ".5": "0.50",
        "5.": "5.00",
        "١": "1.00",
        "1e3": "1000.00",
    }
    assert {text: str(read("decimal(10,2)", Token.TEXT, text)) for text in expected} == expected
    wrong = ("", ",", ".", "+", "e5", "1e", " 1", "1 ", "1_0", "NaN", "0x1", "1.5.2", "--1", "𝟏", "²")
    assert [read("decimal(10,2)", Token.TEXT, text) for text in wrong] == [None] * len(wrong)
    assert read("decimal(10,2)", Token.NOT_FINITE, "NaN") is read("decimal(10,2)", Token.BOOLEAN, "true") is None


@pytest.mark.slow
@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.integers(0, 38))
def test_decimals_as_decimal_rounds_them(number: Decimal, precision: int, scale: int) -> None:
    """Python's own arithmetic, with enough digits."""
    scale = min(scale, precision)
    rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=1000))
    expected = rounded if rounded else abs(rounded)
    found = read(f"decimal({precision},{scale})", Token.TEXT, str(number))
    assert found == (None if abs(rounded) * 10**scale >= 10**precision else expected)
    assert found is None or -found.as_tuple().exponent == scale


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", b""),
        ("YWJj", b"abc"),
        ("YWI=", b"ab"),
        ("YQ==", b"a"),
        ("YR==", b"a"),  # bits beyond the last byte count for nothing
        ("YQ==YWI=YWJj", b"aababc"),
        (" \t\nYWJj\x00 YWJj ", b"abcabc"),
        *(
            (text, None)
            for text in ("Y", "YW", "YWJ", "YWJjY", "YQ=", "Y===", "====", "YW Jj", "Y-Jj", "Y_Jj", "YWJä", "YQ=A")
        ),
    ],
)
def test_base64(text: str, expected: bytes | None) -> None:
    """Groups of four signs, each padded; blanks between groups only."""
    assert read("binary", Token.TEXT, text) == expected
    assert read("binary", Token.WHOLE, "1234") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-02-29", date(2024, 2, 29)),
        ("2024", date(2024, 1, 1)),
        ("2024-2", date(2024, 2, 1)),
        ("+2024-2-9", date(2024, 2, 9)),
        (" 2024-02-29\x7f\x01", date(2024, 2, 29)),
        ("2024-02-29T", date(2024, 2, 29)),
        ("2024-02-29 whatever\nfollows", date(2024, 2, 29)),
        ("2024GMT-02-29", date(2024, 2, 29)),
        ("9999-12-31", date(9999, 12, 31)),
        ("0001-01-01", date(1, 1, 1)),
        *(
            (text, None)
            for text in ("", "2023-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "2024-01-32", "24-01-01")
        ),
        *(
            (text, None)
            for text in (
                "!2024-01-01",
                "2024-01-001",
                "2024-01-01x",
                "2024 ",
                "2024T",
                "2024-1T",
                "2024/01/01",
                "12345678",
                "123",
                "-5",
            )[3:]
        ),
        *(
            (text, None)
            for text in ("1900-02-29", "2024-001-01", "--2024-01-01", "9999999-01-01", "２０２４", "12345678-01-01")
        ),
    ],
)
def test_dates(text: str, expected: date | None) -> None:
    """A year of four to seven digits, a month and a day or not, anything after the day; real days only."""
    if expected is None and text.rstrip() == "2024":
        expected = date(2024, 1, 1)  # blanks at the ends count for nothing
    assert read("date", Token.TEXT, text) == (None if expected is None else (expected - EPOCH.date()).days)
    assert read("date", Token.WHOLE, "19723") is None


def test_days_beyond_python() -> None:
    """Years below 1 and above 9999, and the most that 32 bits hold."""
    days = {"0000-12-31": -719_163, "0000-01-01": -719_528, "-0001-01-01": -719_893, "10000-01-01": 2_932_897}
    days |= {"-0004-02-29": -720_930, "5881580-07-11": 2**31 - 1, "-5877641-06-23": -(2**31)}
    assert {text: read("date", Token.TEXT, text) for text in days} == days
    assert read("date", Token.TEXT, "5881580-07-12") is read("date", Token.TEXT, "-5877641-06-22") is None


@given(st.dates())
def test_every_day(day: date) -> None:
    """As Python counts them."""
    assert read("date", Token.TEXT, day.isoformat()) == (day - EPOCH.date()).days


@pytest.mark.parametrize("year", [2023, 2024, 1900, 2000, 0, -4])
def test_the_days_of_every_month(year: int) -> None:
    """The last one is a day, the next is none."""
    like = year if year > 0 else year + 400
    for month in range(1, 13):
        last = (date(like + month // 12, month % 12 + 1, 1) - timedelta(1)).day
        text = f"{'-' * (year < 0)}{abs(year):04}-{month}"
        assert read("date", Token.TEXT, f"{text}-{last}") == read("date", Token.TEXT, f"{text}-01") + last - 1
        assert read("date", Token.TEXT, f"{text}-{last + 1}") is None


MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-02-29T12:30:15.5Z", "2024-02-29T12:30:15.500000+00:00"),
        ("2024-02-29 12:30:15", "2024-02-29T12:30:15+00:00"),
        ("2024", "2024-01-01T00:00:00+00:00"),
        ("2024-2-9", "2024-02-09T00:00:00+00:00"),
        ("2024-02-29T1", "2024-02-29T01:00:00+00:00"),
        ("2024-02-29T1:2", "2024-02-29T01:02:00+00:00"),
        ("2024-02-29T1:2:3.", "2024-02-29T01:02:03+00:00"),
        ("2024-02-29T1:2:3.1234569", "2024-02-29T01:02:03.123456+00:00"),
        ("2024-02-29T1:2:3 +01:00", "2024-02-29T01:02:03+01:00"),
        ("2024-02-29T1:2:3+1:2", "2024-02-29T01:02:03+01:02"),
        ("2024-02-29T1:2:3+0102", "2024-02-29T01:02:03+01:02"),
        ("2024-02-29T1:2:3.5-01:02:03", "2024-02-29T01:02:03.500000-01:02:03"),
        ("2024-02-29T1:2:3 UTC+5", "2024-02-29T01:02:03+05:00"),
        ("2024-02-29T1:2:3GMT-5:30", "2024-02-29T01:02:03-05:30"),
        ("2024-02-29T1:2:3EST", "2024-02-29T01:02:03-05:00"),
        ("2024-02-29T1:2:3PST", "2024-02-29T01:02:03-08:00"),
        ("2024-02-29T1:2:3Europe/Paris", "2024-02-29T01:02:03+01:00"),
        ("2024-02-29T1:2:3GMT Europe/Paris", "2024-02-29T01:02:03+01:00"),
        *(
            (text, None)
            for text in ("", "T12:00", "12:00:00", "2024-02-29T", "2024-02-29T24:00:00", "2024-02-29T23:60:00")
        ),
        *(
            (text, None)
            for text in ("2024-02-29T23:59:60", "2024-02-29t12:00:00", "2024-02-29T12:30Z", "2024-02-29Z", "2024-02-30")
        ),
        *(
            (text, None)
            for text in ("2024-02-29T1:2:3+19:00", "2024-02-29T1:2:3+18:01", "2024-02-29T1:2:3+1:60", "1234567-01-01")
        ),
        *(
            (text, None)
            for text in ("2024-02-29T1:2:3z", "2024-02-29T1:2:3utc", "2024-02-29T1:2:3 Mars/Base", "2024-02-29T1:2:345")
        ),
    ],
)
def test_times(text: str, expected: str | None) -> None:
    """A date, a clock time of one part or more, a zone after the seconds; without one, that of the session."""
    us = None if expected is None else (datetime.fromisoformat(expected) - EPOCH.replace(tzinfo=UTC)) // MICROSECOND
    assert read("timestamp", Token.TEXT, text) == us


def test_times_of_numbers() -> None:
    """Seconds since the epoch, as far as µs fit into 64 bits; no fractions."""
    assert read("timestamp", Token.WHOLE, "-9223372036854") == -9_223_372_036_854_000_000
    assert read("timestamp", Token.WHOLE, "9223372036855") is read("timestamp", Token.FRACTION, "1.5") is None
    assert read("timestamp_ntz", Token.WHOLE, "1") is None


def test_times_at_the_ends_of_64_bits() -> None:
    """Both ends are times, one µs beyond is none."""
    for kind in ("timestamp", "timestamp_ntz"):
        assert read(kind, Token.TEXT, "294247-01-10T04:00:54.775807") == 2**63 - 1
        assert read(kind, Token.TEXT, "294247-01-10T04:00:54.775808") is None
        assert read(kind, Token.TEXT, "-290308-12-21T19:59:05.224192") == -(2**63)
        assert read(kind, Token.TEXT, "-290308-12-21T19:59:05.224191") is None
    assert read("timestamp", Token.TEXT, "294247-01-10T05:00:54.775807+01:00") == 2**63 - 1


def test_times_without_a_zone() -> None:
    """The clock as it stands; a zone in the text is wrong."""
    assert read("timestamp_ntz", Token.TEXT, "1970-01-01T00:00:01.5", "Asia/Tokyo") == 1_500_000
    assert read("timestamp_ntz", Token.TEXT, "1970-01-01") == 0
    for text in ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00+00:00", "00:00:00", "1970GMT-01-01"):
        assert read("timestamp_ntz", Token.TEXT, text) is None


@pytest.mark.parametrize(
    ("local", "instant"),
    [
        ("2024-03-31T01:59:59", "2024-03-31T00:59:59"),
        ("2024-03-31T02:30:00", "2024-03-31T01:30:00"),  # in a gap: as if the clock had not moved
        ("2024-03-31T03:00:00", "2024-03-31T01:00:00"),
        ("2024-10-27T02:30:00", "2024-10-27T00:30:00"),  # there twice: the first
        ("2024-10-27T03:00:00", "2024-10-27T02:00:00"),
        ("1800-01-01", "1799-12-31T23:06:32"),  # before all rules: the sun
    ],
)
def test_local_times(local: str, instant: str) -> None:
    """In the session's zone."""
    expected = (datetime.fromisoformat(instant) - EPOCH) // MICROSECOND
    assert read("timestamp", Token.TEXT, local, "Europe/Berlin") == expected


def test_local_times_beyond_python() -> None:
    """The last rules of a zone hold for ever, its first offset since ever."""
    for year, hours in ((9999, "07-01"), (10_000, "07-01"), (12_024, "01-01"), (99_999, "07-01")):
        local = read("timestamp_ntz", Token.TEXT, f"{year}-{hours}")
        summer = 2 if hours == "07-01" else 1
        assert read("timestamp", Token.TEXT, f"{year}-{hours}", "Europe/Berlin") == local - summer * 3_600_000_000
    local = read("timestamp_ntz", Token.TEXT, "-0044-03-15")
    assert read("timestamp", Token.TEXT, "-0044-03-15", "Europe/Berlin") == local - 3208 * 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_rules_repeat_with_the_calendar(zone: str) -> None:
    """Every half hour of a year is as 400 years earlier, up to the last of year 9999 and from the first of 10000."""
    rules = values.time_zone(zone)
    cycle = 146_097 * 86_400
    begin = (datetime(9623, 12, 31) - EPOCH) // timedelta(seconds=1)  # noqa: DTZ001  local times are meant
    assert rules is not None
    for seconds in range(begin, begin + 368 * 86_400, 1800):
        offset = values.offset_seconds(rules, seconds)
        assert (
            values.offset_seconds(rules, seconds + cycle) == values.offset_seconds(rules, seconds + 6 * cycle) == offset
        )
    for text in (
        "9999-12-31T23:59:59.999999",
        "10000-01-01",
        "10000-01-01T00:00:01",
        "0001-01-01",
        "0000-12-31T23:59:59",
    ):
        assert read("timestamp", Token.TEXT, text, zone) is not None


@given(
    st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)),  # noqa: DTZ001
    st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Monrovia"]),
)
def test_local_times_as_python_has_them(local: datetime, zone: str) -> None:
    """For all years that Python knows."""
    rules = values.time_zone(zone)
    expected = local.replace(tzinfo=UTC if isinstance(rules, int) else rules) - EPOCH.replace(tzinfo=UTC)
    assert read("timestamp", Token.TEXT, local.isoformat(), zone) == expected // MICROSECOND


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("Z", 0),
        ("UTC", 0),
        ("GMT0", 0),
        (" UT ", 0),
        ("+1", 3600),
        ("-01", -3600),
        ("+01:2", 3720),
        ("+18:00:00", 64_800),
        ("+010203", 3723),
        ("+00:59:59", 3599),
        ("+17:59", 64_740),
        ("-18", -64_800),
        ("UT-0130", -5400),
        ("HST", -36_000),
        *(
            (name, None)
            for name in (
                "",
                "z",
                "A",
                "+",
                "+:",
                "+1:",
                "+001",
                "+01:0203",
                "+18:00:01",
                "+00:60",
                "+00:00:60",
                "+0060",
                "+19",
                "UTC+",
                "UTC1",
                "+01:00x",
            )
        ),
        *(
            (name, None)
            for name in ("Factory", "ROC", "posix/UTC", "right/UTC", "localtime", "../UTC", "Etc/../UTC", "Etc//UTC")
        ),
        *((name, None) for name in ("europe/paris", "Europe", "Europe/", "zone.tab", "/etc/passwd", "ä")),
    ],
)
def test_zones(name: str, seconds: int | None) -> None:
    """Offsets up to 18 hours, their prefixes, old short names, places; no file of anything else."""
    zone = values.time_zone(name)
    assert zone is None if seconds is None else values.offset_seconds(zone, 0) == seconds


def test_a_session_needs_a_zone() -> None:
    """What names none is refused before any record is read."""
    with pytest.raises(ValueError, match="Mars/Base is no time zone"):
        read("timestamp", Token.TEXT, "2024-01-01", "Mars/Base")
