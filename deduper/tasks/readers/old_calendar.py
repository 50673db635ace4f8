"""The calendar of a Parquet file's dates and times, by the notes of Spark in its footer. PURE.

Spark before 3.0 (INT96: before 3.1), and later Spark in its mode LEGACY, writes days of the *old calendar*: Julian
before 1582-10-15. Spark moves each value to the day of the same name; so do we.

    org.apache.spark.version         absent: today's calendar
    org.apache.spark.legacyDateTime  DATE and INT64 times with a zone are of the old calendar
    org.apache.spark.legacyINT96     INT96 is
    org.apache.spark.timeZone        the zone of times in both; absent: UTC

Days need no zone. In other zones than UTC, Spark moves times before 1900 by the zone's old offsets as well; there is no
rule for them here (`UnclearTime`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

VERSION = b"org.apache.spark.version"
FIRST_INT96 = (3, 1)
_FIRST_DATES = (3, 0)
"""Spark's first versions that write by today's calendar."""
_LEGACY_DATES, _LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_ZONE = b"org.apache.spark.timeZone"
_UTC = frozenset(("UTC", "UCT", "Universal", "Zulu", "Z", "GMT", "GMT0", "Greenwich", "+00:00"))
"""With or without `Etc/` before it."""
_FIRST_GREGORIAN = -141_427
"""1582-10-15, the first day with the same name in both calendars."""
_ZONES_AGREE_US = -2_208_988_800_000_000
"""1900-01-01: from here on no zone moves a time."""
_DAY_US = 86_400_000_000
_UTC_TIME = pa.timestamp("us", "UTC")


class UnclearTime(ValueError):
    """A time of the old calendar without a rule here; the text continues a message that begins with its column."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which values of a file are of the old calendar."""

    are_dates_old: bool
    is_int96_old: bool
    zone: str

    @classmethod
    def of(cls, footer: parquet.FileMetaData) -> Calendar:
        """By Spark's own rule: without a version the other notes do not count."""
        notes: Mapping[bytes, bytes] = footer.metadata or {}
        has_version = VERSION in notes
        return cls(
            has_version and (_LEGACY_DATES in notes or is_before(notes[VERSION], _FIRST_DATES)),
            has_version and (_LEGACY_INT96 in notes or is_before(notes[VERSION], FIRST_INT96)),
            notes.get(_ZONE, b"UTC").decode(errors="replace"),
        )

    @property
    def is_old(self) -> bool:
        """Whether any value may be of the old calendar."""
        return self.are_dates_old or self.is_int96_old

    def times(self, values: pa.Array) -> pa.Array:
        """Times in µs of the old calendar, moved to the days of the same names.

        Raises:
            UnclearTime: one is before 1900, in another zone than UTC.
        """
        us = _numbers(values.view(pa.int64()), _ZONES_AGREE_US)
        if not len(us) or us.min() >= _ZONES_AGREE_US:
            return values
        if self.zone.removeprefix("Etc/") not in _UTC:
            raise UnclearTime(
                f"has a time before 1900 in Spark's old calendar, of the zone {self.zone}, "
                "whose old offsets are not known here; write the file again by Spark, with "
                "`spark.sql.parquet.datetimeRebaseModeInWrite` and `int96RebaseModeInWrite` set to CORRECTED"
            )
        days, rest = np.divmod(us, _DAY_US)
        return _with_nulls(_same_names(days) * _DAY_US + rest, values, pa.int64(), _UTC_TIME)


def is_before(version: bytes, first: tuple[int, int]) -> bool:
    """Whether a version of Spark is older than this one."""
    found = re.match(rb"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < first


def renamed_days(values: pa.Array) -> pa.Array:
    """Days of the old calendar, moved to the days of the same names."""
    days = _numbers(values.view(pa.int32()), _FIRST_GREGORIAN)
    if not len(days) or days.min() >= _FIRST_GREGORIAN:
        return values
    return _with_nulls(_same_names(days), values, pa.int32(), pa.date32())


def _numbers(values: pa.Array, null: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = values.fill_null(null).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _with_nulls(numbers: NDArray[np.int64], like: pa.Array, width: pa.DataType, kind: pa.DataType) -> pa.Array:
    nulls = like.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers, pa.int64(), mask=nulls).cast(width).view(kind)


def _same_names(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """The days of today's calendar with the names of days of the old one; a 29 February that it lacks is 1 March.

    Source: Spark's RebaseDateTime.rebaseJulianToGregorianDays.
    """
    is_julian = days < _FIRST_GREGORIAN
    # Years begin in March, so that the day of a leap year is their last one. Day 0 is 0000-03-01 of the old calendar.
    of_era = days[is_julian] + 719_470
    year = (4 * of_era + 3) // 1461
    of_year = of_era - 1461 * year // 4
    # Both calendars have the same lengths of months but for the last one's, so the day of the year stays.
    renamed = days.copy()
    renamed[is_julian] = 365 * year + year // 4 - year // 100 + year // 400 + of_year - 719_468
    return renamed
