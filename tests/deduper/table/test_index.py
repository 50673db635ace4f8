"""The index against a plain dictionary: files come, go and come back; every answer is for the files at hand alone."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bucket_store.errors import CorruptionError
from bucket_store.pieces.piece import Entries, PieceRef
from deduper.table.columns import KeyColumns, key_columns
from deduper.table.formats.protocol import DataFile
from deduper.table.index import exact as indexing
from deduper.table.index import pieces as lookup
from deduper.table.index import pieces as mapping
from deduper.table.index import pieces as slicing
from deduper.table.index import reading
from deduper.table.index.exact import PieceIndex
from deduper.table.index.keys import FileKeys, SortedKeys, buckets_of, in_order, layers, row_keys
from deduper.table.index.pieces import (
    MappedPieces,
    bounds,
    by_digests,
    cuts,
    overlap,
    overlaps,
    slices_for,
    to_merge,
    within,
)
from tests.deduper.table.scene import EPOCH, ROWS, dying

DAYS = 4


@pytest.fixture(params=["large", "small"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of slices: as they are, or so small that a few keys are spread over them, and they are merged."""
    if request.param == "small":
        make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes with which the keys of a few files make several slices, and those of one file several pieces."""
    monkeypatch.setattr(reading, "_ROWS_OF_KEYS", 3)
    monkeypatch.setattr(indexing, "_PIECE_ROWS", 8)
    monkeypatch.setattr(indexing, "_MOST_MERGED", 16)
    monkeypatch.setattr(indexing, "_MOST_YOUNG", 12)
    monkeypatch.setattr(slicing, "_LEAST_ROWS", 16)
    monkeypatch.setattr(slicing, "_SLICES", 8)
    monkeypatch.setattr(lookup, "_LEAST_SHARED", 0)  # in threads


@pytest.fixture(params=["partition", "global"])
def columns(request: pytest.FixtureRequest) -> KeyColumns:
    """Key `k`, partitioned by `d`, in both scopes."""
    return key_columns(ROWS, ["k"], ["d"], request.param)


class Files:
    """A table's folder: files of keys, each of one day."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keys: dict[DataFile, list[int]] = {}

    def add(self, keys: list[int], day: int) -> DataFile:
        """A new file."""
        path = f"d={EPOCH + timedelta(days=day)}/{len(self.keys)}.parquet"
        (self.root / path).parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(pa.table({"k": pa.array(keys, pa.int64())}), self.root / path)
        file = DataFile(path, (self.root / path).stat().st_size, len(self.keys), (day,))
        self.keys[file] = keys
        return file


def look_up(
    index: PieceIndex, files: list[DataFile], columns: KeyColumns, asked: list[tuple[int, int]]
) -> list[list[str]]:
    """The paths of the files with each (key, day), all of them."""
    days = pa.array([day for _, day in asked], pa.int32()).cast(pa.date32())
    arrays = {"k": pa.array([key for key, _ in asked], pa.int64()), "d": days}
    order, keys = in_order(*row_keys([arrays[column.name] for column in columns.digested], columns, index.state.salt))
    version = index.version(Path(), files)
    found: list[list[str]] = [[] for _ in asked]
    for place, number in zip(*version.find(keys, {}), strict=True):
        found[order[place]].append(version.files[int(number)].path)
    return found


def check(index: PieceIndex, files: Files, live: list[DataFile], columns: KeyColumns, keys: int) -> None:
    """Every key is found in each file at hand that has it, and in no other."""
    holders: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for file in live:
        for key in files.keys[file]:
            day = file.partition[0] if columns.scope == "partition" else 0
            assert isinstance(day, int)
            holders[key, day].add(file.path)
    asked = [(key, day) for key in range(keys) for day in range(DAYS if columns.scope == "partition" else 1)]
    for one, paths in zip(asked, look_up(index, live, columns, asked), strict=True):
        assert len(paths) == len(set(paths))
        assert set(paths) == holders[one], f"{one} is believed to be in {paths}"


