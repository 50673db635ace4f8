"""The first copy that every duplicate names.

It is of the same window or an earlier one, before it in source order, in the same bucket (`own_bucket`) or still living
(`all_live`), and, where the unique port still has its window, really there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute as pc

from deduper.admin.verify.clock import Clock, are_expired
from deduper.admin.verify.findings import Check, Findings
from deduper.admin.verify.scope import Int64s, Scope
from deduper.admin.verify.window_rows import UNIQUE, WindowRows, numbers, source_orders
from deduper.config.expiry import EventTimeExpiry, OrderedExpiry
from deduper.core.verdict import TupleVerdict, bucket_key


def check_firsts(
    scope: Scope, rows: WindowRows, window: int, expiry: NDArray[Any], before: Clock | None, findings: Findings
) -> None:
    """Compare the first copies that the window's duplicates name with the rows of the ports; `before` is the clock."""
    first_window, is_named = numbers(rows.table["first_window"], False)
    is_duplicate = rows.ports == TupleVerdict.DUPLICATE
    should = is_duplicate if scope.config.store.first_seen else np.zeros_like(is_duplicate)
    for row in np.flatnonzero(is_named != should).tolist():
        expected, found = ("a first copy", "none") if should[row] else ("no first copy", "one")
        findings.add(rows.finding(Check.ROWS_FIRST_SEEN, window, row, "first_seen", expected=expected, found=found))
    reasons = pc.fill_null(rows.table["reason"], "")
    says_same = pc.equal(reasons, "same_window").to_numpy()
    at = np.flatnonzero(is_named & is_duplicate)
    wrong = at[(first_window[at] > window) | ((first_window[at] == window) != says_same[at]) | (first_window[at] < 0)]
    for row in wrong.tolist():
        findings.add(
            rows.finding(
                Check.ROWS_FIRST_SEEN,
                window,
                row,
                f"window of its first copy, for reason {reasons[row]}",
                expected=f"{window}" if says_same[row] else f"below {window}",
                found=int(first_window[row]),
            )
        )
    at = np.setdiff1d(at, wrong)
    first_expiry, _ = numbers(rows.table["first_expiry"], scope.format.is_float)
    for first in np.unique(first_window[at]).tolist():
        of_first = at[first_window[at] == first]
        for row, what in _first_faults(scope, rows, window, first, of_first, first_expiry):
            findings.add(
                rows.finding(
                    Check.ROWS_FIRST_SEEN,
                    window,
                    row,
                    f"its first copy, {rows.table['first_source'][row]}, position {rows.table['first_position'][row]}",
                    expected=what,
                    found=f"window {first}, expiry key {first_expiry[row].item()}",
                )
            )
    for row in _out_of_reach(scope, at, expiry, first_expiry, before):
        findings.add(
            rows.finding(
                Check.ROWS_FIRST_SEEN,
                window,
                row,
                f"expiry key {expiry[row].item()}",
                expected="a first copy where the key was looked up",
                found=f"expiry key {first_expiry[row].item()} of its first copy",
            )
        )


def _first_faults(
    scope: Scope, rows: WindowRows, window: int, first: int, at: Int64s, first_expiry: NDArray[Any]
) -> Iterator[tuple[int, str]]:
    """Duplicates whose first copy, of window `first`, is not where it must be: the row, and what was expected."""
    names = scope.names(first)
    if names is None:
        scope.without["first"] += at.size
        return
    order = source_orders(rows.table["first_source"].take(at), rows.table["first_position"].take(at), names)
    for row in at[order < 0].tolist():
        yield row, f"a source partition of window {first}"
    at, order = at[order >= 0], order[order >= 0]
    if first == window:
        is_late = (rows.order[at] >= 0) & (order >= rows.order[at])
        for row in at[is_late].tolist():
            yield row, "before it in source order"
    if not scope.origins.has(first):
        scope.without["first"] += at.size
        return
    found, bits = scope.origins.find(first, order)
    for row in at[~found].tolist():
        yield row, f"a row of port {UNIQUE}"
    if scope.format.column is not None:
        is_other = found & (bits != np.ascontiguousarray(first_expiry[at]).view(np.int64))
        for row in at[is_other].tolist():
            yield row, "the expiry key that its row in the unique port has"


def _out_of_reach(
    scope: Scope, at: Int64s, expiry: NDArray[Any], first_expiry: NDArray[Any], before: Clock | None
) -> list[int]:
    """Duplicates whose first copy lies in another bucket, or was dead when they came."""
    config = scope.config
    if not isinstance(config.expiry, EventTimeExpiry | OrderedExpiry) or not at.size:
        return []
    if config.lookup == "own_bucket":
        span = config.span_steps
        assert span is not None
        differs = at[expiry[at] != first_expiry[at]]
        return [
            row
            for row in differs.tolist()
            if bucket_key(expiry[row].item(), span) != bucket_key(first_expiry[row].item(), span)
        ]
    if before is None or config.period_steps is None:
        return []
    # A bound from below will do: what was dead by then was dead by the true clock too.
    dead = are_expired(first_expiry[at], before.latest[at], before.is_set[at], config.period_steps, config)
    return [int(row) for row in at[dead]]
