"""PURE. The wall clock that records carry: the machine's, which must not go back, except from far ahead.

A clock set back by minutes (NTP) or hours (a wrong time zone) would let a guard refuse sound records. So a record
carries the later of the machine's clock and the last record's. After a clock that was years ahead, this alone would
keep that time for ever. Beyond TOLERANCE_US the last record's clock was wrong, and the machine's counts again.
"""

from __future__ import annotations

from typing import Final

TOLERANCE_US: Final = 86_400_000_000
"""How far the machine's clock may be behind the last record's and the record still counts: a day.

Wrong time zones shift a clock by up to 14 h, and must not count as a clock that was ahead. A greater tolerance would
let a clock that was ahead delay deletion and open the guards for longer. Part of the fold: never change it.
"""


def is_far_ahead(wall_us: int, now_us: int) -> bool:
    """True for a wall clock that is ahead of `now_us` by more than the tolerance: it was read from a wrong clock."""
    return wall_us - now_us > TOLERANCE_US


def next_wall_us(last_us: int, now_us: int) -> int:
    """Wall clock of the next record, after a record with `last_us`, when the machine's clock shows `now_us`."""
    return now_us if is_far_ahead(last_us, now_us) else max(last_us, now_us)
