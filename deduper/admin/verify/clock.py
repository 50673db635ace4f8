"""The clock of every place, run again over the rows of the ports, and compared with their verdicts.

A tuple is expired when its expiry key is at or before the clock of its place less the period, and only then. Where rows
were taken away the clock is known only from below, and from above by where it stood at the window's end: then only what
no clock between the two explains is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute as pc

from deduper.admin.verify.findings import Check, Finding, Findings
from deduper.admin.verify.log import KnownCommit
from deduper.admin.verify.scope import Scope
from deduper.admin.verify.window_rows import DUPLICATE, EXPIRED, PORTS, UNIQUE, WindowRows
from deduper.config.expiry import EventTimeExpiry, OrderedExpiry
from deduper.config.model import Config
from deduper.core.clock import POSITION_BITS, domain_ends
from deduper.core.verdict import Admission, TupleVerdict
from deduper.window import policy


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock before every row. Exact, or a bound: it cannot have stood lower, nor higher at the window's end."""

    latest: NDArray[Any]
    is_set: NDArray[np.bool_]
    is_exact: bool


def check_clock(
    scope: Scope,
    rows: WindowRows,
    window: int,
    known: KnownCommit | None,
    expiry: NDArray[Any],
    has_expiry: NDArray[np.bool_],
    findings: Findings,
) -> Clock | None:
    """The clock of every row's place, compared with the row's verdict; None where the clock is unknown."""
    config = scope.config
    is_expired = (rows.ports == TupleVerdict.EXPIRED) & (rows.order >= 0)
    if not isinstance(config.expiry, EventTimeExpiry | OrderedExpiry):
        if config.expiry.by != "category":
            for row in np.flatnonzero(is_expired).tolist():
                findings.add(
                    rows.finding(
                        Check.ROWS_CLOCK, window, row, "expired", expected=f"never, {config.expiry.by}", found=EXPIRED
                    )
                )
        return None
    if known is None:
        scope.without["clock"] += 1
        return None
    if known.record.settings_hash != policy.settings_hash(config):
        scope.without["settings"] += 1
        return None
    is_admitted = (rows.ports <= TupleVerdict.DUPLICATE) & (rows.order >= 0) & has_expiry
    is_all = scope.is_whole(window, UNIQUE, DUPLICATE)
    clock = _run(rows, expiry, is_admitted, known, is_exact=is_all or config.clock == "batch", config=config)
    if not clock.is_exact:
        scope.without["clock"] += 1
    period = config.period_steps
    assert period is not None
    is_old = are_expired(expiry, clock.latest, clock.is_set, period, config)
    # Without all rows the clock is known only from below, and above by where it stood in the end.
    could_be_old = is_old
    if not clock.is_exact:
        after = known.record.latest_point
        highest = np.full(expiry.size, 0 if after is None else after, expiry.dtype)
        could_be_old = are_expired(expiry, highest, np.full(expiry.size, after is not None), period, config)
    is_older = pc.equal(pc.fill_null(rows.table["reason"], ""), Admission.OLDER_THAN_PERIOD.reason).to_numpy()
    for row in np.flatnonzero(is_expired & is_older & has_expiry & ~could_be_old).tolist():
        findings.add(_clock_finding(rows, window, row, expiry, clock, period, "not expired", EXPIRED))
    for row in np.flatnonzero(is_admitted & is_old).tolist():
        findings.add(_clock_finding(rows, window, row, expiry, clock, period, EXPIRED, PORTS[rows.ports[row]]))
    if is_all:
        _check_latest(known, window, expiry[is_admitted], findings)
    return clock


def _run(
    rows: WindowRows,
    expiry: NDArray[Any],
    is_admitted: NDArray[np.bool_],
    known: KnownCommit,
    *,
    is_exact: bool,
    config: Config,
) -> Clock:
    """The latest point before every row: the committed one, or that of an earlier tuple of its source partition."""
    lowest, _ = domain_ends(float_domain=expiry.dtype == np.float64)
    begin = lowest if known.latest_before is None else known.latest_before
    latest = np.full(expiry.size, begin, expiry.dtype)
    is_set = np.full(expiry.size, known.latest_before is not None)
    if config.clock == "batch":
        return Clock(latest, is_set, is_exact)
    by_order = np.argsort(rows.order, kind="stable")
    partition = rows.order[by_order] >> POSITION_BITS
    edges = [0, *(np.flatnonzero(partition[1:] != partition[:-1]) + 1).tolist(), by_order.size]
    for first, last in pairwise(edges):
        part = by_order[first:last]
        if part.size and rows.order[part[0]] >= 0:
            keys = np.where(is_admitted[part], expiry[part], lowest)
            running = np.maximum.accumulate(np.concatenate(([begin], keys[:-1])).astype(expiry.dtype))
            latest[part] = running
            is_set[part] |= np.concatenate(([False], np.logical_or.accumulate(is_admitted[part][:-1])))
    return Clock(latest, is_set, is_exact)


def are_expired(
    expiry: NDArray[Any], latest: NDArray[Any], is_set: NDArray[np.bool_], period: int | float, config: Config
) -> NDArray[np.bool_]:
    """`kernels.is_expired` for whole columns: expiry <= latest - period, without leaving int64."""
    lowest, _ = domain_ends(float_domain=config.expiry_key_scale.is_float)
    if config.expiry_key_scale.is_float:
        old: NDArray[np.bool_] = is_set & (expiry <= latest - period)
        return old
    floor = int(lowest) + int(period)
    reaches = is_set & (latest >= floor)
    return reaches & (expiry <= np.where(reaches, latest, floor) - np.int64(period))


def _clock_finding(
    rows: WindowRows,
    window: int,
    row: int,
    expiry: NDArray[Any],
    clock: Clock,
    period: int | float,
    expected: str,
    found: str,
) -> Finding:
    stood = clock.latest[row].item() if clock.is_set[row] else "unset"
    how = "the clock of its place" if clock.is_exact else "the clock at least"
    what = f"expiry key {expiry[row].item()}, {how} {stood}, period {period}"
    return rows.finding(Check.ROWS_CLOCK, window, row, what, expected=expected, found=found)


def _check_latest(known: KnownCommit, window: int, admitted: NDArray[Any], findings: Findings) -> None:
    """The latest point of the record is the greatest of the one before and of all admitted tuples."""
    points = [admitted.max().item()] if admitted.size else []
    if known.latest_before is not None:
        points.append(known.latest_before)
    expected = max(points, default=None)
    findings.expect(
        Check.ROWS_CLOCK,
        f"window {window}: latest point after it",
        file=known.file,
        expected=expected,
        found=known.record.latest_point,
    )
