"""Tables with slices: a dictionary whatever grows, no window that pays for all, no byte that is not counted."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bucket_store.pieces.piece import BucketEntries
from bucket_store.tables import table_file
from bucket_store.tables.matches import TableLayout
from bucket_store.tables.table_file import (
    GREATEST_LOAD,
    LEAST_LOAD,
    MappedTable,
    capacity_for,
    copy_file,
    create_table,
    file_bytes,
    grown_capacity,
    held_bytes,
    open_table,
    slice_bytes,
)

NONCE = bytes(range(16))
_OF_FILE_SYSTEM = 16 << 10
"""What a file system may take to know where the parts of a file are."""
FULL = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=True)
PLAIN = TableLayout(has_expiry=False, float_expiry=False, has_origin=False, one_table=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of 4,096 homes have slices."""
    monkeypatch.setattr(table_file, "_SLICED_FROM", 4096)


def entries_of(rng: np.random.Generator, count: int, layout: TableLayout) -> BucketEntries:
    """New keys, ascending, with expiry keys 0 to 99."""
    digests = rng.integers(1, 2**64, (count, 2), np.uint64)
    digests = digests[np.lexsort((digests[:, 1], digests[:, 0]))]
    expiry = rng.integers(0, 100, count) if layout.has_expiry else None
    origin = np.arange(count) if layout.has_origin else None
    return BucketEntries(bucket=0, digests=digests, expiry=expiry, origin=origin, window=None, fingerprint=None)


def grow(table: MappedTable, number: int, capacity: int, slack: int, point: int | None) -> bool:
    """As resident tables do."""
    return table.move(number, table.reserve(capacity + slack), capacity, slack, point)


def grow_by(table: MappedTable, number: int, more: int, slack: int, point: int | None) -> bool:
    """As resident tables do, for so many new keys."""
    return grow(table, number, grown_capacity(number, table.live_keys(point, number) + more), slack, point)


def enter(table: MappedTable, entries: BucketEntries, point: int | None = None) -> int:
    """All entries into a table, as resident tables do; gives the slots that were copied for it."""
    copied = 0
    for number, first, end in table.rows_of(entries.digests):
        slack = table_file.LEAST_SLACK
        if not table.has_room(number, end - first):
            copied += len(table.columns(number).slots)
            assert grow_by(table, number, end - first, slack, point)
        while (first := table.apply(number, entries, 7, first, end)) < end:
            slack = 2 * table.slack(number)
            copied += len(table.columns(number).slots)
            assert grow_by(table, number, end - first, slack, point)
    return copied


def check(table: MappedTable, model: dict[tuple[int, int], int | None], point: int | None = None) -> None:
    """It holds what the model says, and finds nothing else."""
    known = np.array(sorted(model), np.uint64).reshape(-1, 2)
    found = table.find(known, point)
    live = [value is None or point is None or value > point for _, value in sorted(model.items())]
    assert found.found.tolist() == live
    if found.expiry is not None:
        values = np.array([value for _, value in sorted(model.items())])
        assert (found.expiry[live] == values[live]).all()
    absent = known + np.array([0, 1], np.uint64)
    wanted = [tuple(key) in model for key in absent.tolist()]
    if not any(wanted):
        assert not table.find(absent, point).found.any()


