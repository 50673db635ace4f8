"""The compiled loops of judging, each against a model of some lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.core import kernels
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission, TupleVerdict

ADMISSIONS = [
    Admission.ADMITTED,
    Admission.OLDER_THAN_PERIOD,
    Admission.CATEGORY_DROPPED,
    Admission.MALFORMED,
    Admission.NULL_KEY,
    Admission.TOMBSTONE,
]
UNTOUCHED = 99


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**50), st.sampled_from(ADMISSIONS)), max_size=30),
    st.integers(1, 7),
)
def test_rows_are_dealt_by_key_and_errors_by_place(rows: list[tuple[int, int, Admission]], shards: int) -> None:
    """Each row to one shard, in their order; equal keys to the same one."""
    words = np.array([word for word, _, _ in rows], np.uint64)
    order = np.array([at for _, at, _ in rows], np.int64)
    admission = np.array([admission for _, _, admission in rows], np.uint8)
    dealt, starts = kernels.partition(words, order, admission, shards)
    expected: list[list[int]] = [[] for _ in range(shards)]
    for row, (word, at, of_row) in enumerate(rows):
        expected[(at if of_row.verdict is TupleVerdict.ERROR else word) % shards].append(row)
    assert dealt.dtype == np.int32
    assert [dealt[starts[shard] : starts[shard + 1]].tolist() for shard in range(shards)] == expected
    assert len(starts) == shards + 1


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(-9, -5), st.data())
def test_rows_are_grouped_by_bucket_and_stay_in_order(buckets: list[int], lowest: int, data: st.DataObject) -> None:
    """A stable sort of the rows that are named."""
    rows = data.draw(st.lists(st.sampled_from(range(len(buckets))), unique=True))
    found = kernels.group_by_bucket(np.array(buckets), lowest, 5 - lowest + 1, np.array(rows, np.int64))
    assert found.tolist() == sorted(rows, key=lambda row: buckets[row])


def groups_of(sizes: list[int], rows: list[int]) -> np.ndarray[Any, Any]:
    """The starts of groups of these sizes."""
    starts = np.concatenate(([0], np.cumsum(sizes)))
    assert starts[-1] == len(rows)
    return starts.astype(np.int64)


def test_the_head_of_a_group_stands_for_it() -> None:
    """Its bucket and both halves of its digest."""
    digests = np.array([[row, 10 * row] for row in range(1, 6)], np.uint64)
    buckets = np.array([7, 8, 9, 10, 11])
    rows = [4, 0, 2, 1]
    bucket, digest = kernels.take_heads(groups_of([2, 1, 1], rows), np.array(rows), buckets, digests)
    assert bucket.tolist() == [11, 9, 8]
    assert digest.tolist() == [[5, 50], [3, 30], [2, 20]]


def test_the_first_of_a_group_is_unique_unless_its_key_is_known() -> None:
    """All others are duplicates of it, or of what is known; rows of no group are left as they are."""
    rows = [5, 0, 3, 1, 6, 2]
    verdict = np.full(8, UNTOUCHED, np.uint8)
    first_copy = np.full(8, UNTOUCHED, np.int64)
    remembered = np.full(3, UNTOUCHED, np.int64)
    starts = groups_of([3, 2, 1], rows)
    found = np.array([False, True, False])
    assert kernels.judge_groups(starts, np.array(rows), found, verdict, first_copy, remembered) == 2
    u, d, x = int(TupleVerdict.UNIQUE), int(TupleVerdict.DUPLICATE), UNTOUCHED
    assert verdict.tolist() == [d, d, u, d, x, u, d, x]
    assert first_copy.tolist() == [5, -3, x, 5, x, x, -3, x]
    assert remembered.tolist() == [5, 2, x]


@pytest.mark.parametrize("has_latest", [True, False])
@pytest.mark.parametrize("found", [True, False])
def test_what_is_remembered_counts_until_the_clock_has_passed_it(found: bool, has_latest: bool) -> None:
    """Known at 10, period 5: dead from latest 15 on; the row that finds it dead takes its place. An unset clock kills
    nothing."""
    rows = [3, 1, 0, 2]
    latest = np.array([17, 15, 18, 14])  # rows 3, 1, 0, 2 meet 14, 15, 17 and 18
    expiry = np.array([20, 12, 30, 11])  # and bring 11, 12, 20 and 30
    verdict = np.full(4, UNTOUCHED, np.uint8)
    first_copy = np.full(4, UNTOUCHED, np.int64)
    remembered = np.full(1, UNTOUCHED, np.int64)
    count = kernels.judge_groups_by_age(
        groups_of([4], rows),
        np.array(rows),
        np.array([found]),
        np.array([10]),
        expiry,
        latest,
        np.full(4, has_latest),
        5,
        INT64_MIN,
        verdict,
        first_copy,
        remembered,
    )
    u, d, x = int(TupleVerdict.UNIQUE), int(TupleVerdict.DUPLICATE), UNTOUCHED
    by_row = list(zip(verdict[rows].tolist(), first_copy[rows].tolist(), strict=True))
    if not found:
        # 11 is remembered until 16: row 0 meets 17, finds it dead and takes its place.
        expected = [(u, x), (d, 3), (u, x), (d, 0)] if has_latest else [(u, x), (d, 3), (d, 3), (d, 3)]
        assert (by_row, count, remembered.tolist()) == (expected, 1, [0 if has_latest else 3])
    elif has_latest:
        # 10 is dead at 15; 12 is remembered until 17, which row 0 meets.
        assert (by_row, count, remembered.tolist()) == ([(d, -2), (u, x), (u, x), (d, 0)], 1, [0])
    else:
        assert (by_row, count, remembered.tolist()) == ([(d, -2)] * 4, 0, [UNTOUCHED])


def test_each_group_begins_with_what_is_known_of_its_own_key() -> None:
    """A key that is not known has no entry of another group, and a duplicate names its own."""
    rows = [0, 1, 2]
    verdict, first_copy = np.full(3, UNTOUCHED, np.uint8), np.full(3, UNTOUCHED, np.int64)
    remembered = np.full(3, UNTOUCHED, np.int64)
    known = (np.array([True, False, True]), np.array([10, 10, 10]), np.array([11, 11, 11]))
    clock = (np.array([0, 0, 0]), np.array([True, True, True]), 5, INT64_MIN)
    groups = groups_of([1, 1, 1], rows), np.array(rows)
    assert kernels.judge_groups_by_age(*groups, *known, *clock, verdict, first_copy, remembered) == 1
    assert verdict.tolist() == [TupleVerdict.DUPLICATE, TupleVerdict.UNIQUE, TupleVerdict.DUPLICATE]
    assert first_copy.tolist() == [-2, UNTOUCHED, -4]
    assert remembered.tolist() == [1, UNTOUCHED, UNTOUCHED]


def test_first_copies_are_named_by_window_order_and_expiry_key() -> None:
    """Those of this window by their row, those of earlier ones by their group; rows without one keep what is there."""
    first_window, first_origin, first_expiry = (np.full(4, UNTOUCHED, np.int64) for _ in range(3))
    kernels.name_first_copies(
        np.array([0, -1, -2, -3]),
        8,
        np.array([100, 101, 102, 103]),
        np.array([200, 201, 202, 203]),
        np.array([3, 4], np.uint32),
        np.array([30, 40]),
        np.array([33, 44]),
        first_window,
        first_origin,
        first_expiry,
    )
    assert first_window.tolist() == [8, UNTOUCHED, 3, 4]
    assert first_origin.tolist() == [100, UNTOUCHED, 30, 40]
    assert first_expiry.tolist() == [200, UNTOUCHED, 33, 44]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=24),
    st.integers(0, 3),
    st.booleans(),
)
def test_equal_keys_come_together_in_their_order(
    rows: list[tuple[int, int, int]], crowded: int, by_bucket: bool
) -> None:
    """Sorted by bucket, hi and lo, whatever of hi there was room for in the words."""
    shift = 62 - crowded
    digests = np.array([(hi << shift, lo) for hi, lo, _ in rows], np.uint64).reshape(-1, 2)
    buckets = np.array([bucket - 7 for _, _, bucket in rows], np.int64)
    named = np.arange(len(rows))
    bucket_bits, index_bits = (2 if by_bucket else 0), len(rows).bit_length()
    packed = kernels.pack_keys(digests, buckets, named, -7, bucket_bits, index_bits)
    packed.sort()
    found, starts = kernels.unpack_groups(packed, digests, named, index_bits)

    def key(row: int) -> tuple[int, int, int]:
        return (rows[row][2] if by_bucket else 0, *rows[row][:2])

    assert found.tolist() == sorted(range(len(rows)), key=key)
    edges = [at for at in range(len(rows)) if at == 0 or key(found[at]) != key(found[at - 1])]
    assert starts.tolist() == [*edges, len(rows)]


@pytest.mark.parametrize("bucket_bits", [0, 3])
def test_hashes_are_sorted_by_their_leading_bits(bucket_bits: int) -> None:
    """Keys as they are in life: all bits are used, and each key comes twice."""
    once = np.random.default_rng(5).integers(0, 2**64, (40, 2), np.uint64)
    digests, named = np.concatenate([once, once]), np.arange(80)
    packed = kernels.pack_keys(digests, np.zeros(80, np.int64), named, 0, bucket_bits, 7)
    packed.sort()
    found, starts = kernels.unpack_groups(packed, digests, named, 7)
    assert found.tolist() == sorted(range(80), key=lambda row: tuple(digests[row].tolist()))
    assert starts.tolist() == list(range(0, 81, 2))


def test_keys_that_the_words_cannot_tell_apart_are_sorted_out() -> None:
    """Many of them, in falling order, and each twice: equal ones stay in their order."""
    his = [0, 0, 1, 1]  # the same leading bits
    digests = np.array([(his[number % 4], 9 - number % 9) for number in range(36)], np.uint64)
    named = np.arange(36)
    packed = kernels.pack_keys(digests, np.zeros(36, np.int64), named, 0, 0, 6)
    packed.sort()
    found, starts = kernels.unpack_groups(packed, digests, named, 6)
    assert found.tolist() == sorted(range(36), key=lambda row: tuple(digests[row].tolist()))
    assert len(starts) == len({tuple(digest) for digest in digests.tolist()}) + 1


def test_a_place_is_held_from_the_tuple_that_takes_it_to_the_one_that_drops_it() -> None:
    """Of four categories 2 and 3 are live, and a smaller configuration has room for one: no tuple meets the older."""
    new, order, known = np.array([0, 1], np.int32), np.array([5, 9]), np.array([2, 3], np.int32)
    holder, begin, end, oldest, dropped, is_sound = kernels.arrange_places(new, order, known, 2, 4, 2, 1, 10)
    assert holder.tolist() == [2, 3, 0, 1]
    assert begin.tolist() == [0, 0, 5, 9]
    assert end.tolist() == [0, 5, 9, INT64_MAX]
    assert (oldest, dropped.tolist(), is_sound) == (3, [2, 3, 0], True)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12), st.lists(st.integers(0, 40), max_size=8))
def test_a_row_has_the_place_that_its_category_had_when_it_came(
    lengths: list[tuple[int, int]], orders: list[int]
) -> None:
    """From the order at which the category took its place to the one at which it was dropped; none before and after."""
    starts, begin, end, place = [0], [], [], []
    at = 0
    for category, (gap, length) in enumerate(lengths):
        if category % 3 == 0:
            at = 0
        at += gap
        begin.append(at)
        end.append(at + length)
        place.append(100 + category)
        at += length
        if category % 3 == 2:
            starts.append(len(begin))
    starts += [len(begin)] if starts[-1] != len(begin) else []
    starts.append(len(begin))  # a category that never had a place
    categories = len(starts) - 1
    rows = [(category, order) for category in range(categories) for order in orders]
    admission = np.zeros(len(rows), np.uint8)
    admission[::5] = Admission.NULL_KEY
    first, begins, ends, numbers = (np.array(values, np.int64) for values in (starts, begin, end, place))
    ids = np.array([category for category, _ in rows], np.int32)
    of_rows = np.array([order for _, order in rows], np.int64)
    places = kernels.place_rows(first, begins, ends, numbers, ids, of_rows, admission)
    for row, (category, order) in enumerate(rows):
        held = [place[one] for one in range(starts[category], starts[category + 1]) if begin[one] <= order < end[one]]
        if row % 5 == 0:
            assert (places[row], admission[row]) == (-1, Admission.NULL_KEY)
        elif held:
            assert (places[row], admission[row]) == (held[-1], Admission.ADMITTED)
        else:
            assert (places[row], admission[row]) == (-1, Admission.CATEGORY_DROPPED)


def test_a_key_has_a_conflict_with_a_payload_that_is_known() -> None:
    """Not one that was not found, nor one whose payload no store has kept; one row with another payload is enough."""
    starts, rows = np.array([0, 2, 4, 5, 6]), np.arange(6)
    payloads = np.array([7, 8, 7, 8, 7, 7], np.uint64)
    found, known = np.array([True, False, True, True]), np.array([7, 7, 0, 7], np.uint64)
    assert kernels.have_conflicts(starts, rows, found, payloads, known).tolist() == [True, False, False, False]
