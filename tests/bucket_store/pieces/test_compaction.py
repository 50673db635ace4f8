"""Many small pieces become few: which are chosen, how often an entry is rewritten, and that nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.errors import CorruptionError
from bucket_store.pieces import compaction
from bucket_store.pieces.cache import PieceCache
from bucket_store.pieces.compaction import (
    FEWEST,
    FEWEST_LEFT,
    FEWEST_LIVE,
    MOST_BYTES,
    MOST_PIECES,
    CompactionTask,
    choose,
    compact_pieces,
    merge,
)
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import BucketEntries, Entries, PieceRef, decode_piece
from bucket_store.pieces.store import append_piece
from tests.bucket_store.log_samples import piece

STORE_ID = "ab" * 16


def of_size(window: int, length: int, bucket: int = 0) -> PieceRef:
    """A piece of a window that is so large and dies with a bucket."""
    return replace(piece(window), length=length, max_bucket=bucket)


def by_bucket(ref: PieceRef) -> int:
    """Pieces die with their last bucket."""
    return ref.max_bucket


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few live."""
    monkeypatch.setattr(compaction, "FEWEST_LIVE", 0)


def test_where_few_live_they_stay() -> None:
    """Their views cost nothing, and merging would only write more."""
    assert choose([of_size(window, 100) for window in range(FEWEST_LIVE - 1)], by_bucket) == ()
    assert len(choose([of_size(window, 100) for window in range(FEWEST_LIVE)], by_bucket)) == FEWEST_LIVE


@pytest.mark.usefixtures("_few")
def test_few_are_left_alone() -> None:
    """A record costs two syncs."""
    assert choose([of_size(window, 100) for window in range(FEWEST - 1)], by_bucket) == ()
    chosen = choose([of_size(window, 100) for window in range(FEWEST)], by_bucket)
    assert [ref.first_window for ref in chosen] == list(range(FEWEST))


@pytest.mark.usefixtures("_few")
def test_only_what_dies_together_is_merged() -> None:
    """The merged piece is gone when each of them would have been."""
    pieces = [of_size(window, 100, bucket=window % 3) for window in range(3 * FEWEST)]
    assert {ref.max_bucket for ref in choose(pieces, by_bucket)} in ({0}, {1}, {2})


@pytest.mark.usefixtures("_few")
def test_what_time_has_passed_is_merged_sooner() -> None:
    """Nothing more is to come, as a rule."""
    pieces = [of_size(window, 100, bucket=int(window >= FEWEST_LEFT)) for window in range(2 * FEWEST_LEFT)]
    assert {ref.max_bucket for ref in choose(pieces, by_bucket)} == {0}


