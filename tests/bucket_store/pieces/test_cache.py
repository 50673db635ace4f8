"""Copies of remote pieces on a host: they spare reads, and no damage of theirs reaches an answer."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from bucket_store.errors import CorruptionError
from bucket_store.pieces import cache as piece_cache
from bucket_store.pieces import reader as piece_reader
from bucket_store.pieces.cache import PieceCache
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.pieces.reader import PieceReader
from bucket_store.pieces.store import Located, append_piece
from bucket_store.places.place import Place
from tests.bucket_store.places.memory_names import MemoryNames

STORE_ID = bytes(16)


@dataclass
class Remote:
    """A store elsewhere that counts what is read of it, and how many reads are under way at once."""

    names: MemoryNames = field(default_factory=MemoryNames)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    meeting: threading.Barrier | None = None
    """Where each read waits until so many are under way."""

    def __post_init__(self) -> None:
        outer, lock = self, threading.Lock()

        class Counted(PieceFiles):
            def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
                with lock:
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                    outer.reads.append((piece.file, start, piece.length if length is None else length))
                if outer.meeting is not None:
                    outer.meeting.wait()
                try:
                    return super().read(piece, start, length)
                finally:
                    with lock:
                        outer.at_once -= 1

        self.pieces = Counted(Place(self.names, PurePosixPath("/store")))

    def append(self, window: int, *, keys: int = 4, buckets: int = 2, cache: PieceCache | None = None) -> PieceRef:
        """A piece with so many keys in each of its buckets."""
        digests = np.zeros((keys * buckets, 2), np.uint64)
        digests[:, 0] = np.tile(np.arange(1, keys + 1), buckets)
        digests[:, 1] = window + 1
        entries = Entries(np.arange(buckets), np.arange(buckets + 1) * keys, digests)
        windows = {"first_window": window, "last_window": window, "epoch": 1, "attempt": 0}
        return append_piece(self.pieces, entries, store_id=STORE_ID, shard=0, cache=cache, **windows)

    def reader(self, cache: PieceCache | None) -> PieceReader:
        """One that remembers no header."""
        piece_reader._headers.clear()
        return PieceReader(self.pieces, STORE_ID.hex(), cache)


@pytest.fixture
def cache(tmp_path: Path) -> PieceCache:
    """Of one store."""
    return PieceCache(tmp_path / "pieces" / "store", 1 << 20)


def everything(reader: PieceReader, refs: list[PieceRef]) -> list[tuple[int, int, bytes]]:
    """(window, bucket, digests) of all blocks."""
    found = reader.read_all(reader.all_parts(refs))
    return [(part.ref.first_window, entries.bucket, entries.digests.tobytes()) for part, entries in found]


def copies(cache: PieceCache) -> list[Path]:
    """Every file of the cache."""
    return [path for path in cache.folder.rglob("*") if path.is_file()]


def test_an_appended_piece_is_not_read_over_the_network(cache: PieceCache) -> None:
    """Its copy was left before the receipt."""
    remote = Remote()
    ref = remote.append(1, cache=cache)
    reader = remote.reader(cache)
    assert len(everything(reader, [ref])) == 2
    assert remote.reads == []
    assert (reader.counts.cache_hits, reader.counts.cache_misses, reader.counts.fetched_bytes) == (3, 0, 0)


def test_a_small_piece_is_read_once_and_whole(cache: PieceCache) -> None:
    """Header and blocks are one journey; the next reader has the copy."""
    remote = Remote()
    ref = remote.append(1)
    reader = remote.reader(cache)
    first = everything(reader, [ref])
    assert remote.reads == [(ref.file, 0, ref.length)]
    assert (reader.counts.cache_misses, reader.counts.fetched_bytes) == (1, ref.length)
    assert everything(remote.reader(cache), [ref]) == first
    assert len(remote.reads) == 1


def test_of_a_large_piece_only_the_block_is_read(cache: PieceCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of many costs its own bytes."""
    monkeypatch.setattr(piece_reader, "_WHOLE_BYTES", 0)
    remote = Remote()
    ref = remote.append(1, keys=100, buckets=8)
    reader = remote.reader(cache)
    (part,) = reader.parts([ref], 3)
    reader.read(part)
    assert [length for _, _, length in remote.reads] == [min(4096, ref.length), 1600]
    assert copies(cache) == []


