"""Values of a declared type, from a JSON token or from a field of CSV. PURE.

A date is days since 1970-01-01, a time µs since then, in the proleptic Gregorian calendar. Every reader raises
`Malformed` when the token is no value of its type.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from importlib import resources
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from deduper.columns import ColumnType
from deduper.text.format import Malformed


class Token(IntEnum):
    """What a JSON value is before its type is asked for; null is no token."""

    TEXT = 2
    WHOLE = 3
    FRACTION = 4
    """With a point or an exponent."""
    BOOLEAN = 5
    NOT_FINITE = 6
    """NaN or an infinity without quotes."""
    NESTED = 7
    """An object or an array, written without blanks."""


Reader = Callable[[int, str], Any]
"""The value of a token and its text: the content of a string, else the value as it is written."""

WHOLE_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Bits of each type of whole numbers."""
_BLANKS = "".join(map(chr, range(33)))
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_SECOND_US, _DAY_US = 1_000_000, 86_400_000_000


def reader(kind: ColumnType, zone: str) -> Reader:
    """Reads tokens as values of a column's type. `zone` is that of times without one."""
    name = kind.name
    if name in WHOLE_BITS:
        return _whole_reader(name, WHOLE_BITS[name])
    if name == "decimal":
        precision, scale = kind.precision or 10, kind.scale or 0
        return lambda token, text: _decimal(token, text, precision, scale)
    if name == "timestamp":
        local = time_zone(zone)
        if local is None:
            raise ValueError(f"{zone} is no time zone")
        return lambda token, text: _timestamp(token, text, local)
    return _READERS[name]


def field_reader(kind: ColumnType, zone: str) -> Callable[[str], Any]:
    """Reads fields of CSV, which are not empty, as values of a column's type."""
    name = kind.name
    if name in WHOLE_BITS:
        of_token = reader(kind, zone)
        return lambda text: of_token(Token.WHOLE, _whole_text(text))
    if name in _FIELD_READERS:
        return _FIELD_READERS[name]
    of_token = reader(kind, zone)
    return lambda text: of_token(Token.TEXT, text)


def _wrong(kind: str) -> Malformed:
    return Malformed(f"not a value of type {kind}")


def text_of(token: int | None, text: str) -> str:
    """The text of a value in a string column; None: null inside an object or array."""
    if token == Token.FRACTION:
        return number_text(float(text))
    if token == Token.NOT_FINITE:
        return number_text(_NOT_FINITE_TEXTS[text])
    return "0" if token == Token.WHOLE and text == "-0" else text


def _boolean(token: int, text: str) -> bool:
    if token != Token.BOOLEAN:
        raise _wrong("boolean")
    return text == "true"


def _whole_reader(kind: str, bits: int) -> Reader:
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def whole(token: int, text: str) -> int:
        # 20 signs hold every bigint; longer ones have no leading zeros and are out of range.
        if token == Token.WHOLE and len(text) <= 20 and lowest <= (number := int(text)) <= highest:
            return number
        raise _wrong(kind)

    return whole


def _boolean_field(text: str) -> bool:
    lower = text.lower()
    if lower not in ("true", "false") or not text.isascii():
        raise _wrong("boolean")
    return lower == "true"


def _whole_text(text: str) -> str:
    """A whole number as JSON has it: digits of ASCII, no plus, no zeros in front."""
    sign = text[0] if text[0] in "+-" else ""
    digits = text[len(sign) :]
    if not digits.isascii():
        digits = "".join(map(_ascii_digit, digits))
    if not (digits.isascii() and digits.isdigit()):
        raise _wrong("a whole number")
    return sign.rstrip("+") + (digits.lstrip("0") or "0")


# Floating point ------------------------------------------------------------------------------------------------------

_NOT_FINITE_TEXTS: Final = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "+INF": math.inf,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}
_PLAIN_TEXTS = 1e-3, 1e7
_GREATEST_FLOAT = 2.0**128 - 2.0**104
_BEYOND_FLOAT = 2.0**128 - 2.0**103
"""Halfway between the greatest float and the next power of two: rounds to infinity."""


def number_text(number: float) -> str:
    """The text of a JSON number with a point or an exponent: `1.5`, `1.0E7`; not finite ones have quotes."""
    if not math.isfinite(number):
        return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    lowest, beyond = _PLAIN_TEXTS
    if number == 0 or lowest <= abs(number) < beyond:
        return format(Decimal(repr(number)), "f")
    digits, _, power = repr(number).partition("e")
    if "." not in digits:
        # One digit does: of all numbers of two digits that are read as this one, the nearest.
        nearest = f"{number:.1e}".partition("e")
        if float("".join(nearest)) == number:
            digits, _, power = nearest
    sign, coefficient, exponent = Decimal(digits).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, coefficient)).rstrip("0")
    exponent += len(coefficient) - 1 + int(power or 0)
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{exponent}"


