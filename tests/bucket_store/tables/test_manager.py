"""The bucket manager: whatever happens to the tables, the answers are those of a dict."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import xxhash

from bucket_store import failpoints
from bucket_store.errors import CorruptionError, StaleViewError
from bucket_store.pieces import reader as piece_reader
from bucket_store.pieces.open import open_backend
from bucket_store.tables import eviction, resident
from bucket_store.tables import generation as generation_module
from bucket_store.tables.generation import ShardDirectories, last_used_us, open_generation
from bucket_store.tables.manager import ShardTables, TableLayout, TableSettings
from bucket_store.tables.table_file import LEAST_LOAD, MappedTable, file_bytes
from bucket_store.tables.view import ShardView
from tests.bucket_store.table_samples import FOLDER, STORE_ID, Key, Remembered, Shard, digests_of, random_keys
from tests.processes import freeze

PLAIN = TableLayout(has_expiry=False, float_expiry=False, has_origin=False, one_table=False)
FULL = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=False)
ORIGIN = TableLayout(has_expiry=False, float_expiry=False, has_origin=True, one_table=False)
ALL_LIVE = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=True)
ALL_LIVE_FLOAT = TableLayout(has_expiry=True, float_expiry=True, has_origin=False, one_table=True)

ROOMY = 1 << 30


def make_settings(tmp_path: Path, layout: TableLayout, memory: int = ROOMY, disk: int = ROOMY) -> TableSettings:
    return TableSettings(str(tmp_path / "memory"), str(tmp_path / "disk"), memory, disk, layout, lock_timeout_s=0.05)


def make_shard(tmp_path: Path, layout: TableLayout, scheme: str = "file", shard: int = 0) -> Shard:
    return Shard(open_backend(f"{scheme}:{tmp_path / 'store'}"), layout, shard)


def small_table_bytes(layout: TableLayout) -> int:
    """Size of a table of few keys."""
    return file_bytes(layout, 1024)


def check(tables: ShardTables, shard: Shard, bucket: int, keys: list[Key], point: int | float | None = None) -> None:
    """The tables say of these keys what the model says."""
    matches = tables.find(bucket, digests_of(sorted(keys)))
    layout = shard.layout
    for at, key in enumerate(sorted(keys)):
        known = shard.model.get((0 if layout.one_table else bucket, key))
        if known is not None and layout.one_table and point is not None and known[0] <= point:
            known = None
        assert matches.found[at] == (known is not None)
        if known is not None and matches.expiry is not None:
            assert matches.expiry[at] == known[0]
        if known is not None and matches.origin is not None and matches.window is not None:
            assert (matches.origin[at], matches.window[at]) == known[1:]
    assert (matches.expiry is None, matches.origin is None) == (not layout.has_expiry, not layout.has_origin)


def check_all(settings: TableSettings, shard: Shard, **view: int) -> None:
    """Every bucket of the model, with some keys it does not have."""
    with ShardTables.open(settings, shard.pieces, shard.view(**view)) as tables:
        for bucket in sorted({bucket for bucket, _ in shard.model}):
            check(tables, shard, bucket, [key for of, key in shard.model if of == bucket] + random_keys(999, 50))


def commit_buckets(shard: Shard, buckets: range, seed: int, count: int = 20) -> None:
    """A window with some keys in every bucket."""
    rows: dict[tuple[int, Key], Remembered] = {}
    for bucket in buckets:
        for at, key in enumerate(random_keys(1000 * seed + bucket, count)):
            rows[bucket, key] = (10 * bucket + at % 10, at, shard.next_window)
    shard.commit(rows)


def plant(settings: TableSettings, shard: Shard, bucket: int = 0) -> None:
    """Puts a key into a resident table that no piece has: found later, it shows that the table was not rebuilt."""
    key = (1 << 60, 1)
    tables = ShardTables.open(settings, shard.pieces, shard.view())
    table = tables._pin(bucket)
    assert table is not None
    foreign = Shard(shard.pieces, shard.layout)
    foreign.pieces = open_backend(f"file:{Path(settings.disk_dir) / 'foreign'}")
    foreign.commit({(bucket, key): (10 * bucket + 5, 1, 0)})
    reader = tables._reader
    (part,) = type(reader)(foreign.pieces, STORE_ID).all_parts(foreign.refs)
    assert table.apply(0, type(reader)(foreign.pieces, STORE_ID).read(part), 0, 0, 1) == 1
    tables.close()
    assert is_planted(settings, shard, bucket)


def is_planted(settings: TableSettings, shard: Shard, bucket: int = 0) -> bool:
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        return bool(tables.find(bucket, digests_of([(1 << 60, 1)])).found[0])


def planted(directory: Path) -> tuple[Shard, TableSettings]:
    """Warm tables of two buckets, the first with a planted key."""
    shard, settings = make_shard(directory, FULL), make_settings(directory, FULL)
    commit_buckets(shard, range(2), seed=1)
    check_all(settings, shard)
    plant(settings, shard)
    return shard, settings


@pytest.mark.slow
@pytest.mark.parametrize("layout", [PLAIN, FULL, ALL_LIVE, ALL_LIVE_FLOAT], ids=["plain", "full", "live", "live float"])
@pytest.mark.parametrize(
    ("scheme", "memory", "disk"),
    [
        pytest.param("file", ROOMY, ROOMY, id="file-roomy"),
        pytest.param("file", 100_000, ROOMY, id="file-disk"),
        pytest.param("file", 100_000, 100_000, id="file-tight"),
        pytest.param("file", 0, 0, id="file-none"),
        pytest.param("rocksdb", ROOMY, ROOMY, id="rocksdb-roomy"),
        pytest.param("rocksdb", 100_000, ROOMY, id="rocksdb-disk", marks=pytest.mark.night),
        pytest.param("rocksdb", 100_000, 100_000, id="rocksdb-tight", marks=pytest.mark.night),
        pytest.param("rocksdb", 0, 0, id="rocksdb-none", marks=pytest.mark.night),
    ],
)
def test_answers_are_those_of_a_dict(tmp_path: Path, layout: TableLayout, memory: int, disk: int, scheme: str) -> None:
    """Over many windows, with tables, with evictions, and with no room at all."""
    rng = random.Random(f"{layout}{memory}{disk}")
    shard = make_shard(tmp_path, layout, scheme)
    settings = make_settings(tmp_path, layout, memory, disk)
    universe = random_keys(5, 900)
    merged = 0
    for window in range(8):
        point = None if window < 4 else (window - 4) * 10
        rows: dict[tuple[int, Key], Remembered] = {}
        view = shard.view(expiry_point=point if layout.one_table else None)
        with ShardTables.open(settings, shard.pieces, view) as tables:
            for bucket in [0] if layout.one_table else range(3):
                check(tables, shard, bucket, rng.sample(universe, 300), point)
                for key in rng.sample(universe, 250):
                    known = shard.model.get((bucket, key))
                    if known is None or (layout.one_table and point is not None and known[0] <= point):
                        expiry = window * 10 + rng.randrange(10)
                        rows[expiry // 10 if layout.one_table else bucket, key] = (
                            expiry,
                            rng.randrange(1 << 50),
                            window,
                        )
            merged += tables.counters.merged
        shard.commit(rows)
    assert (merged > 0) == (memory == 0)


def test_one_directory_may_serve_as_memory_and_disk(tmp_path: Path) -> None:
    """On a machine without shared memory: the same answers, and tables that stay warm."""
    shard = make_shard(tmp_path, FULL)
    settings = replace(make_settings(tmp_path, FULL), memory_dir=str(tmp_path / "disk"))
    for window in range(4):
        check_all(settings, shard)
        commit_buckets(shard, range(3), seed=window)
    check_all(settings, shard)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        assert tables.counters.resident_tables == 3


def test_warm_tables_are_only_advanced(tmp_path: Path) -> None:
    """Tables made as their buckets appear, then hit; nothing is loaded."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    for window in range(3):
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            for bucket in range(window + 1):
                tables.find(bucket, digests_of([(1, 1)]))
            counters = tables.counters
        assert (counters.hits, counters.misses, counters.loaded) == (window, 0, 0)
        assert counters.resident_tables == window
        assert counters.resident_bytes == window * small_table_bytes(FULL)
        commit_buckets(shard, range(window + 1), seed=window)
    check_all(settings, shard)


