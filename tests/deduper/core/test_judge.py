"""One shard's batch: groups, look-ups, what is remembered, what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from bucket_store.tables.matches import Matches
from deduper.core.judge import ShardOutcome, ShardRows, judge_shard
from deduper.core.lookups import JudgeRules
from deduper.core.verdict import (
    CONFLICT,
    CONFLICT_IN_WINDOW,
    EARLIER,
    INT64_MAX,
    INT64_MIN,
    SAME,
    UNKNOWN_COPY,
    Admission,
    TupleVerdict,
    bucket_key,
)

_U, _D, _X, _E = TupleVerdict.UNIQUE, TupleVerdict.DUPLICATE, TupleVerdict.EXPIRED, TupleVerdict.ERROR
RULES = JudgeRules(
    by="event_time",
    lookup_all_live=False,
    float_domain=False,
    period=10,
    span=5,
    buckets=3,
    keep_first_seen=True,
    latest=None,
)
WINDOW = 9


class Store:
    """A look-up that writes down what it was asked; it knows (bucket, hi, lo) -> (expiry, origin, window)."""

    def __init__(self, known: dict[tuple[int, int, int], tuple[Any, int, int]] | None = None) -> None:
        self.known = known or {}
        self.asked: list[tuple[int, list[list[int]]]] = []

    def find(self, bucket: int, digests: Any) -> Matches:
        self.asked.append((bucket, digests.tolist()))
        hits = [self.known.get((bucket, hi, lo)) for hi, lo in digests.tolist()]
        columns = list(zip(*[hit or (0, 0, 0) for hit in hits], strict=True))
        return Matches(
            np.array([hit is not None for hit in hits]),
            np.array(columns[0]),
            np.array(columns[1], np.int64),
            np.array(columns[2], np.uint32),
        )


def rows(keys: list[tuple[int, int]], expiry: list[Any] | None = None, **columns: Any) -> ShardRows:
    """Rows in source order unless `order` says otherwise, all admitted unless `admission` does."""
    count = len(keys)
    given = {name: np.array(column) for name, column in columns.items()}
    return ShardRows(
        digests=np.array(keys, np.uint64).reshape(-1, 2),
        order=given.get("order", np.arange(count)),
        admission=given.get("admission", np.zeros(count)).astype(np.uint8),
        expiry=None if expiry is None else np.array(expiry),
        latest_before=given.get("latest_before"),
        has_latest=given.get("has_latest"),
        category=given.get("category"),
    )


def judge(shard_rows: ShardRows, rules: JudgeRules = RULES, store: Store | None = None) -> ShardOutcome:
    """The outcome in window 9."""
    return judge_shard(shard_rows, rules, WINDOW, (store or Store()).find)


def test_the_first_in_source_order_is_unique() -> None:
    """Whatever the order in which rows reach the shard; the others name it."""
    outcome = judge(rows([(1, 1)] * 4, [7, 7, 7, 7], order=[30, 10, 1 << 40, 20]))
    assert outcome.verdict.tolist() == [_D, _U, _D, _D]
    assert outcome.copies.tolist() == [SAME, EARLIER, SAME, SAME]
    assert outcome.first_window.tolist() == [WINDOW, -1, WINDOW, WINDOW]
    assert outcome.first_origin.tolist() == [10, 0, 10, 10]
    assert outcome.first_expiry.tolist() == [7, 0, 7, 7]
    assert outcome.rows_by_partition == {0: 3, 1: 1}


def test_a_key_is_sought_in_its_own_bucket() -> None:
    """own_bucket: one look-up a bucket, ascending, with each digest once, ascending as unsigned numbers."""
    high = 2**64 - 1
    store = Store({(-1, 5, 5): (-3, 77, 4)})
    outcome = judge(rows([(high, 1), (1, high), (1, 2), (5, 5), (1, 2), (5, 5)], [3, 4, 3, -3, 3, 4]), store=store)
    assert store.asked == [(-1, [[5, 5]]), (0, [[1, 2], [1, high], [5, 5], [high, 1]])]
    assert outcome.verdict.tolist() == [_U, _U, _U, _D, _D, _U]
    assert outcome.first_window.tolist() == [-1, -1, -1, 4, WINDOW, -1]
    assert outcome.first_origin.tolist()[3] == 77
    assert outcome.first_expiry.tolist()[3] == -3
    assert outcome.reasons() == {"earlier_window": 1, "same_window": 1}


@pytest.mark.parametrize("refuses", [False, True])
def test_a_copy_with_another_payload_is_a_conflict(refuses: bool) -> None:
    """Compared with the first copy alone, in this window or an earlier one; 0 in the store is unknown."""
    stored = {(1, 2): 50, (1, 3): 0}  # fingerprints

    def find(_: int, digests: Any) -> Matches:
        hits = [tuple(digest) in stored for digest in digests.tolist()]
        found = [stored.get(tuple(digest), 0) for digest in digests.tolist()]
        zeros = np.zeros(len(hits), np.int64)
        return Matches(np.array(hits), zeros, zeros + 7, zeros.astype(np.uint32) + 4, np.array(found, np.uint64))

    given = rows([(1, 1)] * 4 + [(1, 2)] * 2 + [(1, 3)], [3] * 7)
    given = replace(given, fingerprint=np.array([10, 11, 10, 11, 50, 51, 60], np.uint64))
    rules = replace(RULES, has_fingerprint=True, refuses_conflicts=refuses, is_time=True)
    outcome = judge_shard(given, rules, WINDOW, find)
    other = _E if refuses else _D
    assert outcome.verdict.tolist() == [_U, other, _D, other, _D, other, _D]
    assert outcome.copies.tolist()[1:] == [
        CONFLICT_IN_WINDOW,
        SAME,
        CONFLICT_IN_WINDOW,
        EARLIER,
        CONFLICT,
        UNKNOWN_COPY,
    ]
    assert outcome.is_conflict.tolist() == [False, True, False, True, False, True, False]
    assert outcome.first_window.tolist() == [-1, 9, 9, 9, 4, 4, 4], "refused conflicts name theirs too"
    assert outcome.first_fingerprint is not None
    assert outcome.first_fingerprint.tolist() == [0, 10, 10, 10, 50, 50, 0]
    copies = {"same_window": 1, "earlier_window": 1, "unknown": 1}
    conflicts = {"conflict_refused": 3} if refuses else {"conflict": 1, "conflict_in_window": 2}
    assert outcome.reasons() == copies | conflicts
    assert outcome.counts.tolist() == ([1, 3, 0, 3] if refuses else [1, 6, 0, 0])
    assert sum(outcome.distances.counts) == outcome.counts[_D], "of duplicates alone"
    assert outcome.max_admitted == 3
    assert outcome.entries is not None
    assert outcome.entries.fingerprint is not None
    assert outcome.entries.fingerprint.tolist() == [10]
    with pytest.raises(ValueError, match="rows have no fingerprint"):
        judge_shard(replace(given, fingerprint=None), rules, WINDOW, find)


@pytest.mark.parametrize(("expiry", "bucket"), [(-6, -2), (-5, -1), (-1, -1), (0, 0), (4, 0), (5, 1)])
def test_bucket_edges(expiry: int, bucket: int) -> None:
    """Span 5: a bucket is half open, below zero too."""
    assert judge(rows([(1, 1)], [expiry])).buckets == [bucket]


def test_buckets_of_doubles() -> None:
    """As `bucket_key` says for one; far apart from int64's ends, too."""
    rules = replace(RULES, float_domain=True, span=0.1, period=1.0)
    expiry = [1e300, -1e300, 1.0, -0.05, -0.0, 2.0**63, -(2.0**63), 4.6e17, 4.7e17, 1.7e308]
    outcome = judge(rows([(number, 1) for number in range(1, 11)], expiry), rules)
    assert outcome.buckets == sorted({bucket_key(key, 0.1) for key in expiry})
    assert outcome.entries is not None
    assert outcome.entries.expiry is not None
    assert outcome.entries.expiry.tolist() == sorted(expiry)


