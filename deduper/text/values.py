"""Values of a declared type, from a JSON token or from a field of CSV. PURE.

A date is days since 1970-01-01, a time µs since then, in the proleptic Gregorian calendar. Every reader raises
`Malformed` when the token is no value of its type.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final

import numpy as np

from deduper.columns import ColumnType
from deduper.text.format import Malformed
from deduper.time_zones import Zone, offset_seconds, time_zone


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
    """Reads tokens as values of a column's type; no single token is one of a nested type.

    `zone` is that of times without one.
    """
    name = kind.name
    if not kind.is_scalar:
        return _none_of(name)
    if name in WHOLE_BITS:
        return _whole_reader(name, WHOLE_BITS[name])
    if name == "decimal":
        precision, scale = kind.precision or 10, kind.scale or 0
        return lambda token, text: _decimal(token, text, precision, scale)
    if name == "timestamp":
        local = _zone_of(zone)
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


def cast_of(kind: ColumnType, zone: str) -> Callable[[str], Any]:
    """Reads a text that stands alone as Spark's cast does; see `_CASTS`. `zone` is that of times without one."""
    name = kind.name
    if name in WHOLE_BITS:
        whole = reader(kind, zone)
        return lambda text: whole(Token.WHOLE, _whole_cast_text(text))
    if name == "decimal":
        precision, scale = kind.precision or 10, kind.scale or 0
        return lambda text: decimal_of(_in_ascii(text.strip(_BLANKS)), precision, scale)
    if name == "timestamp":
        local = _zone_of(zone)
        return lambda text: _required(timestamp_of(text, local), name)
    return _CASTS[name]


def _zone_of(name: str) -> Zone:
    zone = time_zone(name)
    if zone is None:
        raise ValueError(f"{name} is no time zone")
    return zone


def _required(value: int | None, kind: str) -> int:
    if value is None:
        raise _wrong(kind)
    return value


def _wrong(kind: str) -> Malformed:
    return Malformed(f"not a value of type {kind}")


def text_of(token: int | None, text: str) -> str:
    """The text of a value in a string column; None: null inside an object or array."""
    if token == Token.FRACTION:
        return number_text(float(text))
    if token == Token.NOT_FINITE:
        return number_text(_NOT_FINITE_TEXTS[text])
    return "0" if token == Token.WHOLE and text == "-0" else text


def _none_of(kind: str) -> Reader:
    def none(*_: object) -> Any:
        raise _wrong(kind)

    return none


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
    digits = _in_ascii(text[len(sign) :])
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
        text = _in_ascii(text.replace(",", ""))
    elif token not in (Token.WHOLE, Token.FRACTION):
        raise _wrong("decimal")
    return decimal_of(text, precision, scale)


def _in_ascii(text: str) -> str:
    """The text with all digits as those of ASCII."""
    return text if text.isascii() else "".join(map(_ascii_digit, text))


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
    years = int(year)
    return days_of(-years if sign == "-" else years, int(month or 1), int(day or 1))


def days_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01; None of a day that the calendar lacks."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_OF_MONTH[month - 1] + (is_leap and month == 2):
        return None
    before = year - 1
    return (
        365 * year
        + before // 4
        - before // 100
        + before // 400
        + 1
        + _DAYS_BEFORE_MONTH[month - 1]
        + (is_leap and month > 2)
        + day
        - 1
        - _TO_1970
    )


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


# Texts that stand alone ----------------------------------------------------------------------------------------------

_TRUE: Final = frozenset({"t", "true", "y", "yes", "1"})
_FALSE: Final = frozenset({"f", "false", "n", "no", "0"})
_NOT_FINITE_WORDS: Final = {"nan": "NaN"} | {
    f"{sign}{word}": f"{sign}Infinity" for sign in ("", "+", "-") for word in ("inf", "infinity")
}


def _whole_cast_text(text: str) -> str:
    found = text.strip(_TRIMMED)
    if not found.isascii() or not found:
        raise _wrong("a whole number")
    return _whole_text(found)


def _boolean_cast(text: str) -> bool:
    word = text.strip(_TRIMMED).lower()
    if word not in _TRUE | _FALSE:
        raise _wrong("boolean")
    return word in _TRUE


def _number_cast(text: str) -> str:
    return _NOT_FINITE_WORDS.get(text.strip(_BLANKS).lower(), text)


def _timestamp_ntz_cast(text: str) -> int:
    """A zone may stand behind it, and counts for nothing."""
    found = _local_time(text)
    if found is None or (found[1] is not None and time_zone(found[1]) is None):
        raise _wrong("timestamp_ntz")
    return _required(found[0] if _LOWEST <= found[0] <= _HIGHEST else None, "timestamp_ntz")


_CASTS: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "binary": str.encode,
    "boolean": _boolean_cast,
    "float": lambda text: _float_field(_number_cast(text)),
    "double": lambda text: _double_field(_number_cast(text)),
    "date": lambda text: _required(date_of(text), "date"),
    "timestamp_ntz": _timestamp_ntz_cast,
}
"""Blanks and control characters around a value count for nothing; texts and bytes are taken whole."""
