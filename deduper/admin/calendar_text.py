"""Dates and times of their texts, of every year: Python's `datetime` ends at the years 1 and 9999. PURE.

The text is ISO 8601 in the proleptic Gregorian calendar, as Spark writes it: four digits of the year or more, with a
sign below year 0 and beyond 9999. The calendar repeats every 400 years, so each year is read as one of 2000 to 2399.
"""

from __future__ import annotations

import re
from datetime import date, datetime

from deduper.columns import ColumnType
from deduper.core.digests import plain_value

_YEAR = re.compile(r"([+-]?\d{4,7})(-.+)")
_CYCLE_DAYS = 146_097
_CYCLE_YEARS = 400
_DAY_US = 86_400_000_000
_BEGIN = date(2000, 1, 1)


def time_of_text(text: str, kind: ColumnType) -> int:
    """Plain value of a `date`, a `timestamp` (with a zone) or a `timestamp_ntz` (without): days or µs since 1970.

    Raises:
        ValueError: the text is none, or lies beyond what the type holds.
    """
    parts = _YEAR.fullmatch(text)
    if parts is None:
        raise ValueError(f"`{text}` is no {kind.text}")
    cycles, year = divmod(int(parts[1]) - _BEGIN.year, _CYCLE_YEARS)
    near = f"{_BEGIN.year + year}{parts[2]}"
    is_date = kind.name == "date"
    plain = plain_value(date.fromisoformat(near) if is_date else datetime.fromisoformat(near), kind)
    value = int(plain) + cycles * _CYCLE_DAYS * (1 if is_date else _DAY_US)
    if not -1 << (31 if is_date else 63) <= value < 1 << (31 if is_date else 63):
        raise ValueError(f"`{text}` is beyond {kind.text}")
    return value
