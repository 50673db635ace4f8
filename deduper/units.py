"""Durations, sizes and times as people write them, and as the code holds them. PURE.

Durations are int µs, sizes int bytes, times int µs since the epoch, UTC. Parsing is exact: no float is involved.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

MAX_I64 = 2**63 - 1
UNIT_US = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""µs of the units in which a column of numbers may hold times."""

_DURATION_UNITS = {
    "w": 7 * 86_400_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
    "µs": 1,
}
_UNIT_WORDS = {
    "week": "w",
    "day": "d",
    "hour": "h",
    "hr": "h",
    "minute": "m",
    "min": "m",
    "second": "s",
    "sec": "s",
    "millisecond": "ms",
    "microsecond": "us",
}
"""Spark's names, and usual ones: `24 hours`, `1 hour 30 minutes`."""
# `w` is not printed: 14d is easier to compare with 24h than 2w is.
_PRINTED_UNITS = ("d", "h", "m", "s", "ms", "us")
_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-zµ]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnitError(ValueError):
    """A text that is no duration or size. `what` says why, `write` says what to write instead."""

    def __init__(self, what: str, write: str) -> None:
        super().__init__(f"{what}; {write}")
        self.what = what
        self.write = write


def parse_duration(text: str) -> int:
    """µs of `90s`, `24h`, `7d`, `500ms`, `1w`, `1h30m`, `1.5h`, `24 hours`; units fall from left to right.

    Raises:
        UnitError: not a duration, not a whole number of µs, or more µs than 63 bits hold.
    """
    advice = "write a number and a unit, such as `90s`, `24h`, `7d` or `1h30m`"
    total = 0
    position = 0
    last_size: int | None = None
    stripped = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        raise UnitError(
            f"a duration needs a unit, found `{stripped}`",
            f"write `{stripped}s` for seconds; units are w, d, h, m, s, ms, us",
        )
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            raise UnitError(f"`{text}` is not a duration", advice)
        number, unit = part.groups()
        letter = unit if unit in _DURATION_UNITS else _UNIT_WORDS.get(unit.lower().removesuffix("s"))
        if letter is None:
            raise UnitError(f"`{unit}` is not a unit of time in `{text}`", "units are w, d, h, m, s, ms, us")
        size = _DURATION_UNITS[letter]
        if last_size is not None and size >= last_size:
            raise UnitError(f"`{text}` does not go from large to small units", "write `1h30m`, not `30m1h`")
        total += _whole(number, size, text, "µs")
        last_size = size
        position = part.end()
        while position < len(stripped) and stripped[position] == " ":
            position += 1
    if last_size is None:
        raise UnitError(f"`{text}` is not a duration", advice)
    if total > MAX_I64:
        raise UnitError(f"`{text}` is too long", "the longest duration is about 292,000 years")
    return total


def format_duration(duration_us: int) -> str:
    """The shortest text that `parse_duration` reads back to the same number."""
    if duration_us == 0:
        return "0s"
    rest = duration_us
    parts = []
    for unit in _PRINTED_UNITS:
        count, rest = divmod(rest, _DURATION_UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(text: str) -> int:
    """Bytes of `2GiB`, `512MiB`, `1.5GB`, `100B`.

    Raises:
        UnitError: not a size, or not a whole number of bytes.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        raise UnitError(
            f"a size needs a unit, found `{stripped}`",
            "write it as `2GiB` or `512MiB`; units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB",
        )
    part = _PART.fullmatch(stripped)
    if part is None:
        raise UnitError(f"`{text}` is not a size", "write a number and a unit, such as `2GiB` or `512MiB`")
    number, unit = part.groups()
    if unit not in _SIZE_UNITS:
        letter = unit[0].upper()
        advice = (
            f"write `{number}{letter}iB` (1024) or `{number}{letter}B` (1000)"
            if letter in "KMGT"
            else "units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"
        )
        raise UnitError(f"`{unit}` is not a unit of size in `{text}`", advice)
    size = _whole(number, _SIZE_UNITS[unit], text, "bytes")
    if size > MAX_I64:
        raise UnitError(f"`{text}` is too large", "a size is at most 8 EiB")
    return size


def format_size(size_bytes: int) -> str:
    """The shortest exact text: `2GiB`, `1536MiB`, `1000001B`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"


def approximate_size(size_bytes: int) -> str:
    """Three digits for people to read, not for programs: `1.53 GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _SIZE_UNITS[unit]:
            return f"{size_bytes / _SIZE_UNITS[unit]:.3g} {unit}"
    return f"{size_bytes} B"


def parse_time(text: str) -> int:
    """µs since the epoch of a time in ISO 8601, in UTC if no zone is written.

    Raises:
        UnitError: not a time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UnitError(f"`{text}` is not a time", "write it as 2024-12-31T23:00Z") from None
    utc = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (utc - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def format_time(time_us: int) -> str:
    """ISO 8601 in UTC, with as many digits as it takes: `2024-12-31T00:00:00Z`, `2024-12-31T00:00:00.250Z`.

    A time outside the years 1 to 9999, which no calendar text holds, is given as its number of µs.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us}us"
    digits = "milliseconds" if time_us % 1000 == 0 and time_us % 1_000_000 else "auto"
    return moment.replace(tzinfo=None).isoformat(timespec=digits) + "Z"


def _whole(number: str, size: int, text: str, unit: str) -> int:
    exact = Decimal(number) * size
    if exact != exact.to_integral_value():
        raise UnitError(f"`{text}` is not a whole number of {unit}", "write fewer digits after the point")
    return int(exact)


def span(seconds: float) -> str:
    """A time as people say it: `4 s`, `12 min`, `3 h`, `5 days`."""
    for size, unit in ((86_400, " day"), (3_600, " h"), (60, " min")):
        if seconds >= 2 * size:
            count = round(seconds / size)
            return f"{count:,}{unit}{'s' if unit == ' day' else ''}"
    return f"{max(0, round(seconds))} s"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 window`, `2,000 windows`; `plural` for nouns that take more than an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
