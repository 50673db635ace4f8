"""Ports, reasons, and what the expiry rule means for whole buckets: both sides of every edge, and the edge."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.core.kernels import is_beyond, is_expired
from deduper.core.verdict import (
    INT64_MAX,
    INT64_MIN,
    Admission,
    Stage,
    TupleVerdict,
    bucket_key,
    expiry_point,
    first_live_bucket,
)

_INT64 = st.integers(INT64_MIN, INT64_MAX)
_POSITIVE = st.integers(1, INT64_MAX)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_numbers_are_for_ever() -> None:
    """Verdicts and admissions stand in users' outputs and receipts."""
    assert [(verdict.value, verdict.port) for verdict in TupleVerdict] == [
        (0, "unique"),
        (1, "duplicate"),
        (2, "expired"),
        (3, "error"),
    ]
    assert {admission.value: admission.reason for admission in Admission} == {
        0: "",
        1: "older_than_period",
        2: "category_dropped",
        10: "malformed",
        11: "invalid_utf8",
        12: "null_key",
        13: "null_expiry",
        14: "bad_expiry",
        15: "ahead_of_now",
        16: "jump_too_far",
        17: "file_changed",
        18: "file_missing",
        19: "file_unreadable",
        20: "tombstone",
        21: "file_header",
        22: "conflict_refused",
        23: "too_many_versions",
    }


_ALL = ("has_record", "has_values", "has_all_values", "has_expiry_key", "is_of_rules")
_SETTLED = (Stage.CLOCK, "has_record", "has_values", "has_all_values", "has_expiry_key")
_OF_FILE = (Stage.FILE,)
_OF_RECORD = (Stage.RECORD, "has_record")


def test_every_reason_is_classified() -> None:
    """What a replay, an export and an explanation take from a row of each reason; a new one fails until it is here."""
    found = {one.name: (one.stage, *(name for name in _ALL if getattr(one, name))) for one in Admission}
    assert found == {
        "ADMITTED": (Stage.LOOKUP, *_SETTLED[1:]),
        "OLDER_THAN_PERIOD": _SETTLED,
        "CATEGORY_DROPPED": _SETTLED,
        "MALFORMED": _OF_RECORD,
        "INVALID_UTF8": _OF_RECORD,
        "NULL_KEY": (Stage.KEY, *_ALL),
        "NULL_EXPIRY": (Stage.EXPIRY, "has_record", "has_values", "has_all_values", "is_of_rules"),
        "BAD_EXPIRY": (Stage.EXPIRY, "has_record", "has_values", "is_of_rules"),
        "AHEAD_OF_NOW": _SETTLED,
        "JUMP_TOO_FAR": _SETTLED,
        "FILE_CHANGED": _OF_FILE,
        "FILE_MISSING": _OF_FILE,
        "FILE_UNREADABLE": _OF_FILE,
        "TOMBSTONE": _OF_RECORD,
        "FILE_HEADER": _OF_FILE,
        "CONFLICT_REFUSED": (Stage.LOOKUP, *_SETTLED[1:]),
        "TOO_MANY_VERSIONS": (Stage.LOOKUP, *_SETTLED[1:]),
    }


def test_admissions_settle_verdicts() -> None:
    """Old tuples and dropped categories are expired, everything from MALFORMED on is an error."""
    assert Admission.ADMITTED.verdict is None
    assert {admission.verdict for admission in (Admission.OLDER_THAN_PERIOD, Admission.CATEGORY_DROPPED)} == {
        TupleVerdict.EXPIRED
    }
    assert {admission.verdict for admission in Admission if admission >= Admission.MALFORMED} == {TupleVerdict.ERROR}


@pytest.mark.parametrize(("expiry", "expired"), [(89, True), (90, True), (91, False), (100, False), (101, False)])
def test_exactly_one_period_old_is_expired(expiry: int, expired: bool) -> None:
    """Latest point 100, period 10: 90 is expired, 91 is not."""
    assert is_expired(expiry, 100, 10, INT64_MIN) is expired
    assert is_expired(float(expiry), 100.0, 10.0, -math.inf) is expired


@given(expiry=_INT64, latest=_INT64, period=_POSITIVE)
def test_the_rule_is_exact(expiry: int, latest: int, period: int) -> None:
    """In int64 the rule says what big integers say."""
    assert is_expired(expiry, latest, period, INT64_MIN) == (expiry <= latest - period)