def added(model: dict[tuple[int, int], int | None], entries: BucketEntries) -> None:
    """The model with these keys."""
    expiry = [None] * len(entries.digests) if entries.expiry is None else entries.expiry.tolist()
    model.update(zip(map(tuple, entries.digests.tolist()), expiry, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [FULL, PLAIN], ids=["full", "plain"])
def test_a_table_that_grows_is_a_dictionary(tmp_path: Path, layout: TableLayout) -> None:
    """From some keys to ten times as many; another mapping of the file sees the same, and the dead leave."""
    rng, model = np.random.default_rng(1), dict[tuple[int, int], int | None]()
    table = create_table(tmp_path / "t", layout, NONCE, 3, capacity=capacity_for(3000))
    assert table.slices == 64
    first = entries_of(rng, 3000, layout)
    enter(table, first)
    added(model, first)
    other = open_table(tmp_path / "t", layout, NONCE, 3)
    assert other is not None
    for _ in range(27):
        more = entries_of(rng, 1000, layout)
        enter(table, more)
        added(model, more)
        if table.size_bytes == other.size_bytes:
            check(other, model)
    assert table.keys == len(model)
    check(table, model)
    again = open_table(tmp_path / "t", layout, NONCE, 3)
    assert again is not None
    check(again, model)
    if layout.has_expiry:
        for number in range(table.slices):
            assert grow_by(table, number, 0, table_file.LEAST_SLACK, 49)
        assert table.keys == table.live_keys(49) == sum(value is not None and value > 49 for value in model.values())
        check(table, model, 49)


@pytest.mark.slow
def test_no_window_pays_for_all_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of windows of a hundredth of the keys none copies more than an eighth of the table; its load stays in bounds.

    Also behind a window that is so large that all slices grow in it.
    """
    monkeypatch.setattr(table_file, "LEAST_SLACK", 64)
    rng = np.random.default_rng(2)
    keys = 200_000
    table = create_table(tmp_path / "t", PLAIN, NONCE, 0, capacity=capacity_for(keys), slack=64)
    enter(table, entries_of(rng, keys, PLAIN))
    copied, shares = 0, []

    def enter_until(count: int) -> None:
        nonlocal copied
        while table.keys < count:
            slots = enter(table, entries_of(rng, table.keys // 100, PLAIN))
            copied += slots
            shares.append(slots / table.capacity)
            assert LEAST_LOAD * 0.9 < table.keys / table.capacity < GREATEST_LOAD

    enter_until(2 * keys)
    assert enter(table, entries_of(rng, table.keys // 2, PLAIN)) > table.capacity / 2
    enter_until(5 * keys)
    assert max(shares) < 1 / 8
    assert copied < 4 * 5 * keys / LEAST_LOAD


def test_bytes_are_those_of_the_slices(tmp_path: Path) -> None:
    """What has moved leaves a hole, also where the file had to become longer; a copy of the file has the same."""
    rng = np.random.default_rng(3)
    table = create_table(tmp_path / "t", FULL, NONCE, 0, capacity=capacity_for(3000))
    assert held_bytes((tmp_path / "t").stat()) == file_bytes(FULL, capacity_for(3000))
    longer = table.size_bytes
    model: dict[tuple[int, int], int | None] = {}
    while table.size_bytes == longer:
        more = entries_of(rng, 4000, FULL)
        enter(table, more)
        added(model, more)
    slots = [len(table.columns(number).slots) for number in range(table.slices)]
    held = 4096 + sum(slice_bytes(FULL, count) for count in slots)
    assert held <= held_bytes((tmp_path / "t").stat()) <= held + _OF_FILE_SYSTEM
    copy_file(tmp_path / "t", tmp_path / "copy")
    assert held <= held_bytes((tmp_path / "copy").stat()) <= held + _OF_FILE_SYSTEM
    copied = open_table(tmp_path / "copy", FULL, NONCE, 0)
    assert copied is not None
    check(copied, model)


@pytest.mark.parametrize(("before", "after"), [(100, 3000), (3000, 100), (3000, 9000)])
def test_a_table_that_is_made_anew(tmp_path: Path, before: int, after: int) -> None:
    """With slices from one without, the reverse, and others from some: the same keys."""
    rng, model = np.random.default_rng(4), dict[tuple[int, int], int | None]()
    table = create_table(tmp_path / "t", FULL, NONCE, 0, capacity=capacity_for(before))
    entries = entries_of(rng, min(before, after), FULL)
    enter(table, entries)
    added(model, entries)
    other = create_table(tmp_path / "u", FULL, NONCE, 0, capacity=capacity_for(after))
    assert table.copy_into(other, None)
    assert other.keys == len(model)
    check(other, model)


def test_keys_at_the_ends_of_slices(tmp_path: Path) -> None:
    """The least and the greatest digest of each slice stand in it, and go where they belong when it is rebuilt."""
    edges = [edge for number in range(64) for edge in (number << 58, (number << 58) - 1)]
    digests = np.array(sorted((max(edge, 0), 1) for edge in edges if edge >= 0), np.uint64)
    entries = BucketEntries(bucket=0, digests=digests, expiry=None, origin=None, window=None, fingerprint=None)
    table = create_table(tmp_path / "t", PLAIN, NONCE, 0, capacity=capacity_for(3000))
    enter(table, entries)
    assert [(end - first) for _, first, end in table.rows_of(digests)] == [2] * 63 + [1]
    other = create_table(tmp_path / "u", PLAIN, NONCE, 0, capacity=1024)
    again = create_table(tmp_path / "v", PLAIN, NONCE, 0, capacity=capacity_for(5000))
    assert table.copy_into(other, None)
    assert other.copy_into(again, None)
    for each in (table, other, again):
        assert each.keys == len(digests)
        assert each.find(digests, None).found.all()


def test_no_room_to_grow_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, and a slack that is too short."""
    rng, model = np.random.default_rng(5), dict[tuple[int, int], int | None]()
    table = create_table(tmp_path / "t", FULL, NONCE, 0, capacity=capacity_for(3000))
    entries = entries_of(rng, 3000, FULL)
    enter(table, entries)
    added(model, entries)
    held = held_bytes((tmp_path / "t").stat())

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            grow(table, 5, 4096, 512, None)
    assert not grow(table, 5, 4, 1, None)
    assert held_bytes((tmp_path / "t").stat()) == held
    check(table, model)


@pytest.mark.slow
def test_a_file_system_without_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes more room, which is counted, and gives the same answers."""

    class Without:
        fallocate: Callable[..., int] = staticmethod(lambda *_: -1)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Without())
    rng, model = np.random.default_rng(6), dict[tuple[int, int], int | None]()
    table = create_table(tmp_path / "t", FULL, NONCE, 0, capacity=capacity_for(3000))
    for _ in range(6):
        entries = entries_of(rng, 3000, FULL)
        enter(table, entries)
        added(model, entries)
    slots = [len(table.columns(number).slots) for number in range(table.slices)]
    assert held_bytes((tmp_path / "t").stat()) > 4096 + sum(slice_bytes(FULL, count) for count in slots)
    check(table, model)
    # Room is used again: by the same slice, larger and smaller in turns, and after a move in vain.
    for capacity in (2000, 1200, 1600, 1100, 2000, 1200):
        for number in (7, 8, 9):
            assert not grow(table, number, 4, 1, None)
            assert grow(table, number, capacity, 512, None)
        again = open_table(tmp_path / "t", FULL, NONCE, 0)
        assert again is not None
        check(again, model)
        held = [int((table.columns(number).slots != 0).any(axis=1).sum()) for number in range(table.slices)]
        assert sum(held) == table.keys == len(model)
