"""One shard's batch against a plain walk over its rows in source order, for rows of any shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.tables.matches import Matches
from deduper.core.clock import POSITION_BITS
from deduper.core.judge import ShardRows, judge_shard
from deduper.core.lookups import JudgeRules
from deduper.core.verdict import Admission, TupleVerdict, bucket_key

WINDOW = 9
RULES = JudgeRules(
    by="ordered",
    lookup_all_live=False,
    float_domain=False,
    period=10,
    span=5,
    buckets=3,
    keep_first_seen=True,
    latest=None,
)
ADMISSIONS = [Admission.ADMITTED] * 4 + [
    Admission.OLDER_THAN_PERIOD,
    Admission.CATEGORY_DROPPED,
    Admission.MALFORMED,
    Admission.TOMBSTONE,
]
KEYS = [(hi << 62, lo) for hi in range(3) for lo in (1, 2**64 - 1)] + [(5, 7), (7, 5)]
Known = dict[tuple[int, tuple[int, int]], tuple[int, int, int]]  # (bucket, key) -> expiry key, origin, window

rows_of_any_kind = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.integers(-30, 30) | st.sampled_from([-(10**6), 10**6, 10**15]),
        st.sampled_from(ADMISSIONS),
        st.sampled_from([0, 1, 2, 3000, 900_000]),  # source partition
    ),
    max_size=40,
)


@pytest.mark.slow
@given(
    rows_of_any_kind,
    st.randoms(use_true_random=False),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["ordered", "float", "never", "category"]),
)
def test_a_batch_is_a_walk_in_source_order(rows: Any, chance: Any, all_live: bool, first_seen: bool, kind: str) -> None:
    """Verdicts, first copies, what is remembered and in which order, points and counts."""
    has_key = kind in ("ordered", "float")
    all_live = all_live and has_key
    by: Any = "ordered" if has_key else kind
    rules = replace(
        RULES, by=by, lookup_all_live=all_live, float_domain=kind == "float", keep_first_seen=first_seen, latest=4
    )
    orders = [partition << POSITION_BITS | chance.randrange(1 << 20) for _, _, _, partition in rows]
    count = len(rows)
    expiry = np.array([value for _, value, _, _ in rows], np.float64 if kind == "float" else np.int64)
    category = np.array([abs(value) % 7 for _, value, _, _ in rows], np.int64)

    def bucket_of(row: int) -> int:
        if kind == "never":
            return int(rows[row][0][0] % 3)
        return int(category[row]) if kind == "category" else bucket_key(expiry[row].item(), 5)

    known: Known = {}
    for key in KEYS[::2]:
        for bucket in range(-7, 7):
            known[0 if all_live else bucket, key] = (-4, 100 + bucket, 3)  # dead for a clock of 6 and beyond

    def find(bucket: int, digests: Any) -> Matches:
        hits = [known.get((bucket, (hi, lo))) for hi, lo in digests.tolist()]
        columns = np.array([hit or (0, 0, 0) for hit in hits], np.int64)
        found = np.array([hit is not None for hit in hits])
        values = columns[:, 0].astype(expiry.dtype)
        return Matches(found, values, columns[:, 1], columns[:, 2].astype(np.uint32))

    latest = np.array([chance.choice([-20, 5, 6, 30]) for _ in rows], expiry.dtype)
    has_latest = np.array([chance.random() < 0.8 for _ in rows], np.bool_)
    outcome = judge_shard(
        ShardRows(
            digests=np.array([key for key, _, _, _ in rows], np.uint64).reshape(-1, 2),
            order=np.array(orders, np.int64),
            admission=np.array([admission for _, _, admission, _ in rows], np.uint8),
            expiry=expiry if has_key else None,
            latest_before=latest if all_live else None,
            has_latest=has_latest if all_live else None,
            category=category if kind == "category" else None,
        ),
        rules,
        WINDOW,
        find,
    )

    seen: dict[Any, tuple[Any, int, int]] = {}  # expiry key, origin, window
    holder: dict[Any, int] = {}
    verdicts, firsts = [TupleVerdict.ERROR] * count, [(-1, 0, 0)] * count
    for row in sorted(range(count), key=lambda row: (orders[row], row)):
        key, _, admission, _ = rows[row]
        verdicts[row] = admission.verdict or TupleVerdict.UNIQUE
        if admission is not Admission.ADMITTED:
            continue
        memory = key if all_live else (bucket_of(row), key)
        entry: Any = seen.get(memory) or known.get((0, key) if all_live else (bucket_of(row), key))
        if all_live and entry is not None and has_latest[row] and entry[0] <= latest[row] - 10:
            entry = None
        if entry is None:
            seen[memory] = (expiry[row].item() if has_key else 0, orders[row], WINDOW)
            holder[memory] = row
        else:
            verdicts[row] = TupleVerdict.DUPLICATE
            firsts[row] = (entry[2], entry[1], entry[0] if has_key else 0)

    assert outcome.verdict.tolist() == verdicts
    assert outcome.counts.tolist() == [verdicts.count(verdict) for verdict in TupleVerdict]
    named = list(zip(outcome.first_window, outcome.first_origin, outcome.first_expiry, strict=True))
    assert named == (firsts if first_seen else [(-1, 0, 0)] * count)
    assert outcome.admissions == Counter(
        int(admission) for _, _, admission, _ in rows if admission is not Admission.ADMITTED
    )
    assert outcome.rows_by_partition == Counter(partition for _, _, _, partition in rows)
    admitted = [expiry[row].item() for row in range(count) if rows[row][2] is Admission.ADMITTED]
    remembered = sorted(holder.values(), key=lambda row: (bucket_of(row), rows[row][0]))
    assert outcome.max_admitted == (max(admitted, default=None) if has_key else None)
    assert outcome.max_remembered == (max((expiry[row] for row in remembered), default=None) if has_key else None)
    assert outcome.buckets == sorted({bucket_of(row) for row in remembered})
    if not remembered:
        assert outcome.entries is None
        return
    entries = outcome.entries
    assert entries is not None
    assert [tuple(digest) for digest in entries.digests.tolist()] == [rows[row][0] for row in remembered]
    sizes = Counter(bucket_of(row) for row in remembered)
    assert entries.bucket_keys.tolist() == outcome.buckets
    assert np.diff(entries.bucket_starts).tolist() == [sizes[bucket] for bucket in outcome.buckets]
    assert entries.bucket_starts[0] == 0
    keeps = has_key and (all_live or first_seen)
    assert (entries.expiry is None, entries.origin is None) == (not keeps, not first_seen)
    if entries.expiry is not None:
        assert entries.expiry.tolist() == [expiry[row] for row in remembered]
    if entries.origin is not None:
        assert entries.origin.tolist() == [orders[row] for row in remembered]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 9, 16])
@pytest.mark.parametrize("step", [1, 100, 10**6, 10**17])
def test_buckets_of_any_distance_ascend(count: int, step: int) -> None:
    """However many bits they or their ranks take; the keys ascend the other way."""
    expiry = np.array([5 * (number - count // 2) * step for number in range(count)], np.int64)
    rows = ShardRows(
        digests=np.array([(2**63 - number, number + 1) for number in range(count)], np.uint64),
        order=np.arange(count),
        admission=np.zeros(count, np.uint8),
        expiry=expiry,
        latest_before=None,
        has_latest=None,
        category=None,
    )
    asked: list[int] = []

    def find(bucket: int, digests: Any) -> Matches:
        asked.append(bucket)
        return Matches(np.zeros(len(digests), np.bool_), None, None, None)

    outcome = judge_shard(rows, RULES, WINDOW, find)
    assert asked == outcome.buckets == sorted({bucket_key(value, 5) for value in expiry.tolist()})


def test_a_key_that_is_kept_for_ever_has_the_bucket_of_its_first_half() -> None:
    """By the high word: pieces are written so, and an entry is looked for where it lies."""
    rows = ShardRows(np.array([(5, 1)], np.uint64), np.arange(1), np.zeros(1, np.uint8), None, None, None, None)
    asked: list[int] = []

    def find(bucket: int, digests: Any) -> Matches:
        asked.append(bucket)
        return Matches(np.zeros(len(digests), np.bool_), None, None, None)

    assert judge_shard(rows, replace(RULES, by="never"), WINDOW, find).buckets == asked == [2]


def test_one_row_out_of_order_is_put_in_order() -> None:
    """Also when the first that came is the first in source order: of the others the earlier one is unique."""
    rows = ShardRows(
        digests=np.array([(1, 1), (2, 2), (2, 2)], np.uint64),
        order=np.array([0, 5, 3]),
        admission=np.zeros(3, np.uint8),
        expiry=np.zeros(3, np.int64),
        latest_before=None,
        has_latest=None,
        category=None,
    )

    def find(bucket: int, digests: Any) -> Matches:
        return Matches(np.zeros(len(digests), np.bool_), None, None, None)

    outcome = judge_shard(rows, RULES, WINDOW, find)
    assert outcome.verdict.tolist() == [TupleVerdict.UNIQUE, TupleVerdict.DUPLICATE, TupleVerdict.UNIQUE]
    assert outcome.first_origin.tolist() == [0, 3, 0]
