"""The latest point: who moves it, what it expires, what the guards stop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deduper.clock import POSITION_BITS, ClockRules, PartitionClock, batch_clock
from deduper.verdict import INT64_MAX, INT64_MIN, Fate

_A, _OLD, _NOW, _JUMP, _BAD = (
    Fate.ADMITTED,
    Fate.OLDER_THAN_PERIOD,
    Fate.AHEAD_OF_NOW,
    Fate.JUMP_TOO_FAR,
    Fate.BAD_EXPIRY,
)
INTS = ClockRules(
    float_domain=False, period=10, max_ahead_of_now_us=None, max_jump=None, now_us=0, latest=None, quiet_us=0
)
FLOATS = replace(INTS, float_domain=True, period=1.0)


def run(rules: ClockRules, *partitions: list[Any], fates: list[int] | None = None) -> list[list[int]]:
    """Fates of the rows of source partitions, each in one call."""
    clock = PartitionClock(rules)
    result = []
    for number, expiry in enumerate(partitions):
        order = (number << POSITION_BITS) + np.arange(len(expiry))
        fate = np.zeros(len(expiry), np.uint8) if fates is None else np.array(fates, np.uint8)
        result.append(clock.run(order, np.array(expiry), fate)[0].tolist())
    return result


def test_period_ten() -> None:
    """Keys 10 20 25 40 21 35 45 57 in this order: only 21 is expired."""
    assert run(INTS, [10, 20, 25, 40, 21, 35, 45, 57]) == [[_A, _A, _A, _A, _OLD, _A, _A, _A]]


def test_both_sides_of_the_edge() -> None:
    """Latest 100: 90 is expired and moves nothing, 91 is not; 100 again is no later."""
    assert run(INTS, [100, 90, 91, 100, 101, 91, 92]) == [[_A, _OLD, _A, _A, _A, _OLD, _A]]


def test_the_clock_before_each_row() -> None:
    """`latest_before` is the committed point, then the greatest admitted key so far; rejected rows move nothing."""
    clock = PartitionClock(replace(INTS, latest=5, max_jump=100))
    expiry = np.array([3, 7, 6, 500, 8, 99])
    fate, latest, has_latest = clock.run(np.arange(6), expiry, np.array([_A, _A, _A, _A, _A, Fate.NULL_KEY], np.uint8))
    assert fate.tolist() == [_A, _A, _A, _JUMP, _A, Fate.NULL_KEY]
    assert latest.tolist() == [5, 5, 7, 7, 7, 8]
    assert has_latest.all()


def test_an_unset_clock() -> None:
    """The first admitted tuple is never expired, negative or extreme; a rejected one before it leaves it unset."""
    clock = PartitionClock(replace(INTS, max_jump=0))
    fate, _, has_latest = clock.run(
        np.arange(3), np.array([5, INT64_MIN, -20]), np.array([Fate.NULL_KEY, _A, _A], np.uint8)
    )
    assert fate.tolist() == [Fate.NULL_KEY, _A, _JUMP]
    assert has_latest.tolist() == [False, False, True]


def test_every_source_partition_has_its_own_clock() -> None:
    """A partition far ahead expires nothing of its neighbour: each begins at the committed latest point."""
    assert run(replace(INTS, latest=0), [1000, 5], [5, -5, -4], [1000, 5]) == [[_A, _OLD], [_A, _OLD, _A], [_A, _OLD]]


def test_cuts_between_calls_do_not_matter() -> None:
    """Rows of one partition over several Arrow batches, and partitions taking turns, give what whole ones give."""
    generator = np.random.default_rng(1)
    order = np.concatenate([np.arange(200), (1 << POSITION_BITS) + np.arange(200)])
    expiry = generator.integers(0, 60, 400) + np.tile(np.arange(200) // 4, 2)
    fate = np.zeros(400, np.uint8)
    rules = replace(INTS, latest=20, max_jump=40, quiet_us=7)
    whole = PartitionClock(rules).run(order, expiry, fate)
    clock = PartitionClock(rules)
    turns = [slice(0, 1), slice(200, 250), slice(1, 130), slice(250, 251), slice(130, 200), slice(251, 400)]
    parts = [clock.run(order[turn], expiry[turn], fate[turn]) for turn in turns]
    for turn, part in zip(turns, parts, strict=True):
        for column, expected in zip(part, whole, strict=True):
            assert column.tolist() == expected[turn].tolist()


def test_order_must_ascend() -> None:
    """A row before one already seen of its partition is a bug upstream, and said so."""
    clock = PartitionClock(INTS)
    blank = np.zeros(2, np.int64)
    clock.run(np.array([4, 5]), blank, blank.astype(np.uint8))
    with pytest.raises(ValueError, match="source order 5 came after 5"):
        clock.run(np.array([5, 6]), blank, blank.astype(np.uint8))


def test_arguments_are_not_changed() -> None:
    """Arrow's buffers are read-only, and so may be the arguments."""
    order, expiry, fate = np.arange(2), np.array([100, 1]), np.zeros(2, np.uint8)
    for column in (order, expiry, fate):
        column.flags.writeable = False
    assert PartitionClock(INTS).run(order, expiry, fate)[0].tolist() == [_A, _OLD]
    assert batch_clock(replace(INTS, latest=100), expiry, fate).tolist() == [_A, _OLD]
    assert fate.tolist() == [0, 0]


