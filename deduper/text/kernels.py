"""PURE. Lines of a block as cells of the declared columns, by a kernel that vouches for *plain* lines alone.

A cell is an entry of `value`, `length` and `valid`, arrays of columns times rows:

    text         value: where it begins in the data; length: its bytes there, negative when escapes are among them
                 value + WITH_BLANKS: an object or array as a text, its blanks to be left out
                 value + WITH_DOUBLED: its quotes are doubled
    binary       value + IN_BASE64; in CSV as a text
    whole        value
    time         value; length: not 0 when digits other than zeros were dropped
    decimal      value: unscaled, at the declared scale; length: not 0 when it was rounded
    double       value: the bits of a float64, for a float column too
    boolean      value: 0 or 1
    nested       value: where the object or array begins in the data; length: its bytes there
    null         valid: 0

Plain is what `json_exact`, `csv_exact` or `log_exact` takes with the same values, and less: whatever is rare or in
doubt is left to them. The rules stand at the kernels. No byte outside a line is read.

The kernels stand in one file because numba's cache looks at the time of the file a kernel is in, and not at the files
of the kernels it calls. Numbers of bytes and places are int64; only an index is unsigned, because a signed one would be
looked at for being negative.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from bucket_store.compiled import kernel

Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]

PLAIN: Final = 0
NOT_PLAIN: Final = 1
NOT_UTF8: Final = 2

TEXT: Final = 0
WHOLE: Final = 1
DOUBLE: Final = 2
FLOAT: Final = 3
DECIMAL: Final = 4
BOOLEAN: Final = 5
DATE: Final = 6
TIME_IN_ZONE: Final = 7
TIME_OR_ZONE: Final = 8
TIME_WITHOUT: Final = 9
BINARY: Final = 10
NESTED: Final = 11
"""Kinds of columns. Times need their zone, may lack it (it is UTC then), or have none. Nested ones are of JSON only."""

WITH_BLANKS: Final = 1 << 62
IN_BASE64: Final = 1 << 61
WITH_DOUBLED: Final = 1 << 60

NAME_BEGIN: Final = 0
NAME_LENGTH: Final = 1
KIND: Final = 2
LOWEST: Final = 3
HIGHEST: Final = 4
SCALE: Final = 3
DIGITS: Final = 4
FIELDS: Final = 5
"""What a row of `columns` holds: bounds for whole numbers; scale and most digits for decimals."""

LOG_USER: Final = 2
LOG_TIME: Final = 3
LOG_REQUEST: Final = 4
LOG_STATUS: Final = 8
LOG_BYTES: Final = 9
LOG_REFERER: Final = 10
LOG_REST: Final = 12
LOG_FIELDS: Final = 13
"""Numbers of the fields of a web server's line, in the order of `log_formats.FIELDS`; parts of a request behind it."""

MOST_BYTES: Final = 1 << 24
"""Longer lines are not plain: lengths have 32 bits."""
_LONGEST_NAME: Final = 10_000
_LONGEST_NUMBER: Final = 500
_DEEPEST: Final = 60
_MOST_DIGITS: Final = 18
_EXACT: Final = 1 << 53
_EXACT_POWER: Final = 22
_SPLIT: Final = float((1 << 27) + 1)
_DOUBT: Final = 2.0**-45
_TEXT_DIGITS: Final = 15
_SECONDS_DIGITS: Final = 12

_NO_PLACE: Final = -1
_NO_DAY: Final = 1 << 40
_INTEGER: Final = 0
_POINT: Final = 1
_POWER: Final = 2