def _double(token: int, text: str) -> float:
    if token in (Token.WHOLE, Token.FRACTION):
        # A whole number has no negative zero.
        return float(text) if token == Token.FRACTION or text != "-0" else 0.0
    if token in (Token.TEXT, Token.NOT_FINITE) and text in _NOT_FINITE_TEXTS:
        return _NOT_FINITE_TEXTS[text]
    raise _wrong("double")


def _float(token: int, text: str) -> float:
    try:
        double = _double(token, text)
    except Malformed:
        raise _wrong("float") from None
    if not math.isfinite(double):
        return double
    return nearest_float(text, double)


def nearest_float(text: str, double: float) -> float:
    """The float32 nearest to a number of at most some thousand digits, of which `double` is the nearest double."""
    if abs(double) > _BEYOND_FLOAT:
        return math.copysign(math.inf, double)
    if abs(double) == _BEYOND_FLOAT:
        beyond = Decimal(text).copy_abs() >= Decimal(_BEYOND_FLOAT)  # abs would round
        return math.copysign(math.inf if beyond else _GREATEST_FLOAT, double)
    single = np.float32(double)
    near = float(single)
    if near == double:
        return near
    other = float(np.nextafter(single, np.float32(math.copysign(math.inf, double - near))))
    if near + (other - near) / 2 != double:
        return near
    # The double lies halfway between two floats: whether it was rounded itself decides, else the even float.
    exact, halfway = Decimal(text), Decimal(double)
    if exact == halfway:
        return near
    return max(near, other) if exact > halfway else min(near, other)


_NUMBER_FIELD = re.compile(
    r"([+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+)[dDfF]?|([+-]?(?:NaN|Infinity))"
)
_SPARKS_NOT_FINITE: Final = {"Inf": math.inf, "-Inf": -math.inf}


def _double_field(text: str) -> float:
    return _number_field(text, "double")[0]


def _float_field(text: str) -> float:
    double, number = _number_field(text, "float")
    return nearest_float(number, double) if math.isfinite(double) else double


def _number_field(text: str, kind: str) -> tuple[float, str]:
    """The nearest double, and the number without anything around it."""
    if text in _SPARKS_NOT_FINITE:
        return _SPARKS_NOT_FINITE[text], text
    found = _NUMBER_FIELD.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise _wrong(kind)
    number = found[1] or found[2]
    return float(number), number


# Decimals ------------------------------------------------------------------------------------------------------------

_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_MOST_POWER: Final = 5
"""Digits of an exponent: no decimal holds 1e100000, and Spark would compute that power of ten for seconds to hours."""
_MOST_DECIMAL: Final = 10_000
"""Characters of a decimal."""


def _decimal(token: int, text: str, precision: int, scale: int) -> Decimal:
    if token == Token.TEXT:
        text = text.replace(",", "")
        if not text.isascii():
            text = "".join(map(_ascii_digit, text))
    elif token not in (Token.WHOLE, Token.FRACTION):
        raise _wrong("decimal")
    return decimal_of(text, precision, scale)


def _ascii_digit(sign: str) -> str:
    return str(unicodedata.decimal(sign, sign)) if sign < "\U00010000" else sign


def decimal_of(text: str, precision: int, scale: int) -> Decimal:
    """A number in ASCII digits, rounded half up to the scale."""
    found = _DECIMAL.fullmatch(text)
    if found is None:
        raise _wrong("decimal")
    sign, whole, fraction, power_sign, power = found.groups("")
    power = power.lstrip("0")
    if not (whole or fraction) or len(power) > _MOST_POWER or len(text) > _MOST_DECIMAL:
        raise _wrong("decimal")
    exponent = int(f"{power_sign}{power or 0}") - len(fraction)
    digits = (whole + fraction).lstrip("0")
    moved = exponent + scale
    if not digits:
        return Decimal(f"0E-{scale}")
    if len(digits) + moved > precision:
        raise _wrong("decimal")
    # Only the first digit that is dropped decides, so no number of many digits is ever made.
    if moved >= 0:
        unscaled = int(digits + "0" * moved)
    elif -moved > len(digits):
        unscaled = 0
    else:
        unscaled = int(digits[:moved] or "0") + (digits[moved] >= "5")
    if unscaled >= 10**precision:
        raise _wrong("decimal")
    return Decimal(f"{'-' if sign == '-' and unscaled else ''}{unscaled}E-{scale}")