def test_all_live_looks_everywhere_once() -> None:
    """all_live: one look-up under bucket 0; entries are still grouped by their time buckets."""
    rules = replace(RULES, lookup_all_live=True)
    store = Store({(0, 2, 2): (21, 5, 3)})
    shard_rows = rows([(3, 3), (2, 2), (1, 1)], [31, 24, 22], latest_before=[30, 30, 30], has_latest=[True, True, True])
    outcome = judge(shard_rows, rules, store)
    assert store.asked == [(0, [[1, 1], [2, 2], [3, 3]])]
    assert outcome.verdict.tolist() == [_U, _D, _U]
    assert outcome.buckets == [4, 6]
    assert outcome.entries is not None
    assert outcome.entries.digests.tolist() == [[1, 1], [3, 3]]


@pytest.mark.parametrize(("latest", "verdict"), [(31, _U), (30, _U), (29, _D), (None, _D)])
def test_the_first_copy_dies_at_the_edge(latest: int | None, verdict: TupleVerdict) -> None:
    """all_live, period 10, first copy at 20: latest 30 makes it dead, 29 leaves it alive, an unset clock too."""
    store = Store({(0, 1, 1): (20, 5, 3)})
    outcome = judge(rows([(1, 1)], [33]), replace(RULES, lookup_all_live=True, latest=latest), store)
    assert outcome.verdict.tolist() == [verdict]