@pytest.mark.slow
@pytest.mark.night(but=["small-global-0", "small-partition-1", "large-global-2"])
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("seed", range(4))
def test_random_files_against_a_dictionary(seed: int, columns: KeyColumns, tmp_path: Path) -> None:
    """Commits, foreign ones with keys again, removals, restores, deaths of the index at each step, reopenings."""
    rng = random.Random(seed)
    files = Files(tmp_path / "table")
    live: list[DataFile] = []
    versions: list[list[DataFile]] = [[]]
    for _ in range(30):
        kind = rng.random()
        if kind < 0.6 or not live:
            for _ in range(rng.randint(1, 3)):
                live = [*live, files.add(rng.choices(range(60), k=rng.randint(1, 15)), rng.randrange(DAYS))]
        elif kind < 0.8:
            live = rng.sample(live, rng.randint(0, len(live) - 1))
        else:
            live = rng.choice(versions)
        versions.append(live)
        step = rng.choice(["never", "index.piece", "index.state", "index.slice", "index.merged"])
        with dying(step, rng.randint(1, 3)):
            PieceIndex(tmp_path / "index", columns).catch_up(tmp_path / "table", live)
        index = PieceIndex(tmp_path / "index", columns)
        assert index.began_anew is None
        index.catch_up(tmp_path / "table", live)
        check(index, files, live, columns, 60)
        named = {piece.file for piece in index.state.pieces}
        assert named <= {f"pieces/{path.name}" for path in (tmp_path / "index/pieces").iterdir()}


def test_a_key_in_two_files_stays_when_one_goes(columns: KeyColumns, tmp_path: Path) -> None:
    """Foreign commits may have written it twice, or a compaction has moved it."""
    files = Files(tmp_path / "table")
    one, two = files.add([1, 2], 0), files.add([2, 3, 3], 0)
    index = PieceIndex(tmp_path / "index", columns)
    index.catch_up(files.root, [one, two])
    assert look_up(index, [one, two], columns, [(2, 0)]) == [[one.path, two.path]]
    assert look_up(index, [two], columns, [(1, 0), (2, 0), (3, 0)]) == [[], [two.path], [two.path]]
    assert look_up(index, [], columns, [(1, 0), (2, 0)]) == [[], []]