def test_the_least_recently_used_moves_down_and_then_goes(tmp_path: Path) -> None:
    """Room for two tables in memory and one on disk: of four, the longest unused is deleted."""
    shard = make_shard(tmp_path, FULL)
    size = small_table_bytes(FULL)
    settings = make_settings(tmp_path, FULL, memory=2 * size, disk=size)
    commit_buckets(shard, range(4), seed=1)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        for bucket in (0, 1, 2, 3):
            check(tables, shard, bucket, random_keys(1000 + bucket, 20))
        assert tables.counters.evicted == 1
        check(tables, shard, 2, random_keys(1002, 20))
        hits = tables.counters.hits
        assert hits == 1
        names = {
            place: sorted(path.name for path in tmp_path.glob(f"{place}/*/0000/1/t*")) for place in ("memory", "disk")
        }
    assert names == {"memory": ["t2.table", "t3.table"], "disk": ["t1.table"]}


def test_a_look_up_is_a_use(tmp_path: Path) -> None:
    """Of two tables the one that was not asked makes room for a third, also when it was built later."""
    shard = make_shard(tmp_path, FULL)
    settings = make_settings(tmp_path, FULL, memory=2 * small_table_bytes(FULL), disk=0)
    commit_buckets(shard, range(3), seed=1)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        for bucket in (0, 1, 0, 2):
            check(tables, shard, bucket, random_keys(1000 + bucket, 20))
    assert sorted(path.name for path in tmp_path.glob("memory/*/0000/1/t*")) == ["t0.table", "t2.table"]


@pytest.mark.parametrize("room", [ROOMY, 0], ids=["table", "merged"])
@pytest.mark.parametrize("backwards", [False, True])
def test_of_two_entries_for_a_key_one_stands(tmp_path: Path, room: int, backwards: bool) -> None:
    """Without an expiry key the later window's, else that of the greater one, else the first; with or without a table,
    and whatever the order of the pieces."""
    key = (1 << 63, 5)
    for number, (layout, expiries, stands) in enumerate(
        [(ORIGIN, (0, 0), 1), (FULL, (3, 4), 1), (FULL, (4, 3), 0), (ALL_LIVE, (3, 4), 1), (ALL_LIVE, (4, 3), 0)]
    ):
        place = tmp_path / str(number)
        shard, settings = make_shard(place, layout), make_settings(place, layout, room, room)
        for window, expiry in enumerate(expiries):
            shard.commit({(0, key): (expiry, 70 + window, window)})
        if backwards:
            shard.refs.reverse()
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            found = tables.find(0, digests_of([key]))
            assert tables.counters.merged == (room == 0)
        assert found.origin is not None
        assert found.window is not None
        assert (found.origin.tolist(), found.window.tolist()) == ([70 + stands], [stands])


