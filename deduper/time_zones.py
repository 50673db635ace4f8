"""Time zones by the names that Spark takes, and the offsets of local times. PURE."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_BLANKS = "".join(map(chr, range(33)))

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