@pytest.mark.parametrize("rows", [7, 8, 9, 40])
def test_the_keys_of_a_file_of_any_size_are_read_in_steps(
    rows: int, columns: KeyColumns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more of them are in memory at once than a step has; a key that a file has twice counts once."""
    make_small(monkeypatch)
    files = Files(tmp_path / "table")
    live = [files.add([*range(rows), *range(0, rows, 3)], 0), files.add([1, 2, 50], 0), files.add([], 1)]
    index = PieceIndex(tmp_path / "index", columns)
    index.catch_up(files.root, live)
    check(index, files, live, columns, 60)
    steps = [*reading.key_steps(files.root, [*enumerate(live)], columns, index.state.salt, 8)]
    assert max(step.count for step in steps) < 8 + max(8, 3)
    assert sum(step.count for step in steps) == sum(map(len, files.keys.values()))


def test_rows_are_sorted_whatever_the_buckets_are() -> None:
    """Of few values, of many far apart, of one; where half a digest decides nothing, or all; equal keys by row."""
    rng = np.random.default_rng(1)
    for buckets, halves in itertools.product((3, 1 << 40, 1, 1 << 63), ((50, 3), (1 << 63, 1 << 63), (50, 1))):
        bucket = rng.integers(-buckets // 2, buckets - buckets // 2, 3000)
        hi, lo = (rng.integers(0, half, 3000).astype(np.uint64) for half in halves)
        order, found = in_order(bucket, hi, lo)
        expected = np.lexsort((lo, hi, bucket))
        assert order.tolist() == expected.tolist()
        assert found.bucket.tolist() == bucket[expected].tolist()
        assert found.digests.T.tolist() == [hi[expected].tolist(), lo[expected].tolist()]


def test_each_layer_has_a_key_once() -> None:
    """The first with its file of the lowest number; a file twice says nothing more."""
    bucket, one = np.zeros(6, np.int64), np.ones(6, np.uint64)
    keys = FileKeys(bucket, np.array([5, 5, 5, 5, 9, 5], np.uint64), one, np.array([3, 1, 3, 2, 1, 1], np.uint32))
    found = [
        (layer.digests[:, 0].tolist(), (layer.window if layer.window is not None else one).tolist())
        for layer in layers(keys)
    ]
    assert found == [([5, 9], [1, 1]), ([5], [2]), ([5], [3])]
    assert list(layers(FileKeys(bucket[:0], one[:0], one[:0], np.zeros(0, np.uint32)))) == []


def test_dates_and_numbers_have_buckets_of_their_own() -> None:
    """The exact value, whatever its sign."""
    columns = key_columns(
        pa.schema([("k", pa.int8()), ("p", pa.int64()), ("d", pa.date32())]), ["k"], ["p", "d"], "partition"
    )
    by_number, by_day = columns.partition_by
    assert buckets_of(pa.array([-(2**63), -1, 0, None, 2**63 - 1]), by_number).tolist()[:3] == [-(2**63), -1, 0]
    assert buckets_of(pa.array([date(1969, 12, 31), date(1970, 1, 2)]), by_day).tolist() == [-1, 1]


def test_pieces_are_merged_as_they_grow() -> None:
    """Young small ones with each other; an old large one when half as much has come beside it."""
    assert to_merge([], 99) == to_merge([5], 99) == to_merge([1] * 7, 99) == 0
    assert to_merge([1] * 8, 99) == to_merge([1] * 8, 8) == 8
    assert to_merge([1] * 8, 7) == 0
    assert to_merge([1000, *[1] * 8], 9999) == 8
    assert to_merge([16, *[1] * 8], 99) == 9
    assert to_merge([17, *[1] * 8], 99) == 8
    sizes: list[int] = []
    for _ in range(1000):
        sizes.append(10)
        while count := to_merge(sizes, 1 << 20):
            sizes[-count:] = [sum(sizes[-count:])]
    assert len(sizes) < 25


def test_pieces_of_files_that_are_gone_are_dropped(columns: KeyColumns, tmp_path: Path) -> None:
    """As those of rewritten files: an index does not grow with them. A file that comes back is read again."""
    files = Files(tmp_path / "table")
    stays, old = files.add([100], 0), files.add(list(range(50)), 1)
    index = PieceIndex(tmp_path / "index", columns)
    index.catch_up(files.root, [stays])
    for turn in range(5):
        new = files.add(list(range(50 + turn)), 1)
        index.catch_up(files.root, [stays, new])
        assert [ref.entries for ref in index.state.pieces] == [1, 50 + turn]
        assert len(list((tmp_path / "index/pieces").iterdir())) == 2
        check(index, files, [stays, new], columns, 101)
    assert index.catch_up(files.root, [stays, old]) == 1
    check(index, files, [stays, old], columns, 101)
    both = files.add([1], 1)
    index.catch_up(files.root, [stays, old, both])
    index.catch_up(files.root, [both])
    assert index.catch_up(files.root, [stays, old, both]) == 2
    check(index, files, [stays, old, both], columns, 101)
    PieceIndex(tmp_path / "index", columns)
    assert len(list((tmp_path / "index/pieces").iterdir())) == len(index.state.pieces)


def test_a_key_takes_twenty_bytes(columns: KeyColumns, tmp_path: Path) -> None:
    """On disk, and mapped as it is; beside that, the header of each piece and bucket."""
    files = Files(tmp_path / "table")
    live = [files.add(list(range(20_000)), 0)]
    PieceIndex(tmp_path / "index", columns).catch_up(files.root, live)
    size = sum(path.stat().st_size for path in (tmp_path / "index/pieces").iterdir())
    assert 20 * 20_000 <= size <= 20 * 20_000 + 200


def test_slices_are_nodes_of_a_tree() -> None:
    """Those of one depth have all digests once; cuts are where the slices that have a digest change."""
    assert bounds(slicing.YOUNG) == bounds(1) == (0, (1 << 64) - 1)
    assert [bounds(number) for number in (2, 3)] == [(0, (1 << 63) - 1), (1 << 63, (1 << 64) - 1)]
    assert cuts([]) == cuts([0, 1]) == [0]
    assert cuts([0, 2, 6]) == [0, 1 << 63, (1 << 63) + (1 << 62)]
    for one in range(32):
        for other in range(32):
            (low, high), (least, greatest) = bounds(one), bounds(other)
            assert overlap(one, other) == (low <= greatest and least <= high)
    edge = slicing._LEAST_ROWS
    assert [len(slices_for(keys)) for keys in (0, 1, edge, edge + 1, 2 * edge, 2 * edge + 1)] == [1, 1, 1, 2, 2, 4]
    assert [len(slices_for(keys)) for keys in (10**8, 10**9, 4 * 10**9)] == [32, 64, 256]
    assert within(2, slices_for(4 * edge)) == [4, 5]
    assert within(9, slices_for(2)) == [9]


def test_pieces_are_grouped_by_digests() -> None:
    """A slice with what is within it, from old to young."""
    refs = [SimpleNamespace(shard=number) for number in (5, 4, 9, 3, 5, 4, 6)]
    groups = by_digests(refs)  # type: ignore[arg-type]
    assert [[ref.shard for ref in group] for group in groups] == [[3, 6], [4, 9, 4], [5, 5]]


@pytest.mark.parametrize(("step", "nth"), [("index.slice", 1), ("index.slice", 3), ("index.merged", 1)])
def test_a_death_while_keys_are_spread(step: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces before count as before; the next write spreads them again, and deletes what the dead one left."""
    make_small(monkeypatch)
    columns = key_columns(ROWS, ["k"], ["d"], "global")
    files = Files(tmp_path / "table")
    live = [files.add(list(range(9 * place, 9 * place + 10)), 0) for place in range(9)]
    with dying(step, nth) as died:
        PieceIndex(tmp_path / "index", columns).catch_up(files.root, live)
    assert died
    index = PieceIndex(tmp_path / "index", columns)
    before = [piece.shard for piece in index.state.pieces]
    assert set(before) == {slicing.YOUNG}
    assert len(list((tmp_path / "index/pieces").iterdir())) == len(before)
    check(index, files, live, columns, 99)
    assert index.catch_up(files.root, live) == 0
    after = [piece.shard for piece in index.state.pieces]
    assert set(after) == set(slices_for(90))
    named = {piece.file for piece in index.state.pieces}
    assert {f"pieces/{path.name}" for path in (tmp_path / "index/pieces").iterdir()} == named
    check(index, files, live, columns, 99)


@pytest.mark.slow
def test_no_load_waits_for_a_rewriting_of_the_whole_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load writes a bounded number of keys; in all each key is written a few times, and has few pieces to look in."""
    make_small(monkeypatch)
    monkeypatch.setattr(slicing, "_SLICES", 16)
    monkeypatch.setattr(indexing, "_MOST_YOUNG", 200)
    monkeypatch.setattr(indexing, "_MOST_MERGED", 200)
    index = PieceIndex(tmp_path / "index", key_columns(ROWS, ["k"], [], "global"))
    written: list[int] = []
    place = index._place

    def counted(entries: Entries, number: int = slicing.YOUNG) -> PieceRef:
        written.append(len(entries.digests))
        return place(entries, number)

    monkeypatch.setattr(index, "_place", counted)
    keys = np.arange(4_000, dtype=np.uint64)
    digests = np.stack([keys * np.uint64(0x9E3779B97F4A7C15), keys + np.uint64(1)], axis=1)
    most = 0
    live: list[DataFile] = []
    for begin in range(0, len(digests), 20):
        part = digests[begin : begin + 20]
        part = part[np.argsort(part[:, 0])]
        live.append(DataFile(f"{begin}.parquet", 1, begin, ()))
        before = sum(written)
        keys_of_file = SortedKeys(np.zeros(20, np.int64), part)
        index._enter(live[-1:], [keys_of_file.entries(np.full(20, len(live) - 1, np.uint32))])
        index.catch_up(tmp_path, live)
        most = max(most, sum(written) - before)
    pieces = index.state.pieces
    assert sum(piece.entries for piece in pieces) == len(digests)
    edges = cuts(piece.shard for piece in pieces)
    asked = [sum(overlaps(piece.shard, edge, edge) for piece in pieces) for edge in edges]
    assert len(edges) >= 16
    assert most < len(digests) / 5
    assert sum(written) < 8 * len(digests)
    assert max(asked) < 20


def test_a_process_checks_a_piece_once_until_its_file_changes(tmp_path: Path) -> None:
    """The same piece for all who ask; one that was changed or cut since is found damaged, one that is gone is gone."""
    columns = key_columns(ROWS, ["k"], ["d"], "global")
    files = Files(tmp_path / "table")
    index = PieceIndex(tmp_path / "index", columns)
    live = [files.add(list(range(100)), 0)]
    index.catch_up(files.root, live)
    (ref,) = index.state.pieces
    pieces = MappedPieces()
    one = pieces.piece(tmp_path / "index", ref)
    entries = one.bucket(0)
    assert pieces.piece(tmp_path / "index", ref) is one
    assert one.bucket(0) is entries
    path = tmp_path / "index" / ref.file
    whole = path.read_bytes()
    path.unlink()  # a file that is mapped must not be cut
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    changed = pieces.piece(tmp_path / "index", ref)
    assert changed is not one
    with pytest.raises(CorruptionError, match="block checksum"):
        changed.bucket(0)
    path.unlink()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptionError):
        pieces.piece(tmp_path / "index", ref)
    path.write_bytes(whole)
    again = pieces.piece(tmp_path / "index", ref)
    pieces.keep(tmp_path / "index", [])
    assert pieces.piece(tmp_path / "index", ref) is not again
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pieces.piece(tmp_path / "index", ref)


def test_pieces_of_other_indexes_are_left_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a file open; those of the index that was asked last stay."""
    monkeypatch.setattr(mapping, "_MOST_KEPT", 2)
    columns = key_columns(ROWS, ["k"], ["d"], "global")
    files = Files(tmp_path / "table")
    live = [files.add([1], 0)]
    pieces = MappedPieces()
    found = {}
    for name in ("a", "b", "c"):
        index = PieceIndex(tmp_path / name, columns)
        index.catch_up(files.root, live)
        (ref,) = index.state.pieces
        found[name] = ref, pieces.piece(tmp_path / name, ref)
    assert [pieces.piece(tmp_path / name, found[name][0]) is found[name][1] for name in "cba"] == [True, True, False]
