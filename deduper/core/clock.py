"""The latest point of a stream, as every tuple found it: guards, expiry, and who moves the clock.

With `clock: arrival` each source partition of a window runs a clock of its own from the committed latest point, tuple
by tuple in source order; at the commit the clocks merge by their maximum. With `clock: batch` all tuples of a window
meet the committed latest point. In both a tuple is judged against the clock as it stood *before* it, and only an
admitted one moves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deduper.core import kernels
from deduper.core.kernels import Bools, Expiries, Int64s, UInt8s
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission

POSITION_BITS: Final = 40
"""A source order is (ordinal of the source partition in its window) << POSITION_BITS | position in that partition."""


@dataclass(frozen=True, slots=True)
class ClockRules:
    """The rules of a clock; expiry keys, `period`, `max_jump`, `latest` are of one domain.

    float_domain: expiry keys are float64, else int64.
    period: > 0. A tuple of this age is expired.
    max_ahead_of_now_us, now_us: a guard for times: a key beyond now_us + max_ahead_of_now_us is an error. None: off.
    max_jump: a guard: a key beyond the latest point + max_jump is an error. None: off; none either while unset.
    latest: the committed latest point; None while the clock is unset.
    quiet_us: wall time since the latest point last moved, added to max_jump until the clock moves in this batch.
    """

    float_domain: bool
    period: int | float
    max_ahead_of_now_us: int | None
    max_jump: int | float | None
    now_us: int
    latest: int | float | None
    quiet_us: int


@dataclass(slots=True)
class _Clock:
    """One source partition's clock; `last_order` is that of its newest row."""

    latest: Any
    is_set: bool
    moved: bool = False
    last_order: int = -1


@dataclass(frozen=True, slots=True)
class _Domain:
    """Rules as the kernels take them: numbers of one type, clamped to the domain; a flag for each guard."""

    dtype: type[np.int64] | type[np.float64]
    latest: Any
    is_set: bool
    period: Any
    has_limit: bool
    limit: Any
    has_jump: bool
    jump: Any
    jump_limit: Any
    lowest: Any
    highest: Any

    @classmethod
    def of(cls, rules: ClockRules) -> _Domain:
        dtype = np.float64 if rules.float_domain else np.int64
        lowest, highest = domain_ends(float_domain=rules.float_domain)

        def number(value: int | float) -> Any:
            return dtype(min(max(value, lowest), highest))

        jump = 0 if rules.max_jump is None else rules.max_jump
        latest = 0 if rules.latest is None else rules.latest
        return cls(
            dtype=dtype,
            latest=number(latest),
            is_set=rules.latest is not None,
            period=number(rules.period),
            has_limit=rules.max_ahead_of_now_us is not None,
            limit=number(rules.now_us + (rules.max_ahead_of_now_us or 0)),
            has_jump=rules.max_jump is not None,
            jump=number(jump),
            jump_limit=number(latest + jump + rules.quiet_us),
            lowest=lowest,
            highest=highest,
        )


class PartitionClock:
    """The clocks of the source partitions that one task reads, over as many Arrow batches as it takes.

    Rows of a source partition must come in ascending order; rows of different partitions may take turns, at a price
    for each turn. Not for several threads.
    """

    def __init__(self, rules: ClockRules) -> None:
        self._domain = _Domain.of(rules)
        self._clocks: dict[int, _Clock] = {}

    def run(self, order: Int64s, expiry: NDArray[Any], admission: UInt8s) -> tuple[UInt8s, Expiries, Bools]:
        """(admission, latest_before, has_latest) of the rows: the answer of their clock, and the clock before each.

        An ADMITTED row may become BAD_EXPIRY (a float that is not finite), AHEAD_OF_NOW, JUMP_TOO_FAR or
        OLDER_THAN_PERIOD; the other admissions pass through and move nothing. `latest_before` is meaningful where
        `has_latest`. The arguments are not changed.

        Raises:
            ValueError: a row of a source partition comes after a later one; the message names both orders.
        """
        domain = self._domain
        order = writable(order, np.int64)
        expiry = writable(expiry, domain.dtype)
        admission = np.array(admission, np.uint8)
        latest_before: Expiries = np.empty(order.size, domain.dtype)
        has_latest = np.empty(order.size, np.bool_)
        partition = order >> POSITION_BITS
        turns = np.flatnonzero(partition[1:] != partition[:-1]) + 1
        edges = [0, *turns.tolist(), order.size] if order.size else [0]
        for begin, end in pairwise(edges):
            clock = self._clocks.setdefault(int(partition[begin]), _Clock(domain.latest, domain.is_set))
            latest, clock.is_set, clock.moved, last_order, done = kernels.run_clock(
                order[begin:end],
                expiry[begin:end],
                admission[begin:end],
                latest_before[begin:end],
                has_latest[begin:end],
                clock.latest,
                clock.is_set,
                clock.moved,
                clock.last_order,
                domain.period,
                domain.has_limit,
                domain.limit,
                domain.has_jump,
                domain.jump,
                domain.jump_limit,
                domain.lowest,
                domain.highest,
            )
            clock.latest, clock.last_order = domain.dtype(latest), last_order
            if done < end - begin:
                raise ValueError(f"source order {order[begin + done]} came after {last_order} of the same partition")
        return admission, latest_before, has_latest


def batch_clock(rules: ClockRules, expiry: NDArray[Any], admission: UInt8s) -> UInt8s:
    """The admissions of the rows when all of them meet `rules.latest`: the same outcomes as `PartitionClock.run`.

    Independent of the order of the rows; max_jump always has quiet_us added. The arguments are not changed.
    """
    domain = _Domain.of(rules)
    admission = np.array(admission, np.uint8)
    kernels.hold_clock(
        writable(expiry, domain.dtype),
        admission,
        domain.latest,
        domain.is_set,
        domain.period,
        domain.has_limit,
        domain.limit,
        domain.has_jump,
        domain.jump_limit,
        domain.lowest,
    )
    return admission


def guard_bound(rules: ClockRules) -> int | float | None:
    """The greatest expiry key that no guard refuses, whatever comes before it; None: a guard may refuse any.

    Without guards, the greatest of the domain.
    """
    lowest, highest = domain_ends(float_domain=rules.float_domain)
    bounds: list[int | float] = [highest.item()]
    if rules.max_ahead_of_now_us is not None:
        bounds.append(rules.now_us + rules.max_ahead_of_now_us)
    if rules.max_jump is not None:
        if rules.latest is None:
            return None
        bounds.append(rules.latest + rules.max_jump)
    least: int | float = lowest.item()
    return max(min(bounds), least)


def domain_ends(*, float_domain: bool) -> tuple[Any, Any]:
    """The least and the greatest value of a domain, typed as the kernels take them."""
    if float_domain:
        return np.float64("-inf"), np.float64("inf")
    return np.int64(INT64_MIN), np.int64(INT64_MAX)


def writable(column: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """`column` as a contiguous array of `dtype` that numba sees as writable, copied only where it must be.

    An Arrow buffer is read-only, which is a type of its own to numba: each kernel would be compiled once more.
    """
    return np.require(column, dtype, ["C", "W"])


def warm(*, float_domain: bool) -> None:
    """Compiles, or loads from the cache, every kernel of this module for one domain."""
    rules = ClockRules(float_domain, 1, None, None, 0, None, 0)
    expiry = np.zeros(1, np.float64 if float_domain else np.int64)
    admission = np.full(1, Admission.ADMITTED, np.uint8)
    PartitionClock(rules).run(np.zeros(1, np.int64), expiry, admission)
    batch_clock(rules, expiry, admission)
