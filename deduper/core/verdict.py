"""The verdicts, and the admissions: everything about a tuple that is settled before its key is looked up.

The one rule that compares an expiry key with a clock is `kernels.is_expired`; what follows from it for whole buckets
(`expiry_point`, `bucket_key`, `first_live_bucket`) stands here, for single values, in exact Python arithmetic.

An expiry key lives in one of two domains. *int*: int64 (microseconds, integers, unscaled decimals), exact.
*float*: float64, IEEE arithmetic as written.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import Final, Literal, Self

ExpiryBy = Literal["never", "event_time", "ordered", "processing_time", "category"]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

FAR_QUOTIENT: Final = 2.0**62
FAR_BITS: Final[int] = struct.unpack("<q", struct.pack("<d", FAR_QUOTIENT))[0] - 2**62
"""The difference between the bits of a double from FAR_QUOTIENT on and its bucket key, which continues from 2**62."""

DUPLICATE_REASONS: Final = ("earlier_window", "same_window", "conflict", "conflict_in_window", "unknown")
"""Where a duplicate's first copy is, and whether it has another payload; indexed by `ShardOutcome.copies`.

The first two are all that there are without fingerprints. `unknown`: the first copy has no fingerprint to compare.
"""
EARLIER, SAME, CONFLICT, CONFLICT_IN_WINDOW, UNKNOWN_COPY = range(len(DUPLICATE_REASONS))
VERSION: Final = len(DUPLICATE_REASONS)
"""In `ShardOutcome.copies`: the tuple is unique, and its key is known with other payloads."""
VERSION_REASON: Final = "version"


class TupleVerdict(IntEnum):
    """The port a tuple leaves by. Values are written into outputs and receipts: never renumber."""

    UNIQUE = 0
    DUPLICATE = 1
    EXPIRED = 2
    ERROR = 3

    @property
    def port(self) -> str:
        """Name of the port, as in the configuration's `sinks`."""
        return self.name.lower()


class Stage(IntEnum):
    """The steps that may settle a tuple, in their order: a tuple leaves by the first one that refuses it."""

    FILE = 0
    """The whole file has no records, or none that may be judged."""
    RECORD = 1
    """The record has no values that its columns could have."""
    KEY = 2
    """The rule of the key: it is a key that may be judged."""
    EXPIRY = 3
    """The rule of the expiry key, or of the category. A reader applies it too, to a value that fits no column."""
    CLOCK = 4
    """The expiry key beside the latest point and the wall clock, the category beside those that are live."""
    LOOKUP = 5
    """The key beside those that are remembered."""


class Admission(IntEnum):
    """The state of a tuple before its key is looked up: a uint8 column from the parser to the verdict.

    Only the keys of ADMITTED tuples are looked up. Values are written into outputs and receipts: never renumber.
    Each has its number, the stage that settles it, and the `_dedup.detail` that follows from it alone, if one does.
    """

    stage: Stage
    detail: str | None

    def __new__(cls, number: int, stage: Stage | None = None, detail: str | None = None) -> Self:
        """A member; the default is for `Admission(12)`, as types see it."""
        assert stage is not None, f"{number} has no stage"
        self = int.__new__(cls, number)
        self._value_ = number
        self.stage, self.detail = stage, detail
        return self

    ADMITTED = 0, Stage.LOOKUP
    OLDER_THAN_PERIOD = 1, Stage.CLOCK
    CATEGORY_DROPPED = 2, Stage.CLOCK
    MALFORMED = 10, Stage.RECORD
    INVALID_UTF8 = 11, Stage.RECORD
    NULL_KEY = 12, Stage.KEY
    NULL_EXPIRY = 13, Stage.EXPIRY
    BAD_EXPIRY = 14, Stage.EXPIRY
    AHEAD_OF_NOW = 15, Stage.CLOCK
    JUMP_TOO_FAR = 16, Stage.CLOCK
    FILE_CHANGED = 17, Stage.FILE, "the file has changed since the window began"
    FILE_MISSING = 18, Stage.FILE, "the file was listed, and is gone"
    FILE_UNREADABLE = 19, Stage.FILE, "the file cannot be read; `raw` has the error"
    TOMBSTONE = 20, Stage.RECORD, "the record has no value"
    FILE_HEADER = 21, Stage.FILE
    CONFLICT_REFUSED = 22, Stage.LOOKUP, "the key is known with another payload (on_conflict: error)"
    TOO_MANY_VERSIONS = 23, Stage.LOOKUP, "the key has max_versions other payloads (on_conflict: unique)"

    @property
    def reason(self) -> str:
        """Name of the reason, as in `_dedup.reason` and the metrics; empty for ADMITTED."""
        return "" if self is Admission.ADMITTED else self.name.lower()

    @property
    def verdict(self) -> TupleVerdict | None:
        """The verdict that follows; None for ADMITTED, which the look-up settles."""
        if self is Admission.ADMITTED:
            return None
        return TupleVerdict.EXPIRED if self < Admission.MALFORMED else TupleVerdict.ERROR

    @property
    def has_record(self) -> bool:
        """Whether the row is one of a record, and not of a file."""
        return self.stage > Stage.FILE

    @property
    def has_values(self) -> bool:
        """Whether the row has the record's values: a null is a null."""
        return self.stage > Stage.RECORD

    @property
    def has_all_values(self) -> bool:
        """Whether no column of the row is null for a value that it cannot have."""
        return self.has_values and self is not Admission.BAD_EXPIRY

    @property
    def is_of_rules(self) -> bool:
        """Whether a rule of the job refuses the record, by its values alone; another job may take it."""
        return self.stage in (Stage.KEY, Stage.EXPIRY)

    @property
    def has_expiry_key(self) -> bool:
        """Whether the expiry key of the tuple, if its job has one, may be relied on when it is there."""
        return self.has_values and self.stage is not Stage.EXPIRY