@pytest.mark.parametrize("room", [ROOMY, 0], ids=["table", "merged"])
@pytest.mark.parametrize("layout", [ALL_LIVE, ALL_LIVE_FLOAT], ids=["int", "float"])
def test_a_part_is_live_until_its_last_entry_is_dead(tmp_path: Path, layout: TableLayout, room: int) -> None:
    """One step beyond the expiry point it is found, on it no more."""
    key = (1 << 63, 5)
    shard, settings = make_shard(tmp_path, layout), make_settings(tmp_path, layout, room, room)
    shard.commit({(1, key): (11, 0, 0)})
    for point, is_found in [(9, True), (10, True), (11, False), (12, False)]:
        with ShardTables.open(settings, shard.pieces, shard.view(expiry_point=point)) as tables:
            assert tables.find(0, digests_of([key])).found.tolist() == [is_found]


def test_bytes_are_counted_over_all_shards(tmp_path: Path) -> None:
    """Another shard's table goes when it is the longest unused, unless that shard is at work."""
    shards = [make_shard(tmp_path, FULL, shard=shard) for shard in range(3)]
    settings = make_settings(tmp_path, FULL, memory=2 * small_table_bytes(FULL), disk=0)
    for shard in shards:
        commit_buckets(shard, range(1), seed=1)

    def in_memory() -> list[str]:
        return sorted(path.parts[-3] for path in tmp_path.glob("memory/*/*/1/*.table"))

    with ShardTables.open(settings, shards[0].pieces, shards[0].view()) as at_work:
        at_work.load([0])
        with ShardTables.open(settings, shards[1].pieces, shards[1].view()) as tables:
            tables.load([0])
        assert in_memory() == ["0000", "0001"]
        with ShardTables.open(settings, shards[2].pieces, shards[2].view()) as tables:
            tables.load([0])
            assert tables.counters.evicted == 1
        assert in_memory() == ["0000", "0002"]
    for shard in shards:
        check_all(settings, shard)


def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """So many shards build a table each at one moment, in room for one: the bytes of each in memory."""
    shards = [make_shard(tmp_path, FULL, shard=shard) for shard in range(count)]
    settings = make_settings(tmp_path, FULL, memory=small_table_bytes(FULL), disk=0)
    for shard in shards:
        commit_buckets(shard, range(1), seed=1)
    create = resident.create_table

    def slowly(*given: Any, **named: Any) -> Any:
        time.sleep(0.05)
        return create(*given, **named)

    monkeypatch.setattr(resident, "create_table", slowly)
    together = threading.Barrier(count)

    def build(shard: Shard) -> None:
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            together.wait()
            check(tables, shard, 0, random_keys(1, 20))
            together.wait()

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(build, shards))
    return [path.stat().st_size for path in tmp_path.glob("memory/*/*/1/*.table")]


def test_shards_at_work_take_no_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts and takes by itself: the others do not see the same bytes free meanwhile."""
    assert at_once(tmp_path, monkeypatch, 4) == [small_table_bytes(FULL)]


def test_a_table_gets_its_name_while_nobody_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that has read the old name would count nothing for it."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    apply, lock = MappedTable.apply, eviction._locked
    counting, waiting = threading.Event(), threading.Event()
    seen: list[Path] = []

    def count() -> None:
        with eviction.taking_room(tmp_path / "disk" / FOLDER):
            counting.set()
            waiting.wait(10)
            seen.extend(tmp_path.glob("memory/*/*/1/*.table"))

    counter = threading.Thread(target=count)

    def applied(*given: Any) -> Any:
        done = apply(*given)
        counter.start()
        assert counting.wait(10)
        return done

    def locked(fd: int) -> bool:
        is_locked = lock(fd)
        if not is_locked:
            waiting.set()
        return is_locked

    monkeypatch.setattr(MappedTable, "apply", applied)
    monkeypatch.setattr(eviction, "_locked", locked)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        check(tables, shard, 0, random_keys(1, 20))
        counter.join()
        assert not seen
        assert list(tmp_path.glob("memory/*/*/1/*.table"))


def test_who_is_frozen_while_it_takes_room_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait a moment, and go on."""
    monkeypatch.setattr(eviction, "_ROOM_WAIT_S", 0.05)
    settings = make_settings(tmp_path, FULL)
    shard = make_shard(tmp_path, FULL)
    commit_buckets(shard, range(2), seed=1)
    check_all(settings, shard)
    commit_buckets(shard, range(2, 4), seed=2)
    with eviction.taking_room(tmp_path / "disk" / FOLDER):
        check_all(settings, shard)
    with eviction.taking_room(tmp_path / "nowhere"):
        pass


def test_a_growing_table_that_finds_no_room_is_dropped(tmp_path: Path) -> None:
    """And the bucket is answered by merging from then on."""
    shard = make_shard(tmp_path, FULL)
    settings = make_settings(tmp_path, FULL, memory=small_table_bytes(FULL), disk=0)
    for seed in range(3):
        check_all(settings, shard)
        commit_buckets(shard, range(1), seed=seed, count=500)
    check_all(settings, shard)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        check(tables, shard, 0, random_keys(0, 500))
        assert (tables.counters.merged, tables.counters.resident_tables) == (1, 0)


def commit_keys(shard: Shard, bucket: int, seed: int, count: int) -> None:
    """A window with so many keys in one bucket."""
    keys = random_keys(seed, count)
    shard.commit({(bucket, key): (10 * bucket, at, shard.next_window) for at, key in enumerate(keys)})


def files_of_table(settings: TableSettings, shard: Shard, bucket: int, windows: int, count: int) -> int:
    """In how many files a bucket lies one after another while windows of so many keys fill it."""
    inodes = []
    for window in range(windows):
        commit_keys(shard, bucket, seed=100 * bucket + window, count=count)
        with ShardTables.open(settings, shard.pieces, shard.view()):
            (path,) = Path(settings.memory_dir).glob(f"*/0000/*/t{bucket}.table")
            inodes.append(path.stat().st_ino)
    return sum(one != next_one for one, next_one in pairwise([0, *inodes]))