@pytest.mark.usefixtures("_few")
def test_the_large_are_left_alone() -> None:
    """Merging takes memory by the size of what it makes."""
    pieces = [of_size(window, MOST_BYTES // 2 + 1) for window in range(3 * FEWEST)]
    assert choose(pieces, by_bucket) == ()
    chosen = choose([of_size(window, MOST_BYTES // 6) for window in range(3 * FEWEST)], by_bucket)
    assert FEWEST_LEFT <= len(chosen) <= 6
    assert len(choose([of_size(window, 1) for window in range(3 * MOST_PIECES)], by_bucket)) == MOST_PIECES


@pytest.mark.usefixtures("_few")
def test_of_the_current_bucket_the_merged_stay() -> None:
    """A level of pieces is merged when there are enough of it, and the larger ones of it stay."""
    merged = [of_size(window, 1600) for window in range(FEWEST - 1)]
    fresh = [of_size(window, 100) for window in range(FEWEST, 2 * FEWEST)]
    assert choose([*merged, *fresh], by_bucket) == tuple(fresh)
    assert choose([*merged, *fresh[1:]], by_bucket) == ()
    merged.append(of_size(FEWEST - 1, 1600))
    assert choose([*merged, *fresh[1:]], by_bucket) == tuple(merged)


@pytest.mark.usefixtures("_few")
def test_an_older_bucket_is_merged_whole_once() -> None:
    """Late pieces are merged with each other, until they are a fifth of it."""
    now = of_size(99, 100, bucket=1)
    left = [of_size(0, 4000), of_size(1, 3900), of_size(2, 100)]
    assert choose([*left, now], by_bucket) == tuple(left)
    whole = of_size(0, 8000)
    late = [of_size(window, 100) for window in range(3, 3 + FEWEST_LEFT)]
    assert choose([whole, *late[1:], now], by_bucket) == ()
    assert choose([whole, *late, now], by_bucket) == tuple(late)
    assert choose([whole, of_size(3, 2000), now], by_bucket) == (whole, of_size(3, 2000))


@pytest.mark.usefixtures("_few")
def test_the_newest_of_the_older_buckets_comes_first() -> None:
    """Its merged piece lives longest."""
    pieces = [of_size(window, 100, bucket=window % 3) for window in range(12)]
    assert {ref.max_bucket for ref in choose(pieces, by_bucket)} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_full_period_has_few_pieces_and_is_written_three_times(seed: int) -> None:
    """Each time bucket full, any number of windows in it, sizes that differ, and any beginning of merging."""
    draw = random.Random(seed)
    windows, spread, fewest = draw.randint(30, 240), draw.uniform(0, 2), draw.randint(FEWEST_LIVE // 2, FEWEST_LIVE)
    live: list[PieceRef] = []
    added: Counter[int] = Counter()
    merged: Counter[int] = Counter()
    most = 0
    for window in range(32 * windows):
        bucket = window // windows
        size = int(100_000 * np.exp(draw.uniform(-spread / 2, spread / 2)))
        live = [ref for ref in live if ref.max_bucket >= bucket - 24] + [of_size(window, size, bucket)]
        chosen = choose(live, by_bucket, fewest=fewest)
        added[bucket] += size
        if chosen:
            left = set(chosen)
            one = replace(chosen[0], last_window=window, length=sum(ref.length for ref in chosen))
            live = [ref for ref in live if ref not in left] + [one]
            merged[one.max_bucket] += one.length
        most = max(most, len(live))
    assert most <= 80, (windows, spread, fewest)
    assert all(merged[bucket] <= 2 * added[bucket] for bucket in added), (windows, spread, fewest)


@pytest.mark.night(but=["1.0"])
@pytest.mark.slow
@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_a_day_of_seconds_leaves_few_pieces(spread: float) -> None:
    """86,400 windows, an hour a bucket, sizes that differ by e**spread: some hundred pieces at any time, and an entry
    is rewritten as often as the pieces double."""
    draw = random.Random(7)
    live: dict[int, list[PieceRef]] = {}
    added = rewritten = most = 0
    for window in range(86_400):
        bucket = window // 3600
        size = int(1000 * np.exp(draw.uniform(-spread / 2, spread / 2)))
        added += size
        live.setdefault(bucket, []).append(of_size(window, size, bucket))
        if window % 8 == 0:
            recent = [ref for at in (bucket - 1, bucket) for ref in live.get(at, ())]
            chosen = choose(recent, by_bucket)
            if chosen:
                size = sum(ref.length for ref in chosen)
                rewritten += size
                home = live[chosen[0].max_bucket]
                home[:] = [ref for ref in home if ref not in set(chosen)]
                home.append(replace(chosen[0], last_window=chosen[-1].last_window, length=size))
        most = max(most, sum(map(len, live.values())))
    assert most <= 250
    assert rewritten <= 9 * added


Keys = dict[tuple[int, int], int]
"""Expiry keys by digest."""


def blocks_of(windows: list[dict[int, Keys]]) -> list[tuple[PieceRef, list[BucketEntries]]]:
    """Pieces of windows, which are keys by bucket; the origin tells of window and key."""
    made = []
    for window, buckets in enumerate(windows):
        blocks = []
        for bucket, keys in sorted(buckets.items()):
            ordered = sorted(keys)
            blocks.append(
                BucketEntries(
                    bucket,
                    np.array(ordered, np.uint64).reshape(-1, 2),
                    np.array([keys[key] for key in ordered], np.int64),
                    np.array([1000 * window + key[1] for key in ordered], np.int64),
                    None,
                    None,
                )
            )
        made.append((piece(window), blocks))
    return made


_KEYS = st.dictionaries(st.tuples(st.integers(1, 3), st.integers(0, 3)), st.integers(0, 9), min_size=1)
_WINDOWS = st.lists(st.dictionaries(st.integers(0, 2), _KEYS, min_size=1), min_size=1, max_size=5)


@pytest.mark.slow
@given(_WINDOWS, st.none() | st.integers(0, 3), st.none() | st.integers(-1, 9))
def test_a_merged_piece_holds_what_the_others_held(
    windows: list[dict[int, Keys]], live_from: int | None, point: int | None
) -> None:
    """Every live key of every bucket once, with the columns of the entry that a table would keep."""
    least: dict[tuple[int, tuple[int, int]], tuple[int, int]] = {}
    for window, buckets in enumerate(windows):
        for bucket, keys in buckets.items():
            for key, expiry in keys.items():
                is_dead = (live_from is not None and bucket < live_from) or (point is not None and expiry <= point)
                if not is_dead:
                    least[bucket, key] = min(least.get((bucket, key), (1, 0)), (-expiry, window))
    expected = {place: (-expiry, window) for place, (expiry, window) in least.items()}
    found = merge(blocks_of(windows), live_from_bucket=live_from, expiry_point=point)
    if found is None:
        assert expected == {}
        return
    assert found.expiry is not None
    assert found.origin is not None
    assert found.window is not None
    said = {}
    for at, bucket in enumerate(found.bucket_keys.tolist()):
        for row in range(found.bucket_starts[at], found.bucket_starts[at + 1]):
            key = (int(found.digests[row, 0]), int(found.digests[row, 1]))
            said[bucket, key] = (int(found.expiry[row]), int(found.window[row]))
            assert found.origin[row] == 1000 * found.window[row] + key[1]
    assert said == expected
    assert len(found.digests) == len(expected)


@pytest.mark.parametrize("scheme", ["file", "rocksdb"])
def test_pieces_of_a_store_become_one(tmp_path: Path, scheme: str) -> None:
    """Of merged ones too: windows, entries and columns are theirs, and the new one is read like any other."""
    store = open_backend(f"{scheme}:{tmp_path}")

    def appended(window: int) -> PieceRef:
        digests = np.array([[window + 1, 7], [50, window]], np.uint64)
        column = np.full(2, window, np.int64)
        entries = Entries(
            np.array([3]), np.array([0, 2]), digests[np.lexsort((digests[:, 1], digests[:, 0]))], column, column
        )
        where: dict[str, Any] = {"shard": 1, "first_window": window, "last_window": window, "epoch": 2, "attempt": 0}
        return append_piece(store, entries, store_id=bytes.fromhex(STORE_ID), **where)

    def merged(*refs: PieceRef) -> PieceRef:
        one = compact_pieces(store, CompactionTask(refs, STORE_ID, 2, None, None))
        assert one is not None
        return one

    first, second, third = (appended(window) for window in (4, 6, 9))
    one = merged(merged(first, second), third)
    assert (one.shard, one.first_window, one.last_window, one.entries, one.max_bucket) == (1, 4, 9, 6, 3)
    _, (block,) = decode_piece(store.read(one), file=one.file, offset=one.offset)
    assert block.window is not None
    assert block.origin is not None
    assert Counter(block.window.tolist()) == {4: 2, 6: 2, 9: 2}
    assert block.origin.tolist() == block.window.tolist()
    assert compact_pieces(store, CompactionTask((first, second), STORE_ID, 2, 4, None)) is None
    with pytest.raises(CorruptionError):
        merged(first, replace(second, length=second.length - 8))
    store.close()


@pytest.mark.parametrize("copies", ["none", "sound", "torn", "another's"])
def test_copies_of_a_host_are_read_first(tmp_path: Path, copies: str) -> None:
    """Sound copies stand for their pieces; others are dropped, and the pieces are read. The new piece has a copy."""
    store, cache = open_backend(f"file:{tmp_path / 'state'}"), PieceCache(tmp_path / "copies", 1 << 20)
    (tmp_path / "state").mkdir()

    def appended(window: int) -> PieceRef:
        digests = np.array([[window + 1, 7]], np.uint64)
        entries = Entries(np.array([3]), np.array([0, 1]), digests, None, None)
        where: dict[str, Any] = {"shard": 1, "first_window": window, "last_window": window, "epoch": 2, "attempt": 0}
        return append_piece(store, entries, store_id=bytes.fromhex(STORE_ID), **where)

    refs = tuple(appended(window) for window in range(3))
    bytes_of = [store.read(ref) for ref in refs]
    for ref, data in zip(refs, bytes_of, strict=True):
        if copies == "sound":
            cache.add(ref, data)
        elif copies == "torn":
            cache.add(ref, data[:-8] + bytes([data[-8] ^ 1]) + data[-7:])
        elif copies == "another's":
            cache.add(ref, bytes_of[(refs.index(ref) + 1) % 3])
    if copies == "sound":
        for ref in refs:
            (tmp_path / "state" / ref.file).write_bytes(bytes(ref.length))  # to show that only copies are read
    one = compact_pieces(store, CompactionTask(refs, STORE_ID, 2, None, None), cache)
    assert one is not None
    assert one.entries == 3
    data = cache.read(one, 0, one.length)
    assert data is not None
    _, (block,) = decode_piece(data, file=one.file, offset=one.offset)
    assert sorted(block.digests[:, 0].tolist()) == [1, 2, 3]
    store.close()