def test_many_pieces_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers too, without a cache."""
    monkeypatch.setattr(piece_reader, "_REMOTE_READ_AHEAD", 8)
    remote = Remote(meeting=threading.Barrier(4, timeout=60))  # broken by fewer, however late their threads begin
    refs = [remote.append(window) for window in range(16)]
    assert len(everything(remote.reader(None), refs)) == 32
    assert len(remote.reads) == 16
    assert 4 <= remote.most_at_once <= 8


@pytest.mark.parametrize("harm", ["torn", "longer", "empty", "exchanged", "a folder"])
def test_a_wrong_copy_is_dropped_and_the_store_read(cache: PieceCache, harm: str) -> None:
    """Whatever has happened to it, the answer is the store's, and the next copy is right."""
    remote = Remote()
    ref, other = remote.append(1, cache=cache), remote.append(2, cache=cache)
    expected = everything(remote.reader(None), [ref])
    path = cache._path(ref)
    whole = path.read_bytes()
    if harm == "a folder":
        path.unlink()
        path.mkdir()
    else:
        spoiled = {"torn": whole[:-1], "longer": whole + b"x", "empty": b""}
        path.write_bytes(spoiled.get(harm, cache._path(other).read_bytes()))
    assert everything(remote.reader(cache), [ref]) == expected


@pytest.mark.slow
def test_every_flipped_byte_of_a_copy_is_found(cache: PieceCache) -> None:
    """In the header (another version too) and in the blocks."""
    remote = Remote()
    ref = remote.append(1, cache=cache)
    expected = everything(remote.reader(None), [ref])
    path = cache._path(ref)
    whole = path.read_bytes()
    for at in range(len(whole)):
        cache.add(ref, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert everything(remote.reader(cache), [ref]) == expected, at


def test_damage_in_the_store_stays_an_error(cache: PieceCache) -> None:
    """A copy of it that a reader has left is no better."""
    remote = Remote()
    ref = remote.append(1)
    path = PurePosixPath("/store") / ref.file
    data, modified = remote.names.files[path]
    remote.names.files[path] = (data[:-1] + bytes([data[-1] ^ 1]), modified)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            everything(remote.reader(cache), [ref])


def test_the_least_recently_read_copies_go(tmp_path: Path) -> None:
    """The bytes stay within the limit and a 16th."""
    remote = Remote()
    one = remote.append(0)
    cache = PieceCache(tmp_path / "pieces" / "store", 40 * one.length)
    refs = [remote.append(window, cache=cache) for window in range(1, 60)]
    for number, ref in enumerate(refs[:20]):
        if cache._path(ref).exists():
            os.utime(cache._path(ref), (number, number))
    assert cache.read(refs[40], 0, 8) is not None
    refs += [remote.append(window, cache=cache) for window in range(60, 90)]
    there = [ref for ref in refs if cache._path(ref).exists()]
    assert sum(path.stat().st_size for path in copies(cache)) <= cache.limit_bytes * 17 // 16
    assert refs[-1] in there
    assert not set(refs[:20]) & set(there)


def test_copies_of_pieces_that_died_go(cache: PieceCache) -> None:
    """But not young ones, whose window may not be committed."""
    remote = Remote()
    dead, live, young = (remote.append(window, cache=cache) for window in range(3))
    for ref in (dead, live):
        os.utime(cache._path(ref), (1, 1))
    cache.keep_live(0, [live])
    assert [cache._path(ref).exists() for ref in (dead, live, young)] == [False, True, True]


def test_what_an_unused_store_has_left_goes(cache: PieceCache, tmp_path: Path) -> None:
    """After a week, by the next process of another store that counts."""
    old, young = (tmp_path / "pieces" / name for name in ("old", "young"))
    for folder in (old, young):
        (folder / "0000").mkdir(parents=True)
    os.utime(old, (1, 1))
    piece_cache._added.clear()
    Remote().append(1, cache=cache)
    assert (old.exists(), young.exists()) == (False, True)


def test_without_room_there_is_no_copy(cache: PieceCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append never fails for it, and leaves nothing half."""
    remote = Remote()
    remote.append(0, cache=PieceCache(cache.folder, 1))
    monkeypatch.setattr(Path, "rename", lambda *_: Path("/no such file").stat())
    ref = remote.append(1, cache=cache)
    assert copies(cache) == []
    assert cache.read(ref, 0, 1) is None