@given(expiry=_FINITE, latest=_FINITE, period=_FINITE.filter(lambda period: period > 0))
def test_the_rule_is_ieee(expiry: float, latest: float, period: float) -> None:
    """In float64 the rule is the expression as written."""
    assert is_expired(expiry, latest, period, -math.inf) == (expiry <= latest - period)


@given(expiry=_INT64, latest=_INT64, jump=st.integers(0, INT64_MAX))
def test_a_jump_is_exact(expiry: int, latest: int, jump: int) -> None:
    """In int64 the guard says what big integers say."""
    assert is_beyond(expiry, latest, jump, INT64_MAX) == (expiry > latest + jump)


def test_nothing_is_dead_while_unset_or_below_the_domain() -> None:
    """No expiry point: an unset clock, and one so low that the point would lie below int64."""
    assert expiry_point(None, 10) is None
    assert expiry_point(INT64_MIN + 9, 10) is None
    assert expiry_point(INT64_MIN + 10, 10) == INT64_MIN
    assert expiry_point(-1e308, 1e308) == -math.inf
    assert first_live_bucket(None, 10, 5) is None


@pytest.mark.parametrize(
    ("expiry", "span", "bucket"),
    [
        (-11, 10, -2),
        (-10, 10, -1),
        (-1, 10, -1),
        (0, 10, 0),
        (9, 10, 0),
        (10, 10, 1),
        (INT64_MIN, 1, INT64_MIN),
        (INT64_MAX, 1, INT64_MAX),
        (INT64_MIN, INT64_MAX, -2),
        (-0.5, 1.0, -1),
        (-0.0, 1.0, 0),
        (1.0, 0.1, 10),
        (2.0**62, 1.0, 2**62),
        (-(2.0**62), 1.0, -(2**62)),
        (math.nextafter(2.0**62, 0), 1.0, 2**62 - 512),
        (math.nextafter(2.0**62, math.inf), 1.0, 2**62 + 1),
        (math.nextafter(-(2.0**62), -math.inf), 1.0, -(2**62) - 1),
        (1e308, 0.01, bucket_key(1.7e308, 0.01)),
    ],
)
def test_bucket_edges(expiry: float, span: float, bucket: int) -> None:
    """Floor for negative keys too; far quotients of doubles go on one by one."""
    assert bucket_key(expiry, span) == bucket


@pytest.mark.parametrize(("expiry", "span"), [(5, 2.5), (5.0, 2), (-5, 2.0)])
def test_a_bucket_key_is_whole_whatever_is_divided(expiry: float, span: float) -> None:
    """It is written into pieces as int64."""
    key = bucket_key(expiry, span)
    assert isinstance(key, int)
    assert key == math.floor(expiry / span)


@given(one=_FINITE, other=_FINITE)
def test_buckets_of_all_doubles(one: float, other: float) -> None:
    """Span 1: bucket keys fit int64, and are ordered and equal as the floors are."""
    floors = math.floor(one), math.floor(other)
    keys = bucket_key(one, 1.0), bucket_key(other, 1.0)
    assert all(INT64_MIN <= key <= INT64_MAX for key in keys)
    assert (keys[0] < keys[1], keys[0] == keys[1]) == (floors[0] < floors[1], floors[0] == floors[1])


@given(expiry=_INT64, latest=_INT64, period=_POSITIVE, span=_POSITIVE)
def test_an_unexpired_tuple_has_a_live_bucket(expiry: int, latest: int, period: int, span: int) -> None:
    """A bucket is dead exactly when its end is at or before the point; no unexpired tuple falls into a dead one."""
    live = first_live_bucket(latest, period, span)
    bucket = bucket_key(expiry, span)
    is_dead = live is not None and bucket < live
    assert is_dead == ((bucket + 1) * span <= latest - period and latest - period >= INT64_MIN)
    if not is_expired(expiry, latest, period, INT64_MIN):
        assert not is_dead


@given(expiry=_FINITE, latest=_FINITE, period=st.floats(1e-300, 1e300), share=st.floats(1e-6, 1))
def test_an_unexpired_double_has_a_live_bucket(expiry: float, latest: float, period: float, share: float) -> None:
    """Rounding never lets a bucket die before a tuple that belongs to it."""
    span = period * share
    live = first_live_bucket(latest, period, span)
    assert live is not None
    if not is_expired(expiry, latest, period, -math.inf):
        assert bucket_key(expiry, span) >= live