# Binary --------------------------------------------------------------------------------------------------------------

_SIXTY_FOUR: Final = {
    sign: bits for bits, sign in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
}


def _binary(token: int, text: str) -> bytes:
    if token != Token.TEXT:
        raise _wrong("binary")
    return base64_bytes(text)


def base64_bytes(text: str) -> bytes:
    """The bytes of groups of four signs, the last ones of a group `=` or `==`. Blanks may stand between groups."""
    found = bytearray()
    at, end = 0, len(text)
    while at < end:
        if text[at] <= " ":
            at += 1
            continue
        group = text[at : at + 4]
        at += 4
        signs = group.rstrip("=")
        if len(group) < 4 or len(signs) < 2:
            raise _wrong("binary")
        bits = 0
        for sign in signs:
            if sign not in _SIXTY_FOUR:
                raise _wrong("binary")
            bits = bits << 6 | _SIXTY_FOUR[sign]
        size = len(signs) - 1
        found += (bits >> (6 * len(signs) - 8 * size)).to_bytes(size, "big")
    return bytes(found)


# Dates and times -----------------------------------------------------------------------------------------------------

_TRIMMED = _BLANKS + "\x7f"
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9].*)?)?)?)?)?)?",
    re.DOTALL,
)
_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_OF_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_TO_1970 = 719_528
"""Days from 0000-01-01."""


def _date(token: int, text: str) -> int:
    if token == Token.TEXT:
        days = date_of(text)
        if days is None and "GMT" in text:
            days = date_of(text.replace("GMT", ""))
        if days is not None:
            return days
    raise _wrong("date")


def _timestamp(token: int, text: str, local: Zone) -> int:
    if token == Token.TEXT:
        instant = timestamp_of(text, local)
        if instant is None and "GMT" in text:
            instant = timestamp_of(text.replace("GMT", ""), local)
        if instant is not None:
            return instant
    # Seconds since the epoch.
    elif token == Token.WHOLE and len(text) <= 20 and _LOWEST <= (since := int(text) * _SECOND_US) <= _HIGHEST:
        return since
    raise _wrong("timestamp")


def _timestamp_ntz(token: int, text: str) -> int:
    if token == Token.TEXT:
        found = _local_time(text)
        if found is not None and found[1] is None and _LOWEST <= found[0] <= _HIGHEST:
            return found[0]
    raise _wrong("timestamp_ntz")


def date_of(text: str) -> int | None:
    """Days of `yyyy[-m[-d]]`, years of four to seven digits; after a whole date and a blank or T anything may stand."""
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    if found is None:
        return None
    days = _days(*found.groups())
    return days if days is not None and -(2**31) <= days < 2**31 else None