def test_renewal_inside_a_batch() -> None:
    """Duplicates do not prolong: the key is unique again when its *first* copy is dead, and only the last stays.

    period 10 ----20---25---29--|30---------40|--- the copy at 20 lives while the clock is below 30; the clock stands
    at 20 before the second row, at 29 before the fourth, which moves it to 31.
    """
    shard_rows = rows(
        [(1, 1)] * 6, [20, 25, 29, 31, 32, 41], latest_before=[0, 20, 25, 29, 31, 41], has_latest=[False] + [True] * 5
    )
    outcome = judge(shard_rows, replace(RULES, lookup_all_live=True))
    assert outcome.verdict.tolist() == [_U, _D, _D, _D, _U, _D]
    assert outcome.first_origin.tolist() == [0, 0, 0, 0, 0, 4]
    assert outcome.entries is not None
    assert outcome.entries.expiry is not None
    assert outcome.entries.expiry.tolist() == [32]
    assert outcome.max_remembered == 32
    assert outcome.max_admitted == 41


def test_renewal_does_not_overflow() -> None:
    """A first copy at the least key, a clock at the greatest, the greatest period."""
    rules = replace(RULES, lookup_all_live=True, period=INT64_MAX, span=INT64_MAX)
    store = Store({(0, 1, 1): (INT64_MIN, 5, 3)})
    assert judge(rows([(1, 1)], [0]), replace(rules, latest=-2), store).verdict.tolist() == [_D]
    assert judge(rows([(1, 1)], [0]), replace(rules, latest=-1), store).verdict.tolist() == [_U]


@pytest.mark.parametrize("float_domain", [False, True])
def test_the_latest_of_rows_that_were_unique_counts(float_domain: bool) -> None:
    """Whatever the clock says: a later one takes the entry's place, here or in the store; one that is not is none."""
    rules = replace(RULES, lookup_all_live=True, takes_later=True, latest=50, float_domain=float_domain)
    store = Store({(0, 2, 2): (40, 0, 1), (0, 3, 3): (40, 0, 1)})
    keys = [(1, 1)] * 4 + [(2, 2), (3, 3)]
    outcome = judge(rows(keys, [41, 45, 44, 46, 41, 40]), rules, store)
    assert outcome.verdict.tolist() == [_U, _U, _D, _U, _U, _D]
    assert outcome.entries is not None
    assert outcome.entries.expiry is not None
    assert sorted(zip(outcome.entries.digests[:, 0].tolist(), outcome.entries.expiry.tolist(), strict=True)) == [
        (1, 46),
        (2, 41),
    ]


@pytest.mark.parametrize("least", [INT64_MIN, INT64_MIN + 1])
def test_the_latest_of_rows_counts_down_to_the_end_of_the_domain(least: int) -> None:
    """A row that is no later than the entry of its key is its duplicate, however early both are."""
    rules = replace(RULES, lookup_all_live=True, takes_later=True)
    store = Store({(0, 1, 1): (INT64_MIN + 1, 0, 1), (0, 2, 2): (INT64_MIN + 2, 0, 1)})
    outcome = judge(rows([(1, 1), (2, 2)], [least, INT64_MIN + 3]), rules, store)
    assert outcome.verdict.tolist() == [_D, _U]