CONFLICT_REASONS: Final = (
    DUPLICATE_REASONS[CONFLICT],
    DUPLICATE_REASONS[CONFLICT_IN_WINDOW],
    Admission.CONFLICT_REFUSED.reason,
    VERSION_REASON,
    Admission.TOO_MANY_VERSIONS.reason,
)
"""The reasons of tuples with another payload than the first copy's, of all ports."""
FIRST_DUPLICATE_CODE: Final = max(Admission) + 1
"""The reasons of duplicates are numbered from here, in the order of `DUPLICATE_REASONS`, then that of versions."""
REASONS: Final = (
    *(Admission(code).reason if code in set(Admission) else "" for code in range(FIRST_DUPLICATE_CODE)),
    *DUPLICATE_REASONS,
    VERSION_REASON,
)
"""The texts of `_dedup.reason` by their codes: an `Admission`, then the reasons of duplicates, then of versions."""
PORT_OF_REASON: Final = {
    **dict.fromkeys(DUPLICATE_REASONS, TupleVerdict.DUPLICATE.port),
    VERSION_REASON: TupleVerdict.UNIQUE.port,
    **{admission.reason: admission.verdict.port for admission in Admission if admission.verdict is not None},
}
"""The port by which tuples of each reason leave."""
REASONS_WITHOUT_VALUES: Final = frozenset(admission.reason for admission in Admission if not admission.has_values)
"""The reasons of rows that have not the record's values: a null in them says nothing."""


def expiry_point(latest: int | float | None, period: int | float) -> int | float | None:
    """Latest point - period: entries at or before it are dead. None when none can be.

    None while the clock is unset, and when the point would lie below int64, where no expiry key is.
    """
    if latest is None:
        return None
    point = latest - period
    return None if isinstance(point, int) and point < INT64_MIN else point


def bucket_key(expiry: int | float, span: int | float) -> int:
    """floor(expiry / span), as an int64 that is the same for no two quotients and never decreases in `expiry`.

    A quotient of doubles may lie beyond int64. From 2**62 on, either way, bucket keys count representable doubles
    instead of integers; there are few enough for all of them, infinity (a quotient that overflowed) included.
    """
    if isinstance(expiry, int) and isinstance(span, int):
        return max(INT64_MIN, expiry // span)
    quotient = expiry / span
    if abs(quotient) < FAR_QUOTIENT:
        return math.floor(quotient)
    (bits,) = struct.unpack("<q", struct.pack("<d", abs(quotient)))
    far: int = bits - FAR_BITS
    return far if quotient > 0 else -far


def first_live_bucket(latest: int | float | None, period: int | float, span: int | float) -> int | None:
    """Buckets with a key below it are wholly past the expiry point; None when no bucket is.

    It is the bucket of the expiry point itself: for ints (b + 1) * span <= point says the same, and for floats it
    keeps, by `bucket_key` never decreasing, every bucket an unexpired tuple can fall into.
    """
    point = expiry_point(latest, period)
    return None if point is None else bucket_key(point, span)
