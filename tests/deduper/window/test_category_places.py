"""The categories of a window, found from the files of its reading tasks, against the rule applied tuple by tuple."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from deduper.config.sections import CategoryExpiry
from deduper.core.categories import CategoryState
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import Admission
from deduper.tasks.layout import RecordLayout
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows, spill
from deduper.window.categories import arrange_categories

SHARDS = 3


def task_in(directory: Path) -> ReadTask:
    return ReadTask(str(directory), SHARDS, RecordLayout.of(pa.string()), None, in_order=True, keeps_latest=False)


def admitted_in(directory: Path) -> Callable[[Sequence[ReadReceipt]], list[Admitted]]:
    """The admitted rows that the reading tasks have left in a folder."""
    return lambda readers: [admitted_rows(task_in(directory), receipt.name) for receipt in readers]


def read(directory: Path, orders: list[int], values: list[bytes], admissions: list[int]) -> ReadReceipt:
    """What a reading task sets aside of these records."""
    count = len(orders)
    words = pa.array(np.random.default_rng(count).integers(0, 2**62, count))
    columns = {
        "_hi": words,
        "_lo": words,
        "_order": pa.array(orders, pa.int64()),
        "_admission": pa.array(admissions, pa.int8()),
        # Texts of Parquet files are not looked at: they may be no UTF-8.
        "_category": pa.array(values, pa.binary()).view(pa.string()),
        "_raw": pa.nulls(count, pa.string()),
    }
    receipt = spill(task_in(directory), iter([pa.record_batch(columns)]))
    assert receipt is not None
    return receipt


def literal(
    state: CategoryState, tuples: list[tuple[int, str]], live_categories: int, remember_dropped: int
) -> tuple[CategoryState, dict[int, int]]:
    """The state after the tuples, and each one's place, -1 for none: tuple by tuple, with lists."""
    live, dropped, next_place = list(state.live), list(state.dropped), state.next_place
    places = {}

    def trim() -> None:
        while len(live) > live_categories:
            dropped.append(live.pop(0)[0])
        del dropped[: max(0, len(dropped) - remember_dropped)]

    trim()
    for order, value in sorted(tuples):
        if value not in dict(live) and value not in dropped:
            live.append((value, next_place))
            next_place += 1
            trim()
        places[order] = dict(live).get(value, -1)
    return CategoryState(next_place, tuple(live), tuple(dropped)), places


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_record_has_the_place_that_a_plain_reading_gives(seed: int, tmp_path: Path) -> None:
    """Windows of several reading tasks, more values than are remembered, errors among the records."""
    draw = random.Random(seed)
    state = CategoryState()
    for window in range(3):
        live, remember = draw.randint(1, 4), draw.choice((0, 1, 3, 20))
        expiry = CategoryExpiry(by="category", field="c", live_categories=live, remember_dropped=remember)
        most = draw.choice((2, 6, 40))
        receipts, parts, tuples = [], [], []
        for reader in range(draw.randint(1, 3)):
            count = draw.choice((1, 5, 80))
            orders = [reader << POSITION_BITS | position for position in range(count)]
            values = [f"c{draw.randrange(most)}" for _ in orders]
            admissions = [draw.choice((Admission.ADMITTED, Admission.ADMITTED, Admission.NULL_KEY)) for _ in orders]
            folder = tmp_path / f"{window}"
            folder.mkdir(exist_ok=True)
            receipts.append(read(folder, orders, [value.encode() for value in values], admissions))
            parts.append((orders, values, admissions))
            tuples += [
                pair
                for *pair, admission in zip(orders, values, admissions, strict=True)
                if admission == Admission.ADMITTED
            ]
        found = arrange_categories(admitted_in(folder), receipts, expiry, state)
        state, expected = literal(state, [(order, value) for order, value in tuples], live, remember)
        assert found.after == state
        for receipt, ids, (orders, values, admissions) in zip(receipts, found.ids, parts, strict=True):
            numbers = ids[[receipt.categories.index(value) for value in values]]
            places, said = found.places.places(numbers, np.array(orders), np.array(admissions, np.uint8))
            assert places.tolist() == [expected.get(order, -1) for order in orders]
            dropped = [
                admission == Admission.ADMITTED and expected[at] < 0
                for at, admission in zip(orders, admissions, strict=True)
            ]
            assert (said == Admission.CATEGORY_DROPPED).tolist() == dropped


def test_texts_that_read_alike_are_one_category(tmp_path: Path) -> None:
    """A byte that is no UTF-8, and the text by which it is shown: the first of either takes the place."""
    receipt = read(tmp_path, [0, 1, 2], [b"\xff", b"a", b"\\xff"], [0, 0, 0])
    expiry = CategoryExpiry(by="category", field="c", live_categories=2)
    found = arrange_categories(admitted_in(tmp_path), [receipt], expiry, CategoryState())
    assert found.after == CategoryState(2, (("\\xff", 0), ("a", 1)), ())
    places, _ = found.places.places(found.ids[0], np.arange(3), np.zeros(3, np.uint8))
    assert places.tolist() == [0, 1, 0]
