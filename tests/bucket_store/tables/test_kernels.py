"""The kernels against plain models, and the promises of a table's order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bucket_store.tables.kernels import (
    MAX_CAPACITY,
    apply_sorted,
    copy_live,
    count_live,
    find_sorted,
    float_expiry,
    home_slot,
    ordered_expiry,
    warm,
)
from bucket_store.tables.matching import _match, _match_sparse, match_sorted
from bucket_store.tables.matching import warm as warm_matching
from tests.bucket_store.table_samples import Key, digests_of
from tests.tiers import examples

WORD = (1 << 64) - 1

# Few high words, so that keys crowd one home; and both ends of the range.
high_words = st.one_of(
    st.integers(0, WORD),
    st.sampled_from([0, 1, WORD, WORD - 1, 1 << 63]),
    st.integers(0, 3).map(lambda step: step << 62),
)
keys = st.tuples(high_words, st.integers(0, WORD) | st.integers(0, 2)).filter(any)
rows = st.dictionaries(keys, st.tuples(st.integers(-9, 9), st.integers(0, 99), st.integers(0, 9)), max_size=40)


class Columns:
    """A table as bare arrays."""

    def __init__(self, capacity: int, slack: int, *, expiry: bool, origin: bool) -> None:
        slots = capacity + slack
        self.capacity = capacity
        self.slots = np.zeros((slots, 2), np.uint64)
        self.expiry = np.zeros(slots * expiry, np.int64)
        self.origin = np.zeros(slots * origin, np.int64)
        self.window = np.zeros(slots * origin, np.uint32)
        self.fingerprint = np.zeros(slots * origin, np.uint64)

    def apply(
        self, new: dict[Key, tuple[int, int, int]], start: int = 0, only_window: int | None = None
    ) -> tuple[int, int]:
        ordered = sorted(new.items())

        def column(which: int, kind: type, wanted: bool) -> NDArray[np.int64]:
            return np.array([value[which] for _, value in ordered] if wanted else [], kind)

        return apply_sorted(
            self.slots,
            self.expiry,
            self.origin,
            self.window,
            self.fingerprint,
            capacity=self.capacity,
            digests=digests_of([key for key, _ in ordered]),
            new_expiry=column(0, np.int64, len(self.expiry) > 0),
            new_origin=column(1, np.int64, len(self.origin) > 0),
            new_window=column(2, np.uint32, only_window is None and len(self.origin) > 0),  # type: ignore[arg-type]
            new_fingerprint=column(1, np.uint64, len(self.origin) > 0),  # type: ignore[arg-type]
            only_window=only_window or 0,
            start=start,
        )

    def content(self) -> dict[Key, tuple[int, int, int]]:
        """What the table holds, after checking its order slot by slot."""
        before: Key = (0, 0)
        held = {}
        assert not self.slots[-1].any(), "the last slot stays empty"
        for at, key in enumerate(map(tuple, self.slots.tolist())):
            if any(key):
                assert key > before, "digests ascend"
                before = key
                home = key[0] * self.capacity >> 64
                assert home <= at
                assert self.slots[home:at].any(axis=1).all(), "no gap between home and place"
                assert not len(self.origin) or self.fingerprint[at] == self.origin[at], "columns move together"
                held[key] = tuple(
                    int(column[at]) if len(column) else 0 for column in (self.expiry, self.origin, self.window)
                )
        return held  # type: ignore[return-value]


Batches = list[dict[Key, tuple[int, int, int]]]
some_batches = st.lists(rows, max_size=6)
some_columns = st.sampled_from([(True, True), (True, False), (False, True), (False, False)])


@settings(max_examples=examples(300))
@given(some_batches, some_columns)
def test_a_table_is_a_dict(batches: Batches, columns: tuple[bool, bool]) -> None:
    """Applying batches keeps order, keys and columns; the greater expiry key wins, without one the later window."""
    has_expiry, has_origin = columns
    table = Columns(64, 256, expiry=has_expiry, origin=has_origin)
    model: dict[Key, tuple[int, int, int]] = {}
    for batch in batches:
        before = len(model)
        for key, value in batch.items():
            old = model.get(key)
            replaces = old is None or (value[0] > old[0] if has_expiry else has_origin and value[2] > old[2])
            if replaces:
                model[key] = (value[0] * has_expiry, value[1] * has_origin, value[2] * has_origin)
        assert table.apply(batch) == (len(batch), len(model) - before)
        assert table.content() == model
    asked = sorted({*model, *((hi, lo ^ 1) for hi, lo in model if hi or lo ^ 1), (1, 1), (WORD, WORD)})
    found = find_sorted(table.slots, table.capacity, digests_of(asked))
    for key, at in zip(asked, found.tolist(), strict=True):
        assert (at == -1) if key not in model else tuple(table.slots[at].tolist()) == key


@settings(max_examples=examples(40))
@given(rows, st.integers(0, 50), st.integers(1, 8))
def test_a_full_table_stops_whole_and_the_rest_goes_into_a_larger_one(
    batch: dict[Key, tuple[int, int, int]], slack: int, capacity: int
) -> None:
    """Stopping loses nothing: what was entered is there in order, and `start` goes on with the next."""
    table = Columns(capacity, slack + 1, expiry=True, origin=True)
    entered, added = table.apply(batch)
    assert entered == added
    ordered = dict(sorted(batch.items()))
    assert table.content() == dict(list(ordered.items())[:entered])
    larger = Columns(2 * capacity, len(batch) + 1, expiry=True, origin=True)
    assert copy_into(table, larger, None) == entered
    assert larger.apply(batch, start=entered) == (len(batch), len(batch) - entered)
    assert larger.content() == batch


def copy_into(table: Columns, other: Columns, expiry_point: int | None) -> int:
    copied, _ = copy_live(
        table.slots,
        table.expiry,
        table.origin,
        table.window,
        table.fingerprint,
        expiry_point=expiry_point,
        new_slots=other.slots,
        new_expiry=other.expiry,
        new_origin=other.origin,
        new_window=other.window,
        new_fingerprint=other.fingerprint,
        capacity=other.capacity,
    )
    return copied


@settings(max_examples=examples(40))
@given(rows, st.integers(-10, 10), st.integers(1, 200))
def test_copying_leaves_out_the_dead(batch: dict[Key, tuple[int, int, int]], point: int, capacity: int) -> None:
    """An entry exactly at the expiry point is dead; any other capacity will do, smaller ones too."""
    table, other = (Columns(size, 100, expiry=True, origin=True) for size in (50, capacity))
    table.apply(batch)
    live = {key: value for key, value in batch.items() if value[0] > point}
    assert count_live(table.slots, table.expiry, point) == len(live)
    assert copy_into(table, other, point) == len(live)
    assert other.content() == live


def test_copying_into_too_short_a_slack_says_so() -> None:
    """-1, and the caller takes a longer one."""
    crowd = {(WORD, lo): (0, 0, 0) for lo in range(20)}
    table = Columns(50, 100, expiry=True, origin=False)
    table.apply(crowd)
    assert copy_into(table, Columns(50, 10, expiry=True, origin=False), None) == -1


@pytest.mark.parametrize("slots", range(18, 26))
def test_the_last_slot_stays_empty(slots: int) -> None:
    """A scan needs an end: of two ways to fill a table neither takes it, and both say so."""
    crowd = {(WORD, lo): (lo, lo, lo) for lo in range(20)}
    table = Columns(4, slots - 4, expiry=True, origin=True)
    entered, _ = table.apply(crowd)
    # All are at home in slot 3, so the last of 20 keys stands in slot 22, and slot 23 is the first that may be the end.
    assert entered == min(20, slots - 4)
    assert table.content() == dict(list(crowd.items())[:entered])
    whole = Columns(4, 40, expiry=True, origin=True)
    whole.apply(crowd)
    copy = Columns(4, slots - 4, expiry=True, origin=True)
    assert copy_into(whole, copy, None) == (20 if slots >= 24 else -1)
    if slots >= 24:
        assert copy.content() == crowd


def test_the_two_zeros_are_one() -> None:
    """An entry at one of them is as old as one at the other."""
    assert len(set(ordered_expiry(np.array([0.0, -0.0])).tolist())) == 1


def test_whole_numbers_are_in_order_as_they_are() -> None:
    """The ends of int64 too; nothing is copied."""
    whole = np.array([-(2**63), -1, 0, 2**63 - 1], np.int64)
    assert ordered_expiry(whole) is whole


@pytest.mark.parametrize("count", [23, 24, 25, 60])
def test_many_keys_enter_at_once(count: int) -> None:
    """More and fewer than a sweep looks ahead: no digest behind the last one is read."""
    batch = {(number << 56, number): (number, number, number) for number in range(1, count + 1)}
    table = Columns(100, 100, expiry=True, origin=True)
    assert table.apply(batch) == (count, count)
    assert table.content() == batch
    assert (find_sorted(table.slots, table.capacity, digests_of(sorted(batch))) >= 0).all()


def test_one_window_for_all_entries() -> None:
    """Pieces of one window carry no window column."""
    table = Columns(8, 8, expiry=False, origin=True)
    table.apply({(1, 1): (0, 5, 0)}, only_window=7)
    table.apply({(1, 1): (0, 6, 0), (2, 2): (0, 6, 0)}, only_window=7)
    assert table.content() == {(1, 1): (0, 5, 7), (2, 2): (0, 6, 7)}


def test_only_a_greater_expiry_key_replaces_an_entry() -> None:
    """Below the edge, on it, beyond it: the first copy that a duplicate names stays the first."""
    table = Columns(8, 8, expiry=True, origin=True)
    for expiry, origin, stays in [(5, 1, (5, 1, 1)), (4, 2, (5, 1, 1)), (5, 3, (5, 1, 1)), (6, 4, (6, 4, 4))]:
        table.apply({(1, 1): (expiry, origin, origin)})
        assert table.content() == {(1, 1): stays}


def test_only_a_later_window_replaces_an_entry_without_an_expiry_key() -> None:
    """Below the edge, on it, beyond it."""
    table = Columns(8, 8, expiry=False, origin=True)
    for window, origin, stays in [(5, 1, (0, 1, 5)), (4, 2, (0, 1, 5)), (5, 3, (0, 1, 5)), (6, 4, (0, 4, 6))]:
        table.apply({(1, 1): (0, origin, window)})
        assert table.content() == {(1, 1): stays}


@settings(max_examples=examples(60))
@given(st.sets(keys, max_size=60), st.sets(keys, max_size=30))
def test_matching_sorted_entries_is_a_dict_too(entries: set[Key], asked: set[Key]) -> None:
    """Rows of those that are there, -1 for the others; whichever way they are reached."""
    ordered = sorted(entries)
    wanted = sorted(asked | set(ordered[::3]))
    expected = [ordered.index(key) if key in entries else -1 for key in wanted]
    assert match_sorted(digests_of(ordered), digests_of(wanted)).tolist() == expected
    for match in (_match, _match_sparse) if entries else ():
        found = np.empty(len(wanted), np.int64)
        match(digests_of(ordered), digests_of(wanted), found)
        assert found.tolist() == expected


def test_few_digests_among_many_evenly_spread_entries() -> None:
    """The first and the last entry, those beside them and beyond; all, and none; the same as by galloping."""
    rng = np.random.default_rng(3)
    entries = np.unique(rng.integers(1 << 20, 1 << 63, (50_000, 2), np.uint64), axis=0)
    for asked in (entries[[0, 1, -2, -1]], entries[rng.choice(50_000, 1_000)], entries[:0]):
        beside = [asked + np.array([0, step], np.uint64) for step in (0, 1, WORD)]
        digests = np.unique(np.concatenate([*beside, np.array([[0, 1], [WORD, WORD]], np.uint64)]), axis=0)
        expected = np.empty(len(digests), np.int64)
        _match(entries, digests, expected)
        assert match_sorted(entries, digests).tolist() == expected.tolist()
        assert (expected >= 0).sum() == len(np.unique(asked, axis=0))


@given(st.integers(0, WORD), st.integers(1, (1 << 32) - 1))
@example((1 << 32) + 1, (1 << 32) - 1)  # the low half decides, by its carry
@example((1 << 32) + 2, (1 << 32) - 1)
@example((2 << 64) // 3 + 1, 3)  # odd, and its lowest bit decides
def test_home_is_exact(hi: int, capacity: int) -> None:
    """floor(hi * capacity / 2^64), in 64-bit arithmetic; up to the greatest capacity, and not beyond."""
    assert MAX_CAPACITY == WORD >> 32
    assert home_slot(np.uint64(hi), np.uint64(capacity)) == hi * capacity >> 64


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=20))
def test_floats_keep_their_order_as_ints(values: list[float]) -> None:
    """And come back equal; the two zeros are one."""
    floats = np.array(values)
    ordered = ordered_expiry(floats)
    assert (np.sign(np.subtract.outer(ordered.astype(object), ordered.astype(object)).astype(float)) == np.sign(
        np.greater.outer(floats, floats).astype(float) - np.less.outer(floats, floats))).all()  # fmt: skip
    np.testing.assert_array_equal(float_expiry(ordered), floats)


def test_arrays_over_bytes_need_no_second_compilation() -> None:
    """One signature a kernel, read-only input included; warm() runs them all."""
    warm()
    warm_matching()
    table = Columns(8, 8, expiry=False, origin=False)
    table.apply({(1, 1): (0, 0, 0)})
    read_only = np.frombuffer(digests_of([(1, 1)]).tobytes(), np.uint64).reshape(1, 2)
    assert find_sorted(table.slots, 8, read_only).tolist() == [0]
    with pytest.raises(TypeError):
        find_sorted(table.slots, 8, read_only.astype(np.int64))  # type: ignore[arg-type]
