"""The latest point: who moves it, what it expires, what the guards stop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest

from deduper.core import kernels
from deduper.core.clock import POSITION_BITS, ClockRules, PartitionClock, batch_clock, guard_bound
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission

_A, _OLD, _NOW, _JUMP, _BAD = (
    Admission.ADMITTED,
    Admission.OLDER_THAN_PERIOD,
    Admission.AHEAD_OF_NOW,
    Admission.JUMP_TOO_FAR,
    Admission.BAD_EXPIRY,
)
INTS = ClockRules(
    float_domain=False, period=10, max_ahead_of_now_us=None, max_jump=None, now_us=0, latest=None, quiet_us=0
)
FLOATS = replace(INTS, float_domain=True, period=1.0)


def run(rules: ClockRules, *partitions: list[Any], admissions: list[int] | None = None) -> list[list[int]]:
    """Admissions of the rows of source partitions, each in one call."""
    clock = PartitionClock(rules)
    result = []
    for number, expiry in enumerate(partitions):
        order = (number << POSITION_BITS) + np.arange(len(expiry))
        admission = np.zeros(len(expiry), np.uint8) if admissions is None else np.array(admissions, np.uint8)
        result.append(clock.run(order, np.array(expiry), admission)[0].tolist())
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
    admission, latest, has_latest = clock.run(
        np.arange(6), expiry, np.array([_A, _A, _A, _A, _A, Admission.NULL_KEY], np.uint8)
    )
    assert admission.tolist() == [_A, _A, _A, _JUMP, _A, Admission.NULL_KEY]
    assert latest.tolist() == [5, 5, 7, 7, 7, 8]
    assert has_latest.all()


def test_an_unset_clock() -> None:
    """The first admitted tuple is never expired, negative or extreme; a rejected one before it leaves it unset."""
    clock = PartitionClock(replace(INTS, max_jump=0))
    admission, _, has_latest = clock.run(
        np.arange(3), np.array([5, INT64_MIN, -20]), np.array([Admission.NULL_KEY, _A, _A], np.uint8)
    )
    assert admission.tolist() == [Admission.NULL_KEY, _A, _JUMP]
    assert has_latest.tolist() == [False, False, True]


def test_every_source_partition_has_its_own_clock() -> None:
    """A partition far ahead expires nothing of its neighbour: each begins at the committed latest point."""
    assert run(replace(INTS, latest=0), [1000, 5], [5, -5, -4], [1000, 5]) == [[_A, _OLD], [_A, _OLD, _A], [_A, _OLD]]


def test_cuts_between_calls_do_not_matter() -> None:
    """Rows of one partition over several Arrow batches, and partitions taking turns, give what whole ones give."""
    generator = np.random.default_rng(1)
    order = np.concatenate([np.arange(200), (1 << POSITION_BITS) + np.arange(200)])
    expiry = generator.integers(0, 60, 400) + np.tile(np.arange(200) // 4, 2)
    admission = np.zeros(400, np.uint8)
    rules = replace(INTS, latest=20, max_jump=40, quiet_us=7)
    whole = PartitionClock(rules).run(order, expiry, admission)
    clock = PartitionClock(rules)
    turns = [slice(0, 1), slice(200, 250), slice(1, 130), slice(250, 251), slice(130, 200), slice(251, 400)]
    parts = [clock.run(order[turn], expiry[turn], admission[turn]) for turn in turns]
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
    order, expiry, admission = np.arange(2), np.array([100, 1]), np.zeros(2, np.uint8)
    for column in (order, expiry, admission):
        column.flags.writeable = False
    assert PartitionClock(INTS).run(order, expiry, admission)[0].tolist() == [_A, _OLD]
    assert batch_clock(replace(INTS, latest=100), expiry, admission).tolist() == [_A, _OLD]
    assert admission.tolist() == [0, 0]


def test_ahead_of_now() -> None:
    """now 1000, guard 50: 1050 is admitted, 1051 is an error; the guard needs no clock, and the poison moves none."""
    rules = replace(INTS, now_us=1000, max_ahead_of_now_us=50)
    assert run(rules, [1051, 1050, 1040, 1041]) == [[_NOW, _A, _OLD, _A]]
    assert batch_clock(rules, np.array([1051, 1050]), np.zeros(2, np.uint8)).tolist() == [_NOW, _A]


def test_no_time_ahead_of_now_may_be_allowed() -> None:
    """0 is a guard like any other: now is admitted, the next microsecond is not."""
    rules = replace(INTS, now_us=100, max_ahead_of_now_us=0)
    assert run(rules, [101, 100]) == [[_NOW, _A]]
    assert batch_clock(rules, np.array([101, 100]), np.zeros(2, np.uint8)).tolist() == [_NOW, _A]


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


def test_no_guard_refuses_what_is_within_the_bound() -> None:
    """Of any rules, whatever came before; and a guard refuses something just above it."""
    generator = np.random.default_rng(1)
    refused_above = 0
    for _ in range(2000):
        is_float, has_limit, has_jump, has_latest = (bool(one) for one in generator.integers(0, 2, 4))
        period, ahead, jump, now, latest, quiet = generator.integers(1, 40, 6).tolist()
        rules = ClockRules(
            float_domain=is_float,
            period=period,
            max_ahead_of_now_us=ahead if has_limit else None,
            max_jump=jump if has_jump else None,
            now_us=now,
            latest=latest if has_latest else None,
            quiet_us=quiet * int(generator.integers(0, 2)),
        )
        expiry = generator.integers(-20, 150, 20).astype(np.float64 if is_float else np.int64)
        bound = guard_bound(rules)
        batch = batch_clock(rules, expiry, np.zeros(20, np.uint8))
        for admissions in (run(rules, expiry.tolist())[0], batch.tolist()):
            refused = {
                at for at, admission in zip(expiry.tolist(), admissions, strict=True) if admission in (_NOW, _JUMP)
            }
            assert bound is None or not refused or min(refused) > bound, rules
        refused_above += bound is not None and bound + 1 in refused
    assert refused_above > 50


def test_the_bound_of_the_guards() -> None:
    """Either guard's; the greatest key without one; none for a jump from no point."""
    assert guard_bound(INTS) == INT64_MAX
    assert guard_bound(FLOATS) == math.inf
    assert guard_bound(replace(INTS, latest=5, max_jump=7, max_ahead_of_now_us=9, now_us=2)) == 11
    assert guard_bound(replace(INTS, latest=5, max_jump=7, max_ahead_of_now_us=11, now_us=2)) == 12
    assert guard_bound(replace(INTS, max_jump=7)) is None
    assert guard_bound(replace(INTS, latest=INT64_MAX, max_jump=7)) == INT64_MAX
    assert guard_bound(replace(FLOATS, latest=-1e300, max_jump=1e299)) == -1e300 + 1e299


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
    admissions = batch_clock(
        replace(FLOATS, latest=0.0), np.array([math.nan, math.inf, -1.0, -0.9]), np.zeros(4, np.uint8)
    )
    assert admissions.tolist() == [_BAD, _BAD, _OLD, _A]