@pytest.mark.parametrize("least", [INT64_MIN, -inf])
def test_of_rows_at_the_beginning_of_the_domain_one_counts(least: float) -> None:
    """No clock is before them, so none of their entries is dead: neither the store's nor that of a row before."""
    rules = replace(RULES, lookup_all_live=True, takes_later=True, float_domain=least == -inf)
    outcome = judge(rows([(1, 1), (2, 2), (2, 2)], [least] * 3), rules, Store({(0, 1, 1): (least, 0, 1)}))
    assert outcome.verdict.tolist() == [_D, _U, _D]


def test_never_and_its_buckets() -> None:
    """hi mod buckets, and no expiry key anywhere."""
    store = Store({(1, 4, 4): (0, 7, 2)})
    outcome = judge(rows([(4, 4), (3, 3), (3, 3)]), replace(RULES, by="never"), store)
    assert store.asked == [(0, [[3, 3]]), (1, [[4, 4]])]
    assert outcome.verdict.tolist() == [_D, _U, _D]
    assert outcome.max_admitted is None
    assert outcome.max_remembered is None
    assert outcome.entries is not None
    assert outcome.entries.expiry is None
    assert outcome.first_expiry.tolist() == [0, 0, 0]


def test_category_is_the_bucket() -> None:
    """One key in two places is two keys."""
    outcome = judge(rows([(1, 1), (1, 1), (1, 1)], category=[4, 5, 4]), replace(RULES, by="category"))
    assert outcome.verdict.tolist() == [_U, _U, _D]
    assert outcome.buckets == [4, 5]
    with pytest.raises(ValueError, match="places"):
        judge(rows([(1, 1)]), replace(RULES, by="category"))


def test_processing_time() -> None:
    """The wall clock is every row's expiry key and the latest point: seen at 90, period 10, forgotten at 100."""
    store = Store({(0, 1, 1): (90, 1, 1)})
    rules = replace(RULES, by="processing_time", lookup_all_live=True)
    assert judge(rows([(1, 1)]), replace(rules, latest=99), store).verdict.tolist() == [_D]
    outcome = judge(rows([(1, 1), (1, 1)]), replace(rules, latest=100), store)
    assert outcome.verdict.tolist() == [_U, _D]
    assert outcome.max_admitted == 100
    assert outcome.buckets == [20]


def test_other_admissions_settle_verdicts() -> None:
    """They are not looked up, not remembered, and counted by what they are; what they hold is not read."""
    store = Store()
    admissions = [
        Admission.OLDER_THAN_PERIOD,
        Admission.CATEGORY_DROPPED,
        Admission.MALFORMED,
        Admission.FILE_CHANGED,
        Admission.MALFORMED,
    ]
    outcome = judge(rows([(0, 0)] * 5, [99] * 5, admission=admissions), store=store)
    assert outcome.verdict.tolist() == [_X, _X, _E, _E, _E]
    assert outcome.counts.tolist() == [0, 0, 2, 3]
    assert outcome.admissions == {1: 1, 2: 1, 10: 2, 17: 1}
    assert outcome.reasons() == {"older_than_period": 1, "category_dropped": 1, "malformed": 2, "file_changed": 1}
    assert (outcome.entries, outcome.max_admitted, outcome.buckets, store.asked) == (None, None, [], [])


def test_no_rows() -> None:
    """An empty shard has an outcome like any other."""
    for rules in (RULES, replace(RULES, lookup_all_live=True), replace(RULES, by="never")):
        outcome = judge(rows([], np.zeros(0, np.int64)), rules)  # type: ignore[arg-type]
        assert outcome.counts.tolist() == [0, 0, 0, 0]
        assert outcome.entries is None
        assert outcome.rows_by_partition == {}


def test_first_seen_is_optional() -> None:
    """Without it entries are digests alone, and no duplicate names its first copy."""
    rules = replace(RULES, keep_first_seen=False)
    outcome = judge(rows([(1, 1), (1, 1)], [3, 3]), rules)
    assert outcome.first_window.tolist() == [-1, -1]
    assert outcome.copies.tolist() == [EARLIER, SAME]
    assert outcome.entries is not None
    assert outcome.entries.expiry is None
    assert outcome.entries.origin is None
    all_live = judge(rows([(1, 1), (1, 1)], [3, 3]), replace(rules, lookup_all_live=True))
    assert all_live.entries is not None
    assert all_live.entries.expiry is not None