def timestamp_of(text: str, local: Zone) -> int | None:
    """µs of `yyyy[-m[-d[( |T)h[:m[:s[.f][zone]]]]]]`, digits after the sixth of a fraction are dropped."""
    found = _local_time(text)
    if found is None:
        return None
    local_us, name = found
    zone = local if name is None else time_zone(name)
    if zone is None:
        return None
    instant = local_us - _SECOND_US * offset_seconds(zone, local_us // _SECOND_US)
    return instant if _LOWEST <= instant <= _HIGHEST else None


def _local_time(text: str) -> tuple[int, str | None] | None:
    """µs of the local time as if it were UTC, and the name of its zone."""
    found = _TIME.fullmatch(text.strip(_TRIMMED))
    if found is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    days = _days(sign, year, month, day)
    if days is None:
        return None
    local_us = days * _DAY_US
    if hour is not None:
        hours, minutes, seconds = int(hour), int(minute or 0), int(second or 0)
        if hours > 23 or minutes > 59 or seconds > 59:
            return None
        local_us += (hours * 3600 + minutes * 60 + seconds) * _SECOND_US
        if fraction:
            local_us += int(fraction[:6].ljust(6, "0"))
    return local_us, zone


def _days(sign: str, year: str, month: str | None, day: str | None) -> int | None:
    years, months, days = int(year), int(month or 1), int(day or 1)
    if sign == "-":
        years = -years
    is_leap = years % 4 == 0 and (years % 100 != 0 or years % 400 == 0)
    if not 1 <= months <= 12 or not 1 <= days <= _DAYS_OF_MONTH[months - 1] + (is_leap and months == 2):
        return None
    before = years - 1
    return (
        365 * years
        + before // 4
        - before // 100
        + before // 400
        + 1
        + _DAYS_BEFORE_MONTH[months - 1]
        + (is_leap and months > 2)
        + days
        - 1
        - _TO_1970
    )


# Zones ---------------------------------------------------------------------------------------------------------------

Zone = int | ZoneInfo
"""A fixed offset in seconds, or the rules of a place."""

_ONE_DIGIT_HOUR = re.compile(r"([+-])([0-9]):")
_ONE_DIGIT_MINUTE = re.compile(r"([+-])([0-9]{2}):([0-9])$")
_OFFSET = re.compile(r"([+-])([0-9]{1,2}|[0-9]{2}([0-9]{2})([0-9]{2})?|[0-9]{2}:([0-9]{2})(?::([0-9]{2}))?)")
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_NO_PLACES = frozenset({"Factory", "ROC", "localtime", "posixrules"})
_NO_FOLDERS = frozenset({"", ".", "..", "posix", "right"})
_SHORT: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
_CYCLE_SECONDS = 146_097 * 86_400  # 400 years of the calendar, in whole weeks
_YEAR_1 = datetime(1, 1, 1)  # noqa: DTZ001  a local time, to which a zone is given below
_YEAR_1_SECONDS = -719_162 * 86_400
_YEARS_SECONDS = 3_652_059 * 86_400
"""From year 1 to the end of year 9999."""
_FIRST, _LAST = datetime(1, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001


@lru_cache(maxsize=2048)
def time_zone(name: str) -> Zone | None:
    """The zone of a name: `Z`, `+h[h][:mm[:ss]]`, `UTC+1`, `Europe/Paris`, `PST`; None if it names no zone."""
    name = name.strip(_BLANKS)
    name = _ONE_DIGIT_HOUR.sub(r"\g<1>0\g<2>:", name, count=1)
    name = _ONE_DIGIT_MINUTE.sub(r"\g<1>\g<2>:0\g<3>", name, count=1)
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    bare = name.removeprefix(name[:3] if name[:3] in ("UTC", "GMT") else name[:2] if name[:2] == "UT" else "")
    if bare[:1] in ("+", "-"):
        return _offset(bare)
    if not _PLACE.fullmatch(name) or name in _NO_PLACES or not _NO_FOLDERS.isdisjoint(name.split("/")):
        return None
    return _place(name)


def _place(name: str) -> ZoneInfo | None:
    """The rules of the package `tzdata`; those of the machine if it is not installed."""
    try:
        rules = resources.files("tzdata.zoneinfo")
    except ModuleNotFoundError:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return None
    try:
        with rules.joinpath(name).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (ValueError, OSError):
        return None


def _offset(text: str) -> int | None:
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    sign, whole, *parts = found.groups()
    minutes = int(parts[0] or parts[2] or 0)
    seconds = int(parts[1] or parts[3] or 0)
    total = int(whole[:2]) * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        return None
    return -total if sign == "-" else total


def offset_seconds(zone: Zone, local_seconds: int) -> int:
    """The offset of a local time from UTC: the first of two; in a gap that before it, as if the clock had not moved."""
    if isinstance(zone, int):
        return zone
    return _seconds(_near(local_seconds).replace(tzinfo=zone).utcoffset())


def offset_at(zone: Zone, utc_seconds: int) -> int:
    """The offset from UTC at an instant."""
    if isinstance(zone, int):
        return zone
    # In the first and the last days that Python has, the local time may be none.
    near = min(max(_near(utc_seconds), _FIRST), _LAST)
    return _seconds(near.replace(tzinfo=UTC).astimezone(zone).utcoffset())


def _near(seconds: int) -> datetime:
    """A time of a year that Python has, at which a zone has the same offset."""
    since = seconds - _YEAR_1_SECONDS
    # Rules repeat with the calendar; before the first of them a zone has one offset.
    if since >= _YEARS_SECONDS:
        since = _YEARS_SECONDS - _CYCLE_SECONDS + (since - _YEARS_SECONDS) % _CYCLE_SECONDS
    return _YEAR_1 + timedelta(seconds=max(since, 0))


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None
    return offset.days * 86_400 + offset.seconds


_READERS: Final[dict[str, Reader]] = {
    "string": text_of,
    "binary": _binary,
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "date": _date,
    "timestamp_ntz": _timestamp_ntz,
}

_FIELD_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "binary": str.encode,
    "boolean": _boolean_field,
    "float": _float_field,
    "double": _double_field,
}