def test_ahead_of_now() -> None:
    """now 1000, guard 50: 1050 is admitted, 1051 is an error; the guard needs no clock, and the poison moves none."""
    rules = replace(INTS, now_us=1000, max_ahead_of_now_us=50)
    assert run(rules, [1051, 1050, 1040, 1041]) == [[_NOW, _A, _OLD, _A]]
    assert batch_clock(rules, np.array([1051, 1050]), np.zeros(2, np.uint8)).tolist() == [_NOW, _A]


def test_ahead_of_now_comes_before_the_jump() -> None:
    """What both guards refuse has the first one's reason."""
    assert run(replace(INTS, now_us=0, max_ahead_of_now_us=5, max_jump=5, latest=0), [6]) == [[_NOW]]


def test_a_jump() -> None:
    """Latest 100, jump 20: 120 is admitted and moves on, 121 is not."""
    rules = replace(INTS, latest=100, max_jump=20)
    assert run(rules, [121, 120, 140, 161]) == [[_JUMP, _A, _A, _JUMP]]
    assert batch_clock(rules, np.array([121, 120, 140]), np.zeros(3, np.uint8)).tolist() == [_JUMP, _A, _JUMP]


def test_a_silent_weekend() -> None:
    """The wall time since the clock last moved is allowed on top, until it moves in this partition."""
    rules = replace(INTS, latest=100, max_jump=20, quiet_us=1000)
    assert run(rules, [1121, 1120, 1141, 1140], [100, 1120, 1120 + 21]) == [[_JUMP, _A, _JUMP, _A], [_A, _A, _JUMP]]
    batch = batch_clock(rules, np.array([1121, 1120, 1120]), np.zeros(3, np.uint8))
    assert batch.tolist() == [_JUMP, _A, _A]


def test_extremes_do_not_wrap() -> None:
    """The ends of int64 with the greatest period, jump and wall clock: exact, nothing overflows."""
    ends = [INT64_MIN, INT64_MAX, INT64_MIN]
    assert run(replace(INTS, period=INT64_MAX), ends) == [[_A, _A, _OLD]]
    rules = replace(INTS, period=INT64_MAX, latest=-1)
    assert run(rules, [INT64_MIN, INT64_MIN + 1]) == [[_OLD, _A]]
    assert run(replace(INTS, latest=INT64_MAX, max_jump=INT64_MAX, quiet_us=5), [INT64_MAX]) == [[_A]]
    assert run(replace(INTS, latest=INT64_MIN, max_jump=INT64_MAX), [0, -1]) == [[_JUMP, _A]]
    assert run(replace(INTS, latest=INT64_MIN, max_jump=INT64_MAX, quiet_us=1), [1, 0]) == [[_JUMP, _A]]
    assert run(replace(INTS, now_us=INT64_MAX, max_ahead_of_now_us=INT64_MAX), [INT64_MAX]) == [[_A]]


def test_floats() -> None:
    """IEEE as written; what is not finite is no place on a line, and poisons nothing."""
    assert run(FLOATS, [0.3, math.nan, math.inf, -math.inf, -0.7, -0.6999]) == [[_A, _BAD, _BAD, _BAD, _OLD, _A]]
    assert run(FLOATS, [-0.0, 0.0, -1.0]) == [[_A, _A, _OLD]]
    # A period that a double this large cannot see: the key itself is at the expiry point.
    assert run(FLOATS, [1e300, 1e300]) == [[_A, _OLD]]
    fates = batch_clock(replace(FLOATS, latest=0.0), np.array([math.nan, math.inf, -1.0, -0.9]), np.zeros(4, np.uint8))
    assert fates.tolist() == [_BAD, _BAD, _OLD, _A]


def test_other_fates_pass_through() -> None:
    """A row that was rejected before keeps its fate, whatever its key, and moves nothing."""
    fates = [Fate.MALFORMED, Fate.NULL_EXPIRY, _A, Fate.FILE_CHANGED]
    assert run(INTS, [1000, 1000, 1, 1000], fates=fates) == [[*fates]]


def test_no_rows() -> None:
    """An empty Arrow batch is none of the clock's business."""
    assert run(INTS, []) == [[]]
    assert batch_clock(INTS, np.zeros(0, np.int64), np.zeros(0, np.uint8)).tolist() == []