def test_equal_halves_are_not_equal_keys() -> None:
    """Keys that agree in hi, or in its leading bits, are told apart, in any order of rows."""
    keys = [(7, lo) for lo in range(40)] + [(7 + hi, 3) for hi in range(40)]
    keys = [*keys, *reversed(keys)]
    outcome = judge(rows(keys, [0] * len(keys)))
    assert outcome.counts.tolist() == [79, 81, 0, 0]
    assert outcome.entries is not None
    triples = outcome.entries.digests.tolist()
    assert triples == sorted(triples)


@pytest.mark.slow
@pytest.mark.parametrize("all_live", [False, True])
def test_one_key_very_often(all_live: bool) -> None:
    """A million copies of two keys that share hi, in no order at all: a second or less, never the square of it."""
    count = 1_000_000
    order = np.random.default_rng(3).permutation(count)
    digests = np.full((count, 2), 5, np.uint64)
    digests[:, 1] = order % 2 + 1
    shard_rows = replace(rows([], []), digests=digests, order=order, admission=np.zeros(count, np.uint8))
    outcome = judge(replace(shard_rows, expiry=np.zeros(count, np.int64)), replace(RULES, lookup_all_live=all_live))
    assert sorted(order[outcome.verdict == _U].tolist()) == [0, 1]
    assert outcome.counts.tolist() == [2, count - 2, 0, 0]


def test_buckets_far_apart() -> None:
    """Buckets from end to end of int64 cost no memory for those between."""
    expiry = [INT64_MIN, INT64_MAX, 0, INT64_MIN, INT64_MAX]
    outcome = judge(rows([(1, 1)] * 5, expiry), replace(RULES, span=1))
    assert outcome.verdict.tolist() == [_U, _U, _U, _D, _D]
    assert outcome.buckets == [INT64_MIN, 0, INT64_MAX]
    renewed = judge(rows([(1, 1), (2, 2), (3, 3)], expiry[:3]), replace(RULES, span=1, lookup_all_live=True))
    assert renewed.buckets == [INT64_MIN, 0, INT64_MAX]


def test_the_store_loads_all_buckets_before_the_first_look_up() -> None:
    """Each once; one bucket alone is not announced. No verdict depends on it."""
    store, loaded = Store({(0, 1, 1): (3, 4, 5)}), []

    def load(buckets: Sequence[int]) -> None:
        assert not store.asked
        loaded.append(list(buckets))

    keys = rows([(1, 1), (2, 2), (3, 3), (4, 4)], [3, 23, 13, 24])
    rules = replace(RULES, span=10)
    assert judge_shard(keys, rules, WINDOW, store.find, load).verdict.tolist() == [_D, _U, _U, _U]
    assert loaded == [[0, 1, 2]]
    assert [bucket for bucket, _ in store.asked] == [0, 1, 2]
    store.asked.clear()
    judge_shard(rows([(1, 1)], [3]), rules, WINDOW, store.find, load)
    judge_shard(rows([], []), rules, WINDOW, store.find, load)
    judge_shard(keys, replace(rules, lookup_all_live=True), WINDOW, store.find, load)
    assert loaded == [[0, 1, 2]]
    store.asked.clear()
    judge_shard(rows([(1, 1), (2, 2)], [3, 23]), rules, WINDOW, store.find, load)
    assert loaded == [[0, 1, 2], [0, 2]]


def test_judging_twice_gives_the_same() -> None:
    """Nothing given is changed: a retried task repeats itself, with read-only columns too."""
    shard_rows = rows([(1, 1), (2, 2), (1, 1)], [3, 3, 3])
    for column in (shard_rows.digests, shard_rows.order, shard_rows.admission, shard_rows.expiry):
        assert column is not None
        column.flags.writeable = False
    one, other = judge(shard_rows), judge(shard_rows)
    assert one.verdict.tolist() == other.verdict.tolist() == [_U, _U, _D]
    assert one.entries is not None
    assert other.entries is not None
    assert one.entries.digests.tolist() == other.entries.digests.tolist()