_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_LINE_ENDS: Final = np.uint64(0x0A0A0A0A0A0A0A0A)
_SPACES: Final = np.uint64(0x2020202020202020)
_HTTP: Final = int.from_bytes(b"HTTP", "little")
_MONTHS: Final = np.array(
    [int.from_bytes(name, "little") for name in b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()],
    np.int64,
)
_NULL: Final = int.from_bytes(b"null", "little")
_TRUE: Final = int.from_bytes(b"true", "little")
_FALS: Final = int.from_bytes(b"fals", "little")
_LOWER: Final = int.from_bytes(b"    ", "little")
_FLOAT_POWERS: Final = np.array([float(f"1e{power}") for power in range(_EXACT_POWER + 1)])
_POWERS: Final = np.array([10**power for power in range(_MOST_DIGITS + 1)], np.int64)
_SIXTY_FOUR: Final = np.full(256, -1, np.int64)
_SIXTY_FOUR[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = range(64)
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DAYS_BEFORE: Final = np.concatenate([[0], np.cumsum(_MONTH_DAYS)]).astype(np.int64)[:13]
_DAYS_TO_1970: Final = 719_162

_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES_IN = types.Array(types.int64, 1, "C", readonly=True)
_COLUMNS_IN = types.Array(types.int64, 2, "C", readonly=True)
_PARSE = types.void(
    _BYTES_IN,  # data
    _PLACES_IN,  # starts
    _PLACES_IN,  # ends
    _COLUMNS_IN,  # columns
    _BYTES_IN,  # names; the delimiter
    types.Array(types.int64, 2, "C"),  # value
    types.Array(types.float64, 2, "C"),  # floats
    types.Array(types.int32, 2, "C"),  # length
    types.Array(types.uint8, 2, "C"),  # valid
    types.Array(types.uint8, 1, "C"),  # status
)
_GATHER = types.int64(
    _BYTES_IN,  # data
    _BYTES_IN,  # other
    _PLACES_IN,  # value
    types.Array(types.int32, 1, "C", readonly=True),  # length
    _BYTES_IN,  # valid
    types.Array(types.uint8, 1, "C"),  # texts
    types.Array(types.int32, 1, "C"),  # offsets
)


def _items_code(_typing_context: Any, array: Any) -> Any:
    """The place in memory of an array's first item, through which its items are read and written.

    Unlike an array it is not counted as in use when it is passed on, which would take half of the time. It does not
    keep the array.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return cast(Any, types).CPointer(array.dtype)(array), generate


_items = cast(Any, intrinsic(_items_code))


@kernel(inline="always")
def _half_word_at(data: Any, at: Any) -> Any:
    # Without a loop: then it is one load.
    return (
        np.uint64(data[at])
        | np.uint64(data[at + 1]) << np.uint64(8)
        | np.uint64(data[at + 2]) << np.uint64(16)
        | np.uint64(data[at + 3]) << np.uint64(24)
    )


@kernel(inline="always")
def _word_at(data: Any, at: Any) -> Any:
    # One load too.
    at = np.uint64(at)
    return _half_word_at(data, at) | _half_word_at(data, at + np.uint64(4)) << np.uint64(32)


@kernel(inline="always")
def _zeros_in(word: Any) -> Any:
    """Highest bits of the bytes that are 0. Above the first such byte there may be more; below it there is none."""
    return (word - _ONES) & ~word & _HIGHS


@kernel(inline="always")
def _first_marked(marks: Any) -> Any:
    """Number of the lowest byte whose highest bit is set; there is one."""
    below = (marks & (~marks + np.uint64(1))) - np.uint64(1)
    return np.int64((below & _ONES) * _ONES >> np.uint64(56)) - 1


# --- UTF-8


@kernel()
def _is_ascii(data: Any, at: Any, end: Any) -> Any:
    some = np.uint64(0)
    while end - at >= 8:
        some |= _word_at(data, at)
        at += 8
    while at < end:
        some |= np.uint64(data[at])
        at += 1
    return some & _HIGHS == 0


@kernel()
def is_utf8(data: Any, at: Any, end: Any) -> Any:
    """As strict as Python's decoder: no overlong forms, no surrogates, nothing above U+10FFFF."""
    while at < end:
        if end - at >= 8:
            marks = _word_at(data, at) & _HIGHS
            if marks == 0:
                at += 8
                continue
            at += _first_marked(marks)
        lead = np.int64(data[at])
        at += 1
        if lead < 0x80:
            continue
        # The second byte's bounds exclude all that is overlong, a surrogate or too great.
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more or not low <= np.int64(data[at]) <= high:
            return False
        for place in range(at + 1, at + more):
            if np.int64(data[place]) & 0xC0 != 0x80:
                return False
        at += more
    return True


# --- Parts of the grammar. Each gives the place behind the part, or -1 when it is not plain.


@kernel(inline="always")
def _after_blanks(data: Any, at: Any, end: Any) -> Any:
    while at < end and (data[at] == 0x20 or data[at] == 0x09):
        at += 1
    return at


@kernel()
def _unit(data: Any, at: Any, end: Any) -> Any:
    """The UTF-16 unit of four hexadecimal digits."""
    if end - at < 4:
        return -1
    unit: Any = 0
    for place in range(at, at + 4):
        byte = np.int64(data[place])
        if 0x30 <= byte <= 0x39:
            unit = unit * 16 + byte - 0x30
        elif 0x41 <= byte & ~0x20 <= 0x46:
            unit = unit * 16 + (byte & ~0x20) - 0x41 + 10
        else:
            return -1
    return unit


@kernel()
def _after_escape(data: Any, at: Any, end: Any) -> Any:
    r"""Behind the escape whose backslash is at `at`. A surrogate is plain as half of a pair only."""
    if end - at < 2:
        return _NO_PLACE
    byte = data[at + 1]
    if byte != 0x75:
        for known in b'"\\/bfnrt':
            if byte == known:
                return at + 2
        return _NO_PLACE
    unit = _unit(data, at + 2, end)
    if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
        return _NO_PLACE
    if not 0xD800 <= unit <= 0xDBFF:
        return at + 6
    if end - at < 12 or data[at + 6] != 0x5C or data[at + 7] != 0x75:
        return _NO_PLACE
    return at + 12 if 0xDC00 <= _unit(data, at + 8, end) <= 0xDFFF else _NO_PLACE


@kernel()
def _closing_quote(data: Any, at: Any, end: Any) -> Any:
    """(place of the quote that ends the text which begins at `at`, whether escapes are in the text)."""
    escaped = False
    while at < end:
        if end - at >= 8:
            word = _word_at(data, at)
            marks = _zeros_in(word ^ _QUOTES) | _zeros_in(word ^ _BACKSLASHES) | ((word - _SPACES) & ~word & _HIGHS)
            if marks == 0:
                at += 8
                continue
            at += _first_marked(marks)
        byte = data[at]
        if byte == 0x22:
            return at, escaped
        if byte < 0x20:
            break
        if byte == 0x5C:
            at = _after_escape(data, at, end)
            if at < 0:
                break
            escaped = True
        else:
            at += 1
    return _NO_PLACE, escaped


@kernel(inline="always")
def _is_digit(data: Any, at: Any, end: Any) -> Any:
    return at < end and np.uint64(data[at]) - np.uint64(0x30) <= np.uint64(9)


@kernel()
def _number(data: Any, at: Any, end: Any) -> Any:
    """(place behind, whether negative, the digits as one number, their count, count behind the point, exponent, form).

    Zeros in front are not counted; of more than 18 digits the number is wrong. The form is _INTEGER, _POINT or _POWER.
    """
    begin = at
    negative = at < end and data[at] == 0x2D
    if negative:
        at += 1
    number: Any = np.int64(0)
    fraction: Any = np.int64(0)
    exponent: Any = np.int64(0)
    form = _INTEGER
    first = at
    while _is_digit(data, at, end):
        number = number * 10 + np.int64(data[at]) - 0x30
        at += 1
    if at == first or (at - first > 1 and data[first] == 0x30):
        return np.int64(_NO_PLACE), negative, number, fraction, fraction, exponent, form
    digits = at - first if number != 0 or at - first > 1 else np.int64(0)
    if at < end and data[at] == 0x2E:
        form = _POINT
        at += 1
        first = at
        while _is_digit(data, at, end):
            number = number * 10 + np.int64(data[at]) - 0x30
            if digits > 0 or number != 0:
                digits += 1
            at += 1
        fraction = at - first
        if fraction == 0:
            return np.int64(_NO_PLACE), negative, number, digits, fraction, exponent, form
    if at < end and data[at] | 0x20 == 0x65:
        form = _POWER
        at += 1
        less = at < end and data[at] == 0x2D
        if less or (at < end and data[at] == 0x2B):
            at += 1
        first = at
        while _is_digit(data, at, end):
            exponent = min(exponent * 10 + np.int64(data[at]) - 0x30, 1_000_000)
            at += 1
        if at == first:
            return np.int64(_NO_PLACE), negative, number, digits, fraction, exponent, form
        if less:
            exponent = -exponent
    if at - begin > _LONGEST_NUMBER:
        at = np.int64(_NO_PLACE)
    return at, negative, number, digits, fraction, exponent, form


@kernel(inline="always")
def _after_word(data: Any, at: Any, end: Any, word: Any) -> Any:
    """Behind four letters, which are `word`."""
    return at + 4 if end - at >= 4 and _half_word_at(data, at) == np.uint64(word) else _NO_PLACE


@kernel(inline="always")
def _after_boolean(data: Any, at: Any, end: Any) -> Any:
    after = _after_word(data, at, end, _TRUE)
    if after < 0:
        after = _after_word(data, at, end, _FALS)
        if after >= 0:
            after = after + 1 if after < end and data[after] == 0x65 else _NO_PLACE
    return after


@kernel()
def _after_name(data: Any, at: Any, end: Any) -> Any:
    """(place of the value of a field whose opening quote is looked for at `at`, whether escapes are in its name)."""
    if at >= end or data[at] != 0x22:
        return np.int64(_NO_PLACE), False
    close, escaped = _closing_quote(data, at + 1, end)
    if close < 0 or close - at > _LONGEST_NAME:
        return np.int64(_NO_PLACE), escaped
    at = _after_blanks(data, close + 1, end)
    if at >= end or data[at] != 0x3A:
        return np.int64(_NO_PLACE), escaped
    return _after_blanks(data, at + 1, end), escaped


@kernel()
def _is_shortest(number: Any, digits: Any, fraction: Any, form: Any) -> Any:
    """Whether a number with a point is written as a double of its value is: 0.001 to 10^7, no zeros behind.

    Two numbers of 15 digits are never the same double.
    """
    if form != _POINT or digits > _TEXT_DIGITS or fraction > _MOST_DIGITS:
        return False
    is_small = fraction > _MOST_DIGITS - 7 or number < _POWERS[fraction + 7]
    return is_small and number * 1000 >= _POWERS[fraction] and (fraction == 1 or number % 10 != 0)


@kernel()
def _after_any(data: Any, at: Any, end: Any) -> Any:
    """(place behind a value of any type, nested to 60; whether it is its own text but for blanks).

    The text of a value is Jackson's: no blanks, doubles in their shortest form, strings with few escapes.
    """
    depth = 0
    objects = np.uint64(0)  # a bit for each level around: 1 is an object
    as_written = True
    nowhere = np.int64(_NO_PLACE)
    while True:
        if at >= end:
            return nowhere, False
        byte = data[at]
        if byte == 0x22:
            close, escaped = _closing_quote(data, at + 1, end)
            as_written &= not escaped
            at = close + 1 if close >= 0 else nowhere
        elif byte == 0x7B or byte == 0x5B:
            if depth == _DEEPEST:
                return nowhere, False
            depth += 1
            objects = objects << np.uint64(1) | np.uint64(byte == 0x7B)
            at = _after_blanks(data, at + 1, end)
            if at >= end:
                return nowhere, False
            if data[at] != (0x7D if byte == 0x7B else 0x5D):
                if byte == 0x7B:
                    at, escaped = _after_name(data, at, end)
                    as_written &= not escaped
                    if at < 0:
                        return nowhere, False
                continue
        elif byte == 0x6E:
            at = _after_word(data, at, end, _NULL)
        elif byte == 0x74 or byte == 0x66:
            at = _after_boolean(data, at, end)
        else:
            at, negative, number, digits, fraction, _, form = _number(data, at, end)
            if form == _INTEGER:
                as_written &= not negative or digits > 0
            else:
                as_written &= _is_shortest(number, digits, fraction, form)
        if at < 0:
            return nowhere, False
        # Behind a value, or at the end of an empty object or array: to the next value.
        while depth > 0:
            at = _after_blanks(data, at, end)
            if at >= end:
                return nowhere, False
            byte = data[at]
            in_object = objects & np.uint64(1) != 0
            if byte == 0x2C:
                at = _after_blanks(data, at + 1, end)
                if in_object:
                    at, escaped = _after_name(data, at, end)
                    as_written &= not escaped
                    if at < 0:
                        return nowhere, False
                break
            if byte != (0x7D if in_object else 0x5D):
                return nowhere, False
            depth -= 1
            objects >>= np.uint64(1)
            at += 1
        else:
            return at, as_written


# --- Values. A kernel gives the place behind the value, or -1 when it is not plain, and the value.


@kernel(inline="always")
def _two_digits(data: Any, at: Any) -> Any:
    """0 to 99; else 1000 or more."""
    tens = np.uint64(data[at]) - np.uint64(0x30)
    units = np.uint64(data[at + 1]) - np.uint64(0x30)
    if tens > np.uint64(9) or units > np.uint64(9):
        return np.int64(1000)
    return np.int64(tens * np.uint64(10) + units)


@kernel()
def _days_of(year: Any, month: Any, day: Any) -> Any:
    """Days from 1970-01-01 to a day of the calendar; else _NO_DAY."""
    if year < 1 or not 1 <= month <= 12:
        return np.int64(_NO_DAY)
    leap = np.int64(year & 3 == 0 and (year % 100 != 0 or year & 15 == 0))
    if not 1 <= day <= _MONTH_DAYS[month] + (leap if month == 2 else 0):
        return np.int64(_NO_DAY)
    before = year - 1
    days = before * 365 + (before >> 2) - before // 100 + before // 100 // 4
    return days + _DAYS_BEFORE[month] + (leap if month > 2 else 0) + day - 1 - _DAYS_TO_1970


@kernel()
def _days(data: Any, at: Any) -> Any:
    """Days from 1970-01-01 to the YYYY-MM-DD in the ten bytes, which is a day of the calendar; else _NO_DAY."""
    century, year = _two_digits(data, at), _two_digits(data, at + 2)
    month, day = _two_digits(data, at + 5), _two_digits(data, at + 8)
    if century + year + month + day >= 1000 or data[at + 4] != 0x2D or data[at + 7] != 0x2D:
        return np.int64(_NO_DAY)
    return _days_of(year + century * 100, month, day)


@kernel()
def _date(data: Any, at: Any, end: Any) -> Any:
    """Days since the epoch. Behind a `T` or a blank anything may stand."""
    nowhere = np.int64(_NO_PLACE)
    if end - at < 12 or data[at] != 0x22:
        return nowhere, nowhere
    days = _days(data, at + 1)
    close, escaped = at + 11, False
    if data[close] == 0x54 or data[close] == 0x20:
        close, escaped = _closing_quote(data, close, end)
    if close < 0 or escaped or days == _NO_DAY or data[close] != 0x22:
        return nowhere, nowhere
    return close + 1, days


@kernel()
def _time(data: Any, at: Any, end: Any, kind: Any) -> Any:
    """µs since the epoch, and whether digits other than zeros were dropped.

    It is a day, `T` or a blank, HH:MM:SS, parts of a second, and the zone if any; or a day alone. The text may end with
    a quote. Of a fraction all digits behind the sixth are dropped.
    """
    nowhere = np.int64(_NO_PLACE)
    if end - at < 10:
        return nowhere, np.int64(0), np.int32(0)
    days = _days(data, at)
    if (end - at == 10 or data[at + 10] == 0x22) and days != _NO_DAY and kind != TIME_IN_ZONE:
        return at + 10, days * 86_400_000_000, np.int32(0)
    if end - at < 19:
        return nowhere, np.int64(0), np.int32(0)
    hour, minute, second = _two_digits(data, at + 11), _two_digits(data, at + 14), _two_digits(data, at + 17)
    if (
        days == _NO_DAY
        or (data[at + 10] != 0x54 and data[at + 10] != 0x20)
        or data[at + 13] != 0x3A
        or data[at + 16] != 0x3A
        or hour > 23
        or minute > 59
        or second > 59
    ):
        return nowhere, np.int64(0), np.int32(0)
    time = (days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000_000
    at += 19
    dropped = np.int32(0)
    if at < end and data[at] == 0x2E:
        at += 1
        first = at
        fraction = np.int64(0)
        while _is_digit(data, at, end):
            if at - first < 6:
                fraction = fraction * 10 + np.int64(data[at]) - 0x30
            else:
                dropped |= np.int32(data[at] != 0x30)
            at += 1
        if at == first:
            return nowhere, np.int64(0), np.int32(0)
        time += fraction * _POWERS[max(0, 6 - (at - first))]
    if at >= end or data[at] == 0x22:
        return at if kind != TIME_IN_ZONE else nowhere, time, dropped
    if kind == TIME_WITHOUT:
        return nowhere, np.int64(0), np.int32(0)
    byte = data[at]
    if byte == 0x5A:
        at += 1
    else:
        if (byte != 0x2B and byte != 0x2D) or end - at < 6 or data[at + 3] != 0x3A:
            return nowhere, np.int64(0), np.int32(0)
        hour, minute = _two_digits(data, at + 1), _two_digits(data, at + 4)
        if hour > 17 or minute > 59:
            return nowhere, np.int64(0), np.int32(0)
        ahead = (hour * 60 + minute) * 60_000_000
        time += ahead if byte == 0x2D else -ahead
        at += 6
    return at, time, dropped


@kernel(inline="always")
def _product(one: Any, other: Any) -> Any:
    """(one * other rounded, what is missing to the product), by Dekker; none near the ends of float64."""
    product = one * other
    large = one * _SPLIT
    one_high = large - (large - one)
    one_low = one - one_high
    large = other * _SPLIT
    other_high = large - (large - other)
    other_low = other - other_high
    return product, ((one_high * other_high - product) + one_high * other_low + one_low * other_high) + (
        one_low * other_low
    )


@kernel()
def _as_double(negative: Any, number: Any, digits: Any, power: Any, form: Any) -> Any:
    """(whether it is certain, number * 10^power as the nearest double).

    Up to 2^53 both factors are doubles, and one operation rounds rightly; so does making a double of a whole number.
    Beyond, the result is a double and what is missing to it; it is certain when it stays the same with a little more
    or less of that. -0 is a whole number, which has no sign; -0.0 has one.
    """
    if digits == 0:
        return True, -0.0 if negative and form != _INTEGER else 0.0
    if digits > _MOST_DIGITS or not -_EXACT_POWER <= power <= _EXACT_POWER:
        return False, 0.0
    double = float(number)
    factor = _FLOAT_POWERS[abs(power)]
    if number < _EXACT or power == 0:
        double = double / factor if power < 0 else double * factor
        return True, -double if negative else double
    low = float(number - np.int64(double))
    if power < 0:
        quotient = double / factor
        product, missing = _product(quotient, factor)
        rest = (double - product) - missing
        double, more, doubt = quotient, (rest + low) / factor, (abs(rest) + abs(low)) / factor * _DOUBT
    else:
        double, missing = _product(double, factor)
        more, doubt = missing + low * factor, (abs(missing) + abs(low * factor)) * _DOUBT
    most = double + (more + doubt)
    return double + (more - doubt) == most, -most if negative else most


@kernel()
def _is_float(bits: Any, double: Any, power: Any) -> Any:
    """Whether a double rounds to the float of its text: in the middle of two floats only a double that is exact."""
    return bits & 0x1FFFFFFF != 0x10000000 or (power >= 0 and abs(double) < _EXACT)


@kernel()
def _unscaled(number: Any, digits: Any, fraction: Any, form: Any, scale: Any, most: Any) -> Any:
    """A decimal's digits rounded half up to its scale, and whether they had to be.

    -1 when there are more than `most`, or too many in between.
    """
    more = scale - fraction
    if form == _POWER or digits > _MOST_DIGITS or digits + more > most or more < -_MOST_DIGITS:
        return np.int64(-1), np.int32(0)
    if more >= 0:
        return number * _POWERS[more], np.int32(0)
    dropped = number % _POWERS[-more]
    number = number // _POWERS[-more] + np.int64(dropped * 2 >= _POWERS[-more])
    return number if number < _POWERS[most] else np.int64(-1), np.int32(dropped != 0)


@kernel()
def _is_base64(data: Any, at: Any, end: Any) -> Any:
    """Whether the bytes are groups of four signs, of which the last two or one may be `=`."""
    if (end - at) & 3 != 0:
        return False
    if end > at and data[end - 1] == 0x3D:
        end -= 2 if data[end - 2] == 0x3D else 1
    least = np.int64(0)
    for place in range(at, end):
        least = min(least, _SIXTY_FOUR[data[place]])
    return least == 0


@kernel()
def _has_four_bytes(data: Any, at: Any, end: Any) -> Any:
    """Whether a sign beyond U+FFFF is among the bytes, which are UTF-8."""
    most = np.uint8(0)
    for place in range(at, end):
        most = max(most, data[place])
    return most >= 0xF0


@kernel()
def _parse_line(
    data: Any,
    at: Any,
    end: Any,
    row: Any,
    rows: Any,
    count: Any,
    columns: Any,
    names: Any,
    seen: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
) -> Any:
    """Whether the line is plain; its cells are written, and may be when it is not.

    `seen` has for each of the `count` columns the row that had it last.
    """
    while end > at and (data[end - 1] == 0x20 or data[end - 1] == 0x09 or data[end - 1] == 0x0D):
        end -= 1
    if end - at > MOST_BYTES:
        return False
    at = _after_blanks(data, at, end)
    if at >= end or data[at] != 0x7B:
        return False
    at = _after_blanks(data, at + 1, end)
    if at < end and data[at] == 0x7D:
        return at + 1 == end
    expected = 0
    while True:
        # The name: most lines have their fields in one order.
        if at >= end or data[at] != 0x22:
            return False
        at += 1
        column = _NO_PLACE
        if expected < count:
            size = columns[expected * FIELDS + NAME_LENGTH]
            if 0 <= size < end - at and data[at + size] == 0x22:
                begin = columns[expected * FIELDS + NAME_BEGIN]
                same = np.int64(0)
                while same < size and data[at + same] == names[begin + same]:
                    same += 1
                if same == size:
                    column = expected
                    at += size + 1
        if column < 0:
            close, escaped = _closing_quote(data, at, end)
            if close < 0 or escaped or close - at > _LONGEST_NAME:
                return False
            for other in range(count):
                if columns[other * FIELDS + NAME_LENGTH] == close - at:
                    begin = columns[other * FIELDS + NAME_BEGIN]
                    same = np.int64(0)
                    while at + same < close and data[at + same] == names[begin + same]:
                        same += 1
                    if at + same == close:
                        column = other
                        break
            at = close + 1
        at = _after_blanks(data, at, end)
        if at >= end or data[at] != 0x3A:
            return False
        at = _after_blanks(data, at + 1, end)
        if at >= end:
            return False
        # The value.
        if column < 0:
            at, _ = _after_any(data, at, end)
        else:
            if seen[column] == row:
                return False
            seen[column] = row
            expected = column + 1
            cell = column * rows + row
            kind = columns[column * FIELDS + KIND]
            byte = data[at]
            if byte == 0x6E:
                at = _after_word(data, at, end, _NULL)
            else:
                valid[cell] = 1
                if kind == NESTED:
                    # Whether it is of the column's type is another's to say.
                    if byte != 0x7B and byte != 0x5B:
                        return False
                    close, _ = _after_any(data, at, end)
                    if close < 0:
                        return False
                    value[cell], length[cell] = at, np.int32(close - at)
                    at = close
                elif kind in (TEXT, BINARY):
                    if byte == 0x22:
                        close, escaped = _closing_quote(data, at + 1, end)
                        if close < 0:
                            return False
                        value[cell], size = at + 1, close - at - 1
                        at = close + 1
                        if kind == BINARY:
                            if escaped or not _is_base64(data, at - 1 - size, at - 1):
                                return False
                            value[cell] += IN_BASE64
                    elif kind == BINARY:
                        return False
                    else:
                        close, as_written = _after_any(data, at, end)
                        if close < 0 or not as_written:
                            return False
                        value[cell], size, escaped = at, close - at, False
                        if byte == 0x7B or byte == 0x5B:
                            if _has_four_bytes(data, at, close):
                                return False
                            value[cell] += WITH_BLANKS
                        at = close
                    length[cell] = np.int32(-size if escaped else size)
                elif kind >= TIME_IN_ZONE and byte == 0x22:
                    at, found, length[cell] = _time(data, at + 1, end, kind)
                    if at < 0 or at >= end or data[at] != 0x22:
                        return False
                    at += 1
                    value[cell] = found
                elif kind == DATE:
                    at, found = _date(data, at, end)
                    value[cell] = found
                elif kind == BOOLEAN:
                    value[cell] = np.int64(byte == 0x74)
                    at = _after_boolean(data, at, end)
                else:
                    is_quoted = kind == DECIMAL and byte == 0x22
                    at, negative, number, digits, fraction, exponent, form = _number(data, at + is_quoted, end)
                    if at < 0:
                        return False
                    if is_quoted:
                        if at >= end or data[at] != 0x22:
                            return False
                        at += 1
                    if kind == WHOLE:
                        found = -number if negative else number
                        # 19 digits fit 64 bits: beyond 63 of them the number is negative.
                        if (
                            form != _INTEGER
                            or digits > _MOST_DIGITS + 1
                            or number < 0
                            or found < columns[column * FIELDS + LOWEST]
                            or found > columns[column * FIELDS + HIGHEST]
                        ):
                            return False
                        value[cell] = found
                    elif kind == DECIMAL:
                        scale, most = columns[column * FIELDS + SCALE], columns[column * FIELDS + DIGITS]
                        number, length[cell] = _unscaled(number, digits, fraction, form, scale, most)
                        if number < 0:
                            return False
                        value[cell] = -number if negative else number
                    elif kind >= TIME_IN_ZONE:
                        # Seconds since the epoch.
                        if form != _INTEGER or digits > _SECONDS_DIGITS or kind == TIME_WITHOUT:
                            return False
                        value[cell] = (-number if negative else number) * 1_000_000
                    else:
                        is_certain, double = _as_double(negative, number, digits, exponent - fraction, form)
                        if not is_certain:
                            return False
                        floats[cell] = double
                        if kind == FLOAT and not _is_float(value[cell], double, exponent - fraction):
                            return False
        if at < 0:
            return False
        at = _after_blanks(data, at, end)
        if at >= end:
            return False
        if data[at] == 0x7D:
            return at + 1 == end
        if data[at] != 0x2C:
            return False
        at = _after_blanks(data, at + 1, end)


@kernel(_PARSE)
def parse_json_lines(
    data: Any,
    starts: Any,
    ends: Any,
    columns: Any,
    names: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
    status: Any,
) -> None:
    """Every line data[starts[i]:ends[i]] into cells of row i, and its `status`; only of plain lines are they right.

    `columns` has a row of FIELDS for each column, `names` their names; `floats` is `value` as floats; `valid` is all 0.
    A name that cannot stand in a line without escapes has the length -1.
    """
    rows, count = starts.size, columns.shape[0]
    seen = np.full(count, -1, np.int64)
    block, fields, letters = _items(data), _items(columns), _items(names)
    numbers, doubles, sizes, marks, rows_of = _items(value), _items(floats), _items(length), _items(valid), _items(seen)
    for row in range(rows):
        at, end = starts[row], ends[row]
        if not _is_ascii(block, at, end) and not is_utf8(block, at, end):
            status[row] = NOT_UTF8
        elif _parse_line(block, at, end, row, rows, count, fields, letters, rows_of, numbers, doubles, sizes, marks):
            status[row] = PLAIN
        else:
            status[row] = NOT_PLAIN
    seen[:] = 0  # keeps the array until here


# --- Lines of CSV


@kernel()
def _field(data: Any, at: Any, end: Any, delimiter: Any, delimiters: Any) -> Any:
    """(begin of a field's text, its end, whether its quotes are doubled, place of the delimiter or line end behind it).

    A field with quotes begins with one and ends with one; any other place for a single quote is not plain. `delimiters`
    is a word of the delimiter.
    """
    if at < end and data[at] == 0x22:
        at += 1
        begin, is_doubled = at, False
        while at < end:
            if end - at >= 8:
                marks = _zeros_in(_word_at(data, at) ^ _QUOTES)
                if marks == 0:
                    at += 8
                    continue
                at += _first_marked(marks)
            if data[at] == 0x22:
                if at + 1 == end or data[at + 1] == delimiter:
                    return begin, at, is_doubled, at + 1
                if data[at + 1] != 0x22:
                    break
                is_doubled = True
                at += 1
            at += 1
        return np.int64(_NO_PLACE), at, False, at
    begin = at
    while at < end:
        if end - at >= 8:
            word = _word_at(data, at)
            marks = _zeros_in(word ^ delimiters) | _zeros_in(word ^ _QUOTES)
            if marks == 0:
                at += 8
                continue
            at += _first_marked(marks)
        if data[at] == delimiter:
            break
        if data[at] == 0x22:
            return np.int64(_NO_PLACE), at, False, at
        at += 1
    return begin, at, False, at


@kernel()
def _whole(data: Any, at: Any, end: Any) -> Any:
    """(whether all bytes are a whole number of at most 63 bits, it); a sign and zeros may stand in front."""
    negative = data[at] == 0x2D
    if negative or data[at] == 0x2B:
        at += 1
    number = np.int64(0)
    # 19 digits fit 64 bits: beyond 63 of them the number is negative.
    if at == end or end - at > _MOST_DIGITS + 1:
        return False, number
    for place in range(at, end):
        digit = np.uint64(data[place]) - np.uint64(0x30)
        if digit > np.uint64(9):
            return False, number
        number = number * 10 + np.int64(digit)
    return number >= 0, -number if negative else number


@kernel(inline="always")
def _put_field(
    data: Any,
    begin: Any,
    stop: Any,
    cell: Any,
    column: Any,
    columns: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
) -> Any:
    """Whether a field, which is not empty, is plain; its cell is written, and may be when it is not.

    Inlined: calls would cost a line of short numbers a fifth more.
    """
    kind = columns[column * FIELDS + KIND]
    valid[cell] = 1
    if kind in (TEXT, BINARY):
        value[cell] = begin
        length[cell] = np.int32(stop - begin)
    elif kind == WHOLE:
        is_whole, found = _whole(data, begin, stop)
        if not is_whole or found < columns[column * FIELDS + LOWEST] or found > columns[column * FIELDS + HIGHEST]:
            return False
        value[cell] = found
    elif kind >= TIME_IN_ZONE:
        behind, found, length[cell] = _time(data, begin, stop, kind)
        if behind != stop:
            return False
        value[cell] = found
    elif kind == DATE:
        if stop - begin < 10:
            return False
        found = _days(data, begin)
        if found == _NO_DAY or (stop - begin > 10 and data[begin + 10] != 0x54 and data[begin + 10] != 0x20):
            return False
        value[cell] = found
    elif kind == BOOLEAN:
        is_true = stop - begin == 4
        if stop - begin != 4 + (not is_true) or (not is_true and data[begin + 4] | 0x20 != 0x65):
            return False
        if _half_word_at(data, begin) | np.uint64(_LOWER) != np.uint64(_TRUE if is_true else _FALS):
            return False
        value[cell] = np.int64(is_true)
    else:
        behind, negative, number, digits, fraction, exponent, form = _number(data, begin, stop)
        if behind != stop:
            return False
        if kind == DECIMAL:
            scale, most = columns[column * FIELDS + SCALE], columns[column * FIELDS + DIGITS]
            number, length[cell] = _unscaled(number, digits, fraction, form, scale, most)
            if number < 0:
                return False
            value[cell] = -number if negative else number
        else:
            # A whole number has a negative zero too.
            is_certain, double = _as_double(negative, number, digits, exponent - fraction, _POINT)
            if not is_certain:
                return False
            floats[cell] = double
            if kind == FLOAT and not _is_float(value[cell], double, exponent - fraction):
                return False
    return True


@kernel()
def _parse_csv_line(
    data: Any,
    at: Any,
    end: Any,
    row: Any,
    rows: Any,
    count: Any,
    columns: Any,
    delimiter: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
) -> Any:
    """Whether the line is plain; its cells are written, and may be when it is not."""
    while end > at and data[end - 1] == 0x0D:
        end -= 1
    if end - at > MOST_BYTES:
        return False
    first = at
    while first < end and data[first] == 0x20:
        first += 1
    if first == end:
        return False
    delimiters = np.uint64(delimiter) * _ONES
    for column in range(count):
        begin, stop, is_doubled, at = _field(data, at, end, delimiter, delimiters)
        if begin < 0:
            return False
        if begin < stop:
            if is_doubled and columns[column * FIELDS + KIND] not in (TEXT, BINARY):
                return False
            cell = column * rows + row
            if not _put_field(data, begin, stop, cell, column, columns, value, floats, length, valid):
                return False
            if is_doubled:
                value[cell] += WITH_DOUBLED
        if at >= end:
            return True
        at += 1
    return False


@kernel(_PARSE)
def parse_csv_lines(
    data: Any,
    starts: Any,
    ends: Any,
    columns: Any,
    delimiter: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
    status: Any,
) -> None:
    """Every line data[starts[i]:ends[i]] into cells of row i, and its `status`, as `parse_json_lines` does.

    Columns have no names. A delimiter of more than a byte makes no line plain.
    """
    rows, count = starts.size, columns.shape[0]
    block, fields = _items(data), _items(columns)
    numbers, doubles, sizes, marks = _items(value), _items(floats), _items(length), _items(valid)
    sign, is_byte = delimiter[0], delimiter.size == 1
    for row in range(rows):
        at, end = starts[row], ends[row]
        if not _is_ascii(block, at, end) and not is_utf8(block, at, end):
            status[row] = NOT_UTF8
        elif is_byte and _parse_csv_line(
            block, at, end, row, rows, count, fields, sign, numbers, doubles, sizes, marks
        ):
            status[row] = PLAIN
        else:
            status[row] = NOT_PLAIN


# --- Lines of logs


@kernel()
def _word_end(data: Any, at: Any, end: Any) -> Any:
    """The place of the next space, or of the end."""
    while at < end and data[at] != 0x20:
        at += 1
    return at


@kernel()
def _text_end(data: Any, at: Any, end: Any) -> Any:
    """The place of the quote that ends the text which begins at `at`; a backslash takes the next sign with it."""
    while at < end:
        if end - at >= 8:
            word = _word_at(data, at)
            marks = _zeros_in(word ^ _QUOTES) | _zeros_in(word ^ _BACKSLASHES)
            if marks == 0:
                at += 8
                continue
            at += _first_marked(marks)
        if data[at] == 0x22:
            return at
        at += 2 if data[at] == 0x5C else 1
    return np.int64(_NO_PLACE)


@kernel()
def _log_time(data: Any, at: Any) -> Any:
    """(whether the 26 bytes are a time as 10/Oct/2000:13:55:36 -0700, its µs since 1970)."""
    month = np.int64(data[at + 3]) | np.int64(data[at + 4]) << 8 | np.int64(data[at + 5]) << 16
    number = np.int64(0)
    while number < 12 and _MONTHS[number] != month:
        number += 1
    day, hour, minute, second = (
        _two_digits(data, at),
        _two_digits(data, at + 12),
        _two_digits(data, at + 15),
        _two_digits(data, at + 18),
    )
    ahead_h, ahead_min = _two_digits(data, at + 22), _two_digits(data, at + 24)
    century, year = _two_digits(data, at + 7), _two_digits(data, at + 9)
    sign = data[at + 21]
    if (
        data[at + 2] != 0x2F
        or data[at + 6] != 0x2F
        or data[at + 11] != 0x3A
        or data[at + 14] != 0x3A
        or data[at + 17] != 0x3A
        or data[at + 20] != 0x20
        or (sign != 0x2B and sign != 0x2D)
        or number == 12
        or century + year >= 1000
        or day > 31
        or hour > 23
        or minute > 59
        or second > 59
        or ahead_h > 17
        or ahead_min > 59
    ):
        return False, np.int64(0)
    days = _days_of(century * 100 + year, number + 1, day)
    if days == _NO_DAY:
        return False, np.int64(0)
    ahead = (ahead_h * 60 + ahead_min) * 60
    since = days * 86_400 + hour * 3600 + minute * 60 + second
    return True, (since + (ahead if sign == 0x2D else -ahead)) * 1_000_000


@kernel()
def _log_fields(data: Any, at: Any, end: Any, is_combined: Any, begins: Any, stops: Any) -> Any:
    """(whether a line has all fields of its format, its time in µs); their places, in which a null is empty."""
    time = np.int64(0)
    for field in range(LOG_FIELDS):
        begins[field] = stops[field] = 0
    for field in range(2):
        stop = _word_end(data, at, end)
        if stop in (at, end):
            return False, time
        begins[field], stops[field] = at, stop
        at = stop + 1
    stop = at
    while stop + 1 < end and (data[stop] != 0x20 or data[stop + 1] != 0x5B):
        stop += 1
    if stop == at or end - stop < 30:
        return False, time
    begins[LOG_USER], stops[LOG_USER] = at, stop
    at = stop + 2
    is_time, time = _log_time(data, at)
    if not is_time or data[at + 26] != 0x5D or data[at + 27] != 0x20:
        return False, time
    begins[LOG_TIME], stops[LOG_TIME] = at, at + 26
    at += 28
    if at >= end or data[at] != 0x22:
        return False, time
    stop = _text_end(data, at + 1, end)
    if stop < 0 or end - stop < 5 or data[stop + 1] != 0x20:
        return False, time
    at += 1
    begins[LOG_REQUEST], stops[LOG_REQUEST] = at, stop
    _request_parts(data, at, stop, begins, stops)
    at = stop + 2
    stop = _word_end(data, at, end)
    if stop in (at, end):
        return False, time
    begins[LOG_STATUS], stops[LOG_STATUS] = at, stop
    at = stop + 1
    stop = _word_end(data, at, end)
    if stop == at:
        return False, time
    begins[LOG_BYTES], stops[LOG_BYTES] = at, stop
    at = stop
    if is_combined:
        for field in range(LOG_REFERER, LOG_REFERER + 2):
            if end - at < 3 or data[at] != 0x20 or data[at + 1] != 0x22:
                return False, time
            stop = _text_end(data, at + 2, end)
            if stop < 0:
                return False, time
            begins[field], stops[field] = at + 2, stop
            at = stop + 1
    if at < end:
        if data[at] != 0x20:
            return False, time
        begins[LOG_REST], stops[LOG_REST] = at + 1, end
    for field in range(LOG_REST):
        if stops[field] - begins[field] == 1 and data[begins[field]] == 0x2D and not (LOG_REQUEST < field < LOG_STATUS):
            begins[field] = stops[field] = 0
    return True, time


@kernel()
def _request_parts(data: Any, at: Any, end: Any, begins: Any, stops: Any) -> Any:
    """The places of method, target and protocol, if a request has them."""
    first = _word_end(data, at, end)
    last = end - 1
    while last > first and data[last] != 0x20:
        last -= 1
    if first == at or last - first < 2 or end - last < 6:
        return
    if _half_word_at(data, last + 1) != np.uint64(_HTTP) or data[last + 5] != 0x2F:
        return
    begins[LOG_REQUEST + 1], stops[LOG_REQUEST + 1] = at, first
    begins[LOG_REQUEST + 2], stops[LOG_REQUEST + 2] = first + 1, last
    begins[LOG_REQUEST + 3], stops[LOG_REQUEST + 3] = last + 1, end


@kernel(_PARSE)
def parse_web_log_lines(
    data: Any,
    starts: Any,
    ends: Any,
    columns: Any,
    is_combined: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
    status: Any,
) -> None:
    """Every line data[starts[i]:ends[i]] into cells of row i, and its `status`, as `parse_json_lines` does.

    `is_combined` is one byte. A column's NAME_BEGIN is the number of its field, below 0 for none.
    """
    rows, count = starts.size, columns.shape[0]
    places = np.zeros((2, LOG_FIELDS), np.int64)
    begins, stops = places[0], places[1]
    block, fields = _items(data), _items(columns)
    numbers, doubles, sizes, marks = _items(value), _items(floats), _items(length), _items(valid)
    has_agent = is_combined[0] != 0
    for row in range(rows):
        at, end = starts[row], ends[row]
        if not _is_ascii(block, at, end) and not is_utf8(block, at, end):
            status[row] = NOT_UTF8
            continue
        while end > at and block[end - 1] == 0x0D:
            end -= 1
        status[row] = NOT_PLAIN
        if end - at > MOST_BYTES:
            continue
        is_whole, time = _log_fields(block, at, end, has_agent, begins, stops)
        if not is_whole:
            continue
        is_plain = True
        for column in range(count):
            field = fields[column * FIELDS + NAME_BEGIN]
            if field < 0 or begins[field] == stops[field]:
                continue
            cell = column * rows + row
            kind = fields[column * FIELDS + KIND]
            if field == LOG_TIME and kind in (TIME_IN_ZONE, TIME_OR_ZONE):
                numbers[cell] = time
                marks[cell] = 1
            elif not _put_field(
                block, begins[field], stops[field], cell, column, fields, numbers, doubles, sizes, marks
            ):
                is_plain = False
                break
        if is_plain:
            status[row] = PLAIN


@kernel()
def _column_of(data: Any, at: Any, end: Any, expected: Any, count: Any, columns: Any, names: Any) -> Any:
    """The column whose name the bytes are, or -1; most lines have their fields in one order."""
    for other in range(count):
        column = expected + other
        if column >= count:
            column -= count
        if columns[column * FIELDS + NAME_LENGTH] == end - at:
            begin = columns[column * FIELDS + NAME_BEGIN]
            same = np.int64(0)
            while at + same < end and data[at + same] == names[begin + same]:
                same += 1
            if at + same == end:
                return column
    return _NO_PLACE


@kernel()
def _parse_logfmt_line(
    data: Any,
    at: Any,
    end: Any,
    row: Any,
    rows: Any,
    count: Any,
    columns: Any,
    names: Any,
    seen: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
) -> Any:
    """Whether the line is plain; its cells are written, and may be when it is not. `seen`: as in `_parse_line`."""
    while end > at and data[end - 1] <= 0x20:
        end -= 1
    if at == end or end - at > MOST_BYTES:
        return False
    expected = np.int64(0)
    while at < end:
        while data[at] <= 0x20:
            at += 1
        first = at
        while at < end and data[at] > 0x20 and data[at] != 0x3D and data[at] != 0x22:
            at += 1
        if at == first or (at < end and data[at] == 0x22):
            return False
        column = _column_of(data, first, at, expected, count, columns, names)
        if column >= 0:
            if seen[column] == row or at == end or data[at] != 0x3D:
                return False  # twice, or without a value
            seen[column] = row
            expected = column + 1
        if at == end or data[at] != 0x3D:
            continue
        at += 1
        escaped = False
        begin = at
        is_quoted = at < end and data[at] == 0x22
        if is_quoted:
            begin = at + 1
            stop, escaped = _closing_quote(data, begin, end)
            if stop < 0:
                return False
            at = stop + 1
            if at < end and data[at] > 0x20:
                return False
        else:
            while at < end and data[at] > 0x20:
                if data[at] == 0x22:
                    return False
                at += 1
            stop = at
        if column < 0 or begin == stop:
            continue
        if not is_quoted and stop - begin == 4 and _half_word_at(data, begin) == np.uint64(_NULL):
            continue
        kind = columns[column * FIELDS + KIND]
        if escaped and kind != TEXT:
            return False
        cell = column * rows + row
        if not _put_field(data, begin, stop, cell, column, columns, value, floats, length, valid):
            return False
        if escaped:
            length[cell] = -length[cell]
    return True


@kernel(_PARSE)
def parse_logfmt_lines(
    data: Any,
    starts: Any,
    ends: Any,
    columns: Any,
    names: Any,
    value: Any,
    floats: Any,
    length: Any,
    valid: Any,
    status: Any,
) -> None:
    """Every line data[starts[i]:ends[i]] into cells of row i, and its `status`, as `parse_json_lines` does."""
    rows, count = starts.size, columns.shape[0]
    seen = np.full(count, -1, np.int64)
    block, fields, letters = _items(data), _items(columns), _items(names)
    numbers, doubles, sizes, marks, rows_of = _items(value), _items(floats), _items(length), _items(valid), _items(seen)
    for row in range(rows):
        at, end = starts[row], ends[row]
        if not _is_ascii(block, at, end) and not is_utf8(block, at, end):
            status[row] = NOT_UTF8
        elif _parse_logfmt_line(
            block, at, end, row, rows, count, fields, letters, rows_of, numbers, doubles, sizes, marks
        ):
            status[row] = PLAIN
        else:
            status[row] = NOT_PLAIN
    seen[:] = 0  # keeps the array until here


# --- Texts


@kernel()
def _put_utf8(texts: Any, at: Any, sign: Any) -> Any:
    """Place behind the sign (a code point), which is written to `at`."""
    if sign < 0x80:
        texts[at] = sign
        return at + 1
    if sign < 0x800:
        texts[at] = 0xC0 | sign >> 6
        texts[at + 1] = 0x80 | sign & 0x3F
        return at + 2
    if sign < 0x10000:
        texts[at] = 0xE0 | sign >> 12
        texts[at + 1] = 0x80 | sign >> 6 & 0x3F
        texts[at + 2] = 0x80 | sign & 0x3F
        return at + 3
    texts[at] = 0xF0 | sign >> 18
    texts[at + 1] = 0x80 | sign >> 12 & 0x3F
    texts[at + 2] = 0x80 | sign >> 6 & 0x3F
    texts[at + 3] = 0x80 | sign & 0x3F
    return at + 4


@kernel()
def _put_decoded(data: Any, begin: Any, end: Any, texts: Any, at: Any) -> Any:
    """Place behind the text data[begin:end], which is written to `at` with its escapes decoded; all are plain."""
    place = begin
    while place < end:
        byte: Any = np.int64(data[place])
        if byte != 0x5C:
            texts[at] = byte
            at += 1
            place += 1
            continue
        byte = np.int64(data[place + 1])
        place += 2
        if byte == 0x75:
            sign = _unit(data, place, end)
            place += 4
            if 0xD800 <= sign <= 0xDBFF:
                sign = 0x10000 + ((sign - 0xD800) << 10) + _unit(data, place + 2, end) - 0xDC00
                place += 6
            at = _put_utf8(texts, at, sign)
            continue
        if byte == 0x62:
            byte = 0x08
        elif byte == 0x66:
            byte = 0x0C
        elif byte == 0x6E:
            byte = 0x0A
        elif byte == 0x72:
            byte = 0x0D
        elif byte == 0x74:
            byte = 0x09
        texts[at] = byte
        at += 1
    return at


@kernel()
def _put_without_blanks(data: Any, begin: Any, end: Any, texts: Any, at: Any) -> Any:
    """Place behind the object or array data[begin:end], written to `at`; its strings have no escapes."""
    in_string = False
    for place in range(begin, end):
        byte = data[place]
        if byte == 0x22:
            in_string = not in_string
        if in_string or (byte != 0x20 and byte != 0x09):
            texts[at] = byte
            at += 1
    return at


@kernel()
def _put_undoubled(data: Any, begin: Any, end: Any, texts: Any, at: Any) -> Any:
    """Place behind the text data[begin:end], written to `at`; of every two quotes in it one is left."""
    place = begin
    while place < end:
        if end - place >= 8:
            # All eight bytes are written, and those behind a quote once more: there is room for what is left.
            word = _word_at(data, place)
            for number in range(8):
                texts[at + number] = word >> np.uint64(8 * number) & np.uint64(0xFF)
            marks = _zeros_in(word ^ _QUOTES)
            size = 8 if marks == 0 else _first_marked(marks) + 1
            place += size + (marks != 0)
            at += size
            continue
        texts[at] = data[place]
        place += 2 if data[place] == 0x22 else 1
        at += 1
    return at


@kernel()
def _put_base64(data: Any, begin: Any, end: Any, texts: Any, at: Any) -> Any:
    """Place behind the bytes of the Base64 data[begin:end], written to `at`."""
    for place in range(begin, end, 4):
        bits, size = 0, 3
        for sign in range(place, place + 4):
            bits <<= 6
            if data[sign] == 0x3D:
                size -= 1
            else:
                bits |= _SIXTY_FOUR[data[sign]]
        for shift in range(16, 16 - 8 * size, -8):
            texts[at] = bits >> shift & 0xFF
            at += 1
    return at


@kernel(_GATHER)
def gather_texts(data: Any, other: Any, value: Any, length: Any, valid: Any, texts: Any, offsets: Any) -> Any:
    """Bytes of all texts of a column, which are written to `texts` one behind another; row i begins at offsets[i].

    `texts` has room for the sum of all lengths. A text at a place p below 0 lies in `other` at -1 - p.
    """
    at = np.int64(0)
    block, more, to = _items(data), _items(other), _items(texts)
    offsets[0] = 0
    for row in range(value.size):
        if valid[row]:
            begin, size = value[row], np.int64(length[row])
            if size < 0:
                at = _put_decoded(block, begin, begin - size, to, at)
            elif begin >= WITH_BLANKS:
                begin -= WITH_BLANKS
                at = _put_without_blanks(block, begin, begin + size, to, at)
            elif begin >= IN_BASE64:
                begin -= IN_BASE64
                at = _put_base64(block, begin, begin + size, to, at)
            elif begin >= WITH_DOUBLED:
                begin -= WITH_DOUBLED
                at = _put_undoubled(block, begin, begin + size, to, at)
            elif begin >= 0:
                for place in range(size):
                    to[at + place] = block[begin + place]
                at += size
            else:
                for place in range(size):
                    to[at + place] = more[place - 1 - begin]
                at += size
        offsets[row + 1] = at
    return at


# --- Lines


@kernel(types.int64(_BYTES_IN, types.Array(types.int64, 1, "C")))
def line_ends(data: Any, ends: Any) -> Any:
    """Number of line ends; the places of the first ones are written, as many as `ends` has room for."""
    count = np.int64(0)
    at = np.int64(0)
    block, size = _items(data), data.size
    while at < size:
        if size - at >= 8:
            marks = _zeros_in(_word_at(block, at) ^ _LINE_ENDS)
            if marks == 0:
                at += 8
                continue
            at += _first_marked(marks)
        if block[at] == 0x0A:
            if count < ends.size:
                ends[count] = at
            count += 1
        at += 1
    return count


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as the kernels' signatures want it for input."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