@pytest.mark.slow
def test_a_bucket_that_fills_like_the_one_before_is_seldom_copied(tmp_path: Path) -> None:
    """It has room for four times what it holds, if that one was as large; not more, and without harm to the answers."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    check_all(settings, shard)
    assert files_of_table(settings, shard, 0, windows=8, count=1000) >= 4
    assert files_of_table(settings, shard, 1, windows=8, count=1000) == 2
    least = 4096 + 36 * 1000 / LEAST_LOAD
    commit_keys(shard, 2, seed=7, count=1000)
    check_all(settings, shard)
    (path,) = Path(settings.memory_dir).glob("*/0000/*/t2.table")
    assert 3 * least < path.stat().st_size < 4.2 * least
    # A late window of an older bucket says nothing of how it goes on.
    commit_keys(shard, -1, seed=8, count=1000)
    check_all(settings, shard)
    (path,) = Path(settings.memory_dir).glob("*/0000/*/t-1.table")
    assert path.stat().st_size < 1.5 * least


@pytest.mark.slow
def test_a_bucket_that_outgrows_the_one_before_is_seldom_copied(tmp_path: Path) -> None:
    """It gets room for as much again while a few windows have filled it; older ones in the same window do not."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_keys(shard, 0, seed=1, count=100)
    check_all(settings, shard)
    assert files_of_table(settings, shard, 1, windows=8, count=1000) == 3
    check_all(settings, shard)
    window = shard.next_window
    rows = {(bucket, key): (10 * bucket, 0, window) for bucket in (2, 3) for key in random_keys(bucket, 9000)}
    shard.commit(rows)
    check_all(settings, shard)
    sizes = [next(tmp_path.glob(f"memory/*/0000/*/t{bucket}.table")).stat().st_size for bucket in (1, 2, 3)]
    least = 4096 + 36 * 9000 / LEAST_LOAD
    assert sizes[1] < 1.1 * least
    assert 1.6 * least < sizes[2] < 1.8 * least


def test_nothing_leaves_for_room_that_may_be_needed_later(tmp_path: Path) -> None:
    """Where the larger table would not fit beside the others, it is as large as it must be."""
    shard = make_shard(tmp_path, FULL)
    commit_keys(shard, 0, seed=1, count=8000)
    check_all(make_settings(tmp_path, FULL), shard)
    (path,) = tmp_path.glob("memory/*/0000/*/t0.table")
    settings = make_settings(tmp_path, FULL, memory=path.stat().st_size + 100_000, disk=0)
    commit_keys(shard, 1, seed=2, count=1000)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        check(tables, shard, 1, random_keys(2, 1000))
        assert (tables.counters.resident_tables, tables.counters.evicted) == (2, 0)
    check_all(settings, shard)


def edit_header(settings: TableSettings, change: Callable[[bytes], bytes]) -> None:
    (header,) = Path(settings.disk_dir).glob("*/0000/*/header")
    header.write_bytes(change(header.read_bytes()))