def test_doubles_beyond_the_whole_numbers() -> None:
    """Neither end of int64 is an end of theirs: not for the latest point, the period or the guards."""
    assert run(replace(FLOATS, latest=1e300), [1e299, 1.1e300]) == [[_OLD, _A]]
    assert run(replace(FLOATS, latest=-1e300, period=1e299), [-1.2e300, -1.05e300]) == [[_OLD, _A]]
    assert run(replace(FLOATS, latest=0.0, max_jump=1e300), [1.1e300, 1e300]) == [[_JUMP, _A]]


def test_partitions_may_take_turns() -> None:
    """In one call, coming back to the first: each goes on with its own clock."""
    order = [0, 1 << POSITION_BITS, 1, 1 << POSITION_BITS | 1, 2]
    clock = PartitionClock(INTS)
    admission, latest, has_latest = clock.run(np.array(order), np.array([100, 20, 90, 10, 91]), np.zeros(5, np.uint8))
    assert admission.tolist() == [_A, _A, _OLD, _OLD, _A]
    assert has_latest.tolist() == [False, False, True, True, True]
    assert latest[2:].tolist() == [100, 20, 100]


def test_a_source_order_keeps_its_form() -> None:
    """It is stored with the first copies of keys: a store that is read with another one names other records."""
    assert 3 << POSITION_BITS | 5 == 3_298_534_883_333


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
@pytest.mark.parametrize("rules", [INTS, FLOATS], ids=["int", "float"])
def test_arrow_columns_need_no_second_compilation(rules: ClockRules) -> None:
    """They are read-only, which is a type of its own to numba: seconds in the middle of a window."""
    run(rules, [1, 2])
    kernel: Any = kernels.run_clock
    before = list(kernel.signatures)
    order, expiry = np.arange(2), np.array([1, 2], np.float64 if rules.float_domain else np.int64)
    for column in (order, expiry):
        column.flags.writeable = False
    PartitionClock(rules).run(order, expiry, np.zeros(2, np.uint8))
    assert kernel.signatures == before


def test_other_admissions_pass_through() -> None:
    """A row that was rejected before keeps its admission, whatever its key, and moves nothing."""
    admissions = [Admission.MALFORMED, Admission.NULL_EXPIRY, _A, Admission.FILE_CHANGED]
    assert run(INTS, [1000, 1000, 1, 1000], admissions=admissions) == [[*admissions]]


def test_a_rejected_row_holds_up_no_other() -> None:
    """Of a batch against one latest point: the rows after it are judged too."""
    admission = np.array([_A, Admission.NULL_KEY, _A, _A], np.uint8)
    judged = batch_clock(replace(INTS, latest=100), np.array([91, 0, 90, 91]), admission)
    assert judged.tolist() == [_A, Admission.NULL_KEY, _OLD, _A]


def test_no_rows() -> None:
    """An empty Arrow batch is none of the clock's business."""
    assert run(INTS, []) == [[]]
    assert batch_clock(INTS, np.zeros(0, np.int64), np.zeros(0, np.uint8)).tolist() == []