def other_boot(monkeypatch: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    monkeypatch.setattr(generation_module, "boot_id", lambda: "after the power cut")
    return settings


def other_history(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    shard.lineage = ((-1, b"born"), (0, b"another first owner"))
    return settings


def history_too_old(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    shard.lineage = ((shard.next_window, b"the hundredth owner since"),)
    return settings


def other_start(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    shard.lineage = ((-1, b"forgotten"),)
    shard.claim(b"next owner")
    return settings


def other_version(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    def as_version_2(data: bytes) -> bytes:
        end = 12 + int.from_bytes(data[10:12], sys.byteorder)
        covered = data[:8] + (2).to_bytes(2, sys.byteorder) + data[10:end]
        return (covered + xxhash.xxh3_64_intdigest(covered).to_bytes(8, sys.byteorder)).ljust(512, b"\0")

    edit_header(settings, as_version_2)
    return settings


def dirty(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    directories = ShardDirectories.of(settings.memory_dir, settings.disk_dir, FOLDER, 0)
    generation = open_generation(directories, shard.view(), settings.layout, lock_timeout_s=1)
    generation.mark_dirty()
    generation.close()
    return settings


def damaged(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    edit_header(settings, lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:])
    return settings


def torn(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    edit_header(settings, lambda data: data[:20])
    return settings


def other_columns(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    shard.layout = replace(settings.layout, has_origin=False)
    return replace(settings, layout=shard.layout)


def lost_disk(_: pytest.MonkeyPatch, settings: TableSettings, shard: Shard) -> TableSettings:
    os.rename(settings.disk_dir, settings.disk_dir + ".gone")  # noqa: PTH104
    return settings


@pytest.mark.slow
@pytest.mark.parametrize(
    "doubt",
    [
        *(other_boot, other_history, history_too_old, other_start, other_version),
        *(dirty, damaged, torn, other_columns, lost_disk),
    ],
    ids=lambda doubt: doubt.__name__,
)
def test_doubtful_tables_are_rebuilt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    doubt: Callable[[pytest.MonkeyPatch, TableSettings, Shard], TableSettings],
) -> None:
    """A key planted into the table, which no piece has, is gone."""
    shard, settings = planted(tmp_path)
    settings = doubt(monkeypatch, settings, shard)
    assert not is_planted(settings, shard)
    check_all(settings, shard)


def test_a_failed_advance_leaves_no_table_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task dies between two buckets: the next one throws the half-advanced tables away."""
    shard, settings = planted(tmp_path)
    commit_buckets(shard, range(2), seed=2)
    real, calls = MappedTable.apply, []

    def dies(*args: object, **kwargs: object) -> int:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MappedTable, "apply", dies)
        with pytest.raises(KeyboardInterrupt):
            ShardTables.open(settings, shard.pieces, shard.view())
    assert not is_planted(settings, shard)
    check_all(settings, shard)


def test_a_stale_view_is_refused(tmp_path: Path) -> None:
    """A zombie of an earlier batch fails and touches nothing."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(2), seed=1)
    stale = shard.view()
    commit_buckets(shard, range(2), seed=2)
    check_all(settings, shard)
    plant(settings, shard)
    with pytest.raises(StaleViewError, match="below 2"):
        ShardTables.open(settings, shard.pieces, stale)
    assert is_planted(settings, shard)
    holder = ShardTables.open(settings, shard.pieces, shard.view())
    with pytest.raises(StaleViewError):
        ShardTables.open(settings, shard.pieces, stale)
    holder.close()


def test_a_stale_view_of_an_earlier_owner_is_refused(tmp_path: Path) -> None:
    """A zombie whose owner was overtaken meanwhile, twice, fails and touches nothing."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(2), seed=1)
    stale = shard.view()
    shard.claim(b"second")
    shard.claim(b"third")
    commit_buckets(shard, range(2), seed=2)
    check_all(settings, shard)
    plant(settings, shard)
    with pytest.raises(StaleViewError):
        ShardTables.open(settings, shard.pieces, stale)
    assert is_planted(settings, shard)


def test_the_next_owner_finds_the_tables(tmp_path: Path) -> None:
    """A restart, or another machine's windows in between: the tables are advanced, not recreated."""
    shard, settings = planted(tmp_path)
    shard.claim(b"second")
    commit_buckets(shard, range(2), seed=2)
    shard.claim(b"third")
    assert is_planted(settings, shard)
    check_all(settings, shard)


def test_a_store_that_was_put_back_judges_by_its_own_windows(tmp_path: Path) -> None:
    """The tables are ahead of it for good: they are recreated; a task of what is lost then finds its windows too."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(2), seed=1)
    backup = shard.copy()
    commit_buckets(shard, range(2), seed=2)
    check_all(settings, shard)
    backup.claim(b"after the restore")
    with ShardTables.open(settings, shard.pieces, backup.view()) as tables:
        check(tables, backup, 0, [key for of, key in shard.model if of == 0])
    check_all(settings, shard)
    check_all(settings, backup)


def test_copies_that_meet_in_one_folder_answer_for_themselves(tmp_path: Path) -> None:
    """As many windows in both, other keys in each; the same after the records of both are as far as the tables."""
    one, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(one, range(2), seed=1)
    other = one.copy()
    one.claim(b"one")
    other.claim(b"other")
    for seed in (2, 4):
        commit_buckets(one, range(2), seed=seed)
        commit_buckets(other, range(2), seed=seed + 1)
        for shard in (one, other, one):
            with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
                for bucket in range(2):
                    check(tables, shard, bucket, [key for of, key in one.model | other.model if of == bucket])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_family_of_copies_answers_as_its_dicts(tmp_path: Path, seed: int) -> None:
    """Copies, restores and owners at random, all over one folder: nobody meets keys of another history."""
    rng = random.Random(seed)
    settings = make_settings(tmp_path, FULL)
    family = [make_shard(tmp_path, FULL)]
    universe = random_keys(seed, 60)
    for step in range(40):
        shard = rng.choice(family)
        what = rng.choice(("copy", "claim", "commit", "commit", "look", "look"))
        if what == "copy" and len(family) < 5:
            # Each goes on with an owner of its own: in one folder the one takes the place of the other.
            family.append(shard.copy())
            family[-1].claim(b"copied %d" % step)
            shard.claim(b"copied from %d" % step)
        elif what == "claim":
            shard.claim(b"claimed %d" % step)
        elif what == "commit":
            keys = [key for key in rng.sample(universe, 5) if (0, key) not in shard.model]
            shard.commit({(0, key): (5, step, shard.next_window) for key in keys})
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            check(tables, shard, 0, universe)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["memory B", "disk"])
@pytest.mark.parametrize("room", [ROOMY, 0], ids=["in memory", "on disk"])
def test_memory_directories_that_share_a_disk_directory_answer_alike(tmp_path: Path, other: str, room: int) -> None:
    """Containers of a host with a /dev/shm each, or one without: tables miss no window that was applied elsewhere."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL, memory=room)
    elsewhere = replace(settings, memory_dir=str(tmp_path / other))
    for window, here in enumerate("ABABBAABA"):
        commit_buckets(shard, range(2), seed=window)
        check_all(settings if here == "A" else elsewhere, shard)


def test_another_memory_directory_has_tables_of_its_own(tmp_path: Path) -> None:
    """They are rebuilt when the shard comes to it, and advanced while the shard stays."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    elsewhere = replace(settings, memory_dir=str(tmp_path / "memory B"))
    commit_buckets(shard, range(2), seed=1)
    for place in (settings, elsewhere, settings):
        assert not is_planted(place, shard)
        plant(place, shard)
        commit_buckets(shard, range(2), seed=2 + shard.next_window)
        assert is_planted(place, shard)
        assert len(list(Path(place.memory_dir).glob("*/0000/1/*.nonce"))) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_a_holder_that_dies_before_it_has_tied_its_memory_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its header names no memory directory, in the first generation and in a later one: the tables are rebuilt."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    elsewhere = replace(settings, memory_dir=str(tmp_path / "memory B"))
    commit_buckets(shard, range(2), seed=1)
    holder = ShardTables.open(settings, shard.pieces, shard.view()) if number == 2 else None

    def dies(_: object) -> None:
        raise KeyboardInterrupt

    for place in (elsewhere, settings):
        with monkeypatch.context() as patch:
            patch.setattr(generation_module.Generation, "tie_memory", dies)
            with pytest.raises(KeyboardInterrupt):
                ShardTables.open(place, shard.pieces, shard.view())
    if holder is not None:
        holder.close()
    commit_buckets(shard, range(2), seed=2)
    for place in (settings, elsewhere, settings):
        check_all(place, shard)


_HOLD = """
import pickle, sys
from bucket_store.tables.manager import ShardTables
settings, pieces, view, digests = pickle.load(open(sys.argv[1], "rb"))
with ShardTables.open(settings, pieces, view) as tables:
    tables.load([0])
    print("held", flush=True)
    sys.stdin.readline()
    print(int(tables.find(0, digests).found.sum()), flush=True)
"""


@pytest.mark.slow
def test_a_frozen_holder_blocks_nobody_and_corrupts_nothing(tmp_path: Path) -> None:
    """Others go on in the next generation; thawed, the holder still answers for its own view; then its files go."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps((settings, shard.pieces, shard.view(), digests_of(random_keys(1000, 20)))))
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(task)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        freeze(holder.pid)
        generations = tmp_path / "disk" / FOLDER / "0000"
        for seed in (2, 3):
            commit_buckets(shard, range(2), seed=seed)
            check_all(settings, shard)
            assert sorted(path.name for path in generations.iterdir()) == ["1", "2"]
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("go on\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "20\n"
        assert holder.wait(10) == 0
    check_all(settings, shard)
    assert [path.name for path in generations.iterdir()] == ["2"]
    assert [path.name for path in (tmp_path / "memory" / FOLDER / "0000").iterdir()] == ["2"]


@pytest.mark.slow
def test_a_killed_holder_leaves_its_lock(tmp_path: Path) -> None:
    """The kernel takes it back at once; its tables are taken over as they are."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps((settings, shard.pieces, shard.view(), None)))
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(task)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        check(tables, shard, 0, random_keys(1000, 20))
        assert tables.counters.hits == 1


_DIE = """
import os, pickle, signal, sys
from bucket_store.tables.manager import ShardTables
from bucket_store.tables.table_file import MappedTable
settings, pieces, view, _ = pickle.load(open(sys.argv[1], "rb"))
apply, calls = MappedTable.apply, []
def dies(*args):
    if calls:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(apply(*args))
    return calls[0]
MappedTable.apply = dies
ShardTables.open(settings, pieces, view)
"""


@pytest.mark.slow
def test_a_task_killed_while_advancing_is_noticed(tmp_path: Path) -> None:
    """One bucket is at the new position, one at the old: both are rebuilt, also for the batch before."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(2), seed=1)
    check_all(settings, shard)
    before = replace(shard, model=dict(shard.model), refs=list(shard.refs))
    commit_buckets(shard, range(2), seed=2)
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps((settings, shard.pieces, shard.view(), None)))
    killed = subprocess.run([sys.executable, "-c", _DIE, str(task)], check=False)
    assert killed.returncode == -signal.SIGKILL
    check_all(settings, before)
    check_all(settings, shard)


@pytest.mark.parametrize("step", ["tables.building", "tables.applying", "tables.applied", "opened", "copied"])
def test_memory_that_is_cleared_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A table that another process removes, at any moment, is made again."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    copy_into, utime, cleared = MappedTable.copy_into, os.utime, []

    def hit(name: str) -> None:
        if name == step:
            cleared.append(name)
            shutil.rmtree(tmp_path / "memory", ignore_errors=True)

    def copied(*arguments: Any) -> bool:
        done = copy_into(*arguments)
        hit("copied")
        return done

    def touched(path: Any, *arguments: Any, **more: Any) -> None:
        if Path(path).suffix == ".table":
            hit("opened")
        utime(path, *arguments, **more)

    monkeypatch.setattr(failpoints, "hit", hit)
    monkeypatch.setattr(MappedTable, "copy_into", copied)
    monkeypatch.setattr(os, "utime", touched)
    for seed in range(4):
        commit_buckets(shard, range(2), seed=seed, count=700)
        check_all(settings, shard)
    assert cleared
    monkeypatch.undo()
    check_all(settings, shard)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        assert tables.counters.resident_tables == 2


@pytest.mark.parametrize("full", ["memory", "memory and disk", "everything"])
def test_a_full_disk_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """From memory to disk, from there to merging; without room for a lock file, merging alone."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    real_fallocate, real_mkdir = os.posix_fallocate, Path.mkdir

    def fallocate(fd: int, offset: int, length: int) -> None:
        place = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        if full != "memory" or "/memory/" in place:
            raise OSError(errno.ENOSPC, "No space left on device", place)
        real_fallocate(fd, offset, length)

    def mkdir(path: Path, *args: object, **kwargs: object) -> None:
        if full == "everything" and "/disk/" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real_mkdir(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    for seed in range(3):
        commit_buckets(shard, range(2), seed=seed)
        check_all(settings, shard)
    on_disk = list(tmp_path.glob("disk/*/0000/1/*.table"))
    assert len(on_disk) == (2 if full == "memory" else 0)
    assert not list(tmp_path.glob("*/*/0000/1/*.building"))


@pytest.mark.parametrize("layout", [FULL, ALL_LIVE], ids=["full", "live"])
def test_a_merged_piece_changes_no_answer(tmp_path: Path, layout: TableLayout) -> None:
    """It costs warm tables nothing, catches up those behind, and builds new ones; it brings no old value back."""
    shard = make_shard(tmp_path, layout)
    warm, behind, cold = (make_settings(tmp_path / name, layout) for name in ("warm", "behind", "cold"))
    for seed in range(4):
        rows = {(seed, key): (10 * seed + 5, seed, seed) for key in random_keys(1, 20)}
        if layout.one_table:
            shard.commit(rows)  # the same keys, renewed in every window
        else:
            commit_buckets(shard, range(2), seed=seed)
        check_all(warm, shard)
        if seed == 1:
            check_all(behind, shard)
    time_buckets = {
        (value[0] // 10 if layout.one_table else bucket, key): value for (bucket, key), value in shard.model.items()
    }
    shard.collate(
        3, {place: value for place, value in time_buckets.items() if value[2] < 3} or {(0, (9, 9)): (1, 1, 0)}
    )
    for settings in (warm, behind, cold):
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            for bucket in {bucket for bucket, _ in shard.model}:
                check(tables, shard, bucket, [key for of, key in shard.model if of == bucket])
            assert (tables.counters.loaded > 0) == (settings is cold)


def test_dead_buckets_leave_the_tables_and_find_nothing(tmp_path: Path) -> None:
    """In one step, without reading anything."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(4), seed=1)
    check_all(settings, shard)
    with ShardTables.open(settings, shard.pieces, shard.view(live_from=2)) as tables:
        assert (tables.counters.expired, tables.counters.resident_tables) == (2, 2)
        assert not tables.find(1, digests_of(random_keys(1001, 20))).found.any()
        assert tables.find(2, digests_of(random_keys(1002, 20))).found.all()
        assert tables.counters.misses == 0


def test_a_dead_table_gives_its_memory_back_whoever_has_it_mapped(tmp_path: Path) -> None:
    """Beside the task, and at once: not when the last process lets go of its mapping."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, (1, 2), seed=1)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        tables.load([1, 2])
    paths = {path.name: path for path in (tmp_path / "memory").rglob("t*.table")}
    # Descriptors hold what a mapping of another process holds.
    dead, alive = (os.open(paths[f"t{bucket}.table"], os.O_RDONLY) for bucket in (1, 2))
    try:
        with ShardTables.open(settings, shard.pieces, shard.view(live_from=2)) as tables:
            assert tables.counters.expired == 1
            assert not paths["t1.table"].exists()
            deadline = time.monotonic() + 60
            while os.fstat(dead).st_blocks and time.monotonic() < deadline:
                time.sleep(0.001)
            assert os.fstat(dead).st_blocks == 0
            assert os.fstat(alive).st_blocks > 0
    finally:
        os.close(dead)
        os.close(alive)


def test_headers_of_dead_pieces_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker would otherwise hold one for every window of its life; those of other shards are their views' affair."""
    piece_reader._headers.clear()
    shards = [make_shard(tmp_path, FULL, shard=number) for number in range(2)]
    settings = make_settings(tmp_path, FULL)
    for seed in range(6):
        for shard in shards:
            commit_buckets(shard, range(2), seed)
    for shard in shards:
        with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
            tables.load([0])
    first, second = ([ref for ref in piece_reader._headers if ref.shard == number] for number in range(2))
    assert len(first) == len(second) == 6
    shards[0].refs = shards[0].refs[-2:]
    ShardTables.open(settings, shards[0].pieces, shards[0].view()).close()
    assert list(piece_reader._headers) == first + second, "there are too few to look at"
    monkeypatch.setattr(piece_reader, "_HEADERS_TO_FORGET", 4)
    ShardTables.open(settings, shards[0].pieces, shards[0].view()).close()
    assert list(piece_reader._headers) == first[-2:] + second
    shards[0].refs = []
    ShardTables.open(settings, shards[0].pieces, shards[0].view()).close()
    assert list(piece_reader._headers) == second


def test_dead_entries_leave_the_one_table_when_it_grows(tmp_path: Path) -> None:
    """So it stays as large as what is alive."""
    shard, settings = make_shard(tmp_path, ALL_LIVE), make_settings(tmp_path, ALL_LIVE)
    for window in range(30):
        point = window * 10 - 21
        with ShardTables.open(settings, shard.pieces, shard.view(expiry_point=point)) as tables:
            size = tables.counters.resident_bytes
        shard.commit({(window, key): (window * 10 + 9, 1, window) for key in random_keys(window, 200)})
    assert size == small_table_bytes(ALL_LIVE)
    with ShardTables.open(settings, shard.pieces, shard.view(expiry_point=279)) as tables:
        check(tables, shard, 0, random_keys(29, 200) + random_keys(27, 200), 279)


@pytest.mark.parametrize("is_next_window", [False, True])
def test_a_longer_period_finds_what_a_shorter_one_left_out(tmp_path: Path, is_next_window: bool) -> None:
    """The verdict is that of a host without tables; a shorter period again needs no new ones."""
    shard, settings = make_shard(tmp_path, ALL_LIVE), make_settings(tmp_path, ALL_LIVE)
    keys = random_keys(1, 300)
    shard.commit({(at // 100, key): (at, 1, 0) for at, key in enumerate(keys)})
    for point in (50, 100):  # the second one is of a restart before the next window
        with ShardTables.open(settings, shard.pieces, shard.view(expiry_point=point)) as tables:
            check(tables, shard, 0, keys, point)
        for path in tmp_path.glob("memory/*/0000/*/t0.table") if point == 50 else ():
            path.unlink()
    if is_next_window:
        shard.commit({(2, (1, 1)): (299, 1, 1)})
    with ShardTables.open(settings, shard.pieces, shard.view(expiry_point=50)) as tables:
        check(tables, shard, 0, keys, 50)
    (table,) = tmp_path.glob("memory/*/0000/*/t0.table")
    built = table.stat().st_ino
    with ShardTables.open(settings, shard.pieces, shard.view(expiry_point=120)) as tables:
        check(tables, shard, 0, keys, 120)
    assert table.stat().st_ino == built


def test_a_generation_whose_maker_was_killed_before_its_lock_is_removed(tmp_path: Path) -> None:
    """An empty folder, as it is between two calls of its maker; one that is being made by a process that lives is
    made again by it."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    left = tmp_path / "disk" / FOLDER / "0000" / ".1-0a0b0c0d"
    left.mkdir(parents=True)
    commit_buckets(shard, range(1), seed=1)
    check_all(settings, shard)
    assert not left.exists()


def test_what_a_dead_builder_left_is_removed(tmp_path: Path) -> None:
    """A half-made table, and the copy of one that was being moved down."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    check_all(settings, shard)
    (table,) = tmp_path.glob("memory/*/0000/1/t0.table")
    copy = tmp_path / "disk" / FOLDER / "0000" / "1" / "t0.table"
    copy.write_bytes(table.read_bytes())
    table.with_name("t0.00000000.building").write_bytes(b"half")
    commit_buckets(shard, range(1), seed=2)
    check_all(settings, shard)
    assert [path.name for path in table.parent.glob("t*")] == ["t0.table"]
    assert not copy.exists()


def test_missing_buckets_are_built_together(tmp_path: Path) -> None:
    """`load` needs no look-up, and asks nothing of buckets that nobody has; the first look-up counts as a miss."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    for seed in range(3):
        commit_buckets(shard, range(6), seed=seed)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        tables.load(range(8))
        assert (tables.counters.loaded, tables.counters.resident_tables) == (6, 6)
        for bucket in range(6):
            check(tables, shard, bucket, random_keys(1000 + bucket, 20) + random_keys(2000 + bucket, 20))
        assert (tables.counters.hits, tables.counters.misses) == (0, 6)
        check(tables, shard, 0, random_keys(1000, 20))
        assert (tables.counters.hits, tables.counters.misses) == (1, 6)


def test_only_tables_that_fit_are_built_together(tmp_path: Path) -> None:
    """None is built that would push out another one of the same batch."""
    shard = make_shard(tmp_path, FULL)
    settings = make_settings(tmp_path, FULL, memory=3 * small_table_bytes(FULL), disk=0)
    commit_buckets(shard, range(6), seed=1)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        tables.load(range(6))
        assert (tables.counters.loaded, tables.counters.evicted) == (3, 0)
        for bucket in range(6):
            check(tables, shard, bucket, random_keys(1000 + bucket, 20))
        assert (tables.counters.loaded, tables.counters.hits, tables.counters.misses) == (6, 0, 6)


def test_a_damaged_piece_stops_the_task(tmp_path: Path) -> None:
    """With the file and the place; never a key less."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    check_all(settings, shard)
    commit_buckets(shard, range(1), seed=2)
    path = tmp_path / "store" / shard.refs[1].file
    data = bytearray(path.read_bytes())
    data[shard.refs[1].offset + 200] ^= 4
    path.write_bytes(bytes(data))
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            check_all(settings, shard)
        assert caught.value.file == shard.refs[1].file
        assert caught.value.offset >= shard.refs[1].offset


def test_another_piece_in_the_place_of_the_named_one_is_found(tmp_path: Path) -> None:
    """A reference names its piece by checksum, store and shard."""
    shard = make_shard(tmp_path, FULL)
    settings = make_settings(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    shard.refs[0] = replace(shard.refs[0], checksum=shard.refs[0].checksum ^ 1)
    with pytest.raises(CorruptionError, match="identity of piece"):
        check_all(settings, shard)


def test_an_empty_question_costs_nothing(tmp_path: Path) -> None:
    """No digests, or a store without pieces."""
    shard, settings = make_shard(tmp_path, FULL), make_settings(tmp_path, FULL)
    with ShardTables.open(settings, shard.pieces, shard.view()) as tables:
        assert len(tables.find(0, digests_of([])).found) == 0
        assert not tables.find(0, digests_of([(1, 1)])).found.any()
        assert tables.counters.misses == 0


def test_a_view_travels_small(tmp_path: Path) -> None:
    """Thousands of pieces in few bytes each, and the same on arrival."""
    shard = make_shard(tmp_path, FULL)
    commit_buckets(shard, range(1), seed=1)
    ref = shard.refs[0]
    refs = tuple(
        replace(ref, offset=ref.offset + 9_000_000 * at, first_window=at, last_window=at) for at in range(2000)
    )
    view = replace(shard.view(expiry_point=1.5, live_from=-3), pieces=refs)
    packed = pickle.dumps(view)
    assert pickle.loads(packed) == view
    assert len(packed) < 120 * len(refs)
    empty: ShardView = replace(view, pieces=())
    assert pickle.loads(pickle.dumps(empty)) == empty


def test_a_table_that_goes_meanwhile_is_in_use(tmp_path: Path) -> None:
    """A command that looks beside a job meets names of files that are gone when it asks for them."""
    directories = ShardDirectories(tmp_path / "memory", tmp_path / "disk")
    (directories.memory / "1").mkdir(parents=True)
    (directories.memory / "1" / "t5.table").symlink_to(tmp_path / "gone")
    before_us = time.time_ns() // 1000
    used_us = last_used_us(directories)
    assert used_us is not None
    assert used_us >= before_us


def test_folders_that_go_meanwhile_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders of generations too, after their names were read."""
    directories = ShardDirectories(tmp_path / "memory", tmp_path / "disk")
    for number in "123":
        (directories.memory / number).mkdir(parents=True)
        (directories.memory / number / "t5.table").touch()
    asked: list[Path] = []

    def removing(path: Path) -> int:
        asked.append(path)
        shutil.rmtree(directories.memory)
        return 0

    monkeypatch.setattr(generation_module, "_modified_us", removing)
    before_us = time.time_ns() // 1000
    assert (last_used_us(directories) or 0) >= before_us
    assert len(asked) == 1
