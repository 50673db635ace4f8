"""The contract of every backend, and what each adds."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.errors import CorruptionError, SpaceError, StoreError
from bucket_store.pieces import rocksdb_backend
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.rocksdb_backend import CHUNK_BYTES, RocksPieces
from bucket_store.pieces.store import PieceLocation, PieceStore, StoredPiece
from tests.s3_server import new_prefix


@pytest.fixture(params=["file", "rocksdb", "objects", pytest.param("s3", marks=pytest.mark.services)])
def pieces(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PieceStore]:
    url = f"{request.param}:{tmp_path / 'store'}"
    store = open_backend(new_prefix(request.getfixturevalue("s3_bucket")) if request.param == "s3" else url)
    yield store
    store.close()


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[PieceStore]:
    """The backend whose files hold many pieces each."""
    store = open_backend(f"rocksdb:{tmp_path / 'store'}")
    yield store
    store.close()


def listed(pieces: PieceStore) -> list[str]:
    return sorted(piece.name for piece in pieces.pieces())


def test_bytes_come_back_whole_and_by_range(pieces: PieceStore) -> None:
    """Any range, over chunk borders too."""
    data = os.urandom(2 * CHUNK_BYTES + 1000)
    location = pieces.append(shard=1, epoch=2, name="a", data=memoryview(data))
    assert (location.name, location.length) == ("a", len(data))
    assert pieces.read(location) == data
    for start, length in (
        (0, 1),
        (10, 0),
        (CHUNK_BYTES - 1, 2),
        (CHUNK_BYTES, 1),
        (5, 2 * CHUNK_BYTES),
        (len(data), 0),
    ):
        assert pieces.read(location, start, length) == data[start : start + length]
    assert pieces.read(location, CHUNK_BYTES + 3) == data[CHUNK_BYTES + 3 :]


def test_pieces_of_many_windows_share_a_file(databases: PieceStore) -> None:
    """Of one shard and epoch; another epoch or shard has its own."""
    first, second = (databases.append(shard=0, epoch=1, name=name, data=name.encode() * 99) for name in ("a", "b"))
    other_epoch = databases.append(shard=0, epoch=2, name="c", data=b"c")
    other_shard = databases.append(shard=1, epoch=1, name="d", data=b"d")
    assert first.file == second.file
    assert len({first.file, other_epoch.file, other_shard.file}) == 3
    assert databases.read(first) == b"a" * 99
    assert databases.read(second) == b"b" * 99


def test_listing_shows_everything_that_lies_there(pieces: PieceStore) -> None:
    """With shard, epoch, place and size, so that gc and verify need nothing else."""
    assert list(pieces.pieces()) == []
    for shard, epoch, name in ((0, 1, "a"), (0, 1, "b"), (3, 2, "c")):
        location = pieces.append(shard=shard, epoch=epoch, name=name, data=b"xyz" * 50)
        (stored,) = [piece for piece in pieces.pieces() if piece.name == name]
        assert (stored.shard, stored.epoch, stored.length) == (shard, epoch, 150)
        assert (stored.file, stored.offset) == (location.file, location.offset)
        assert pieces.read(stored) == b"xyz" * 50
    assert listed(pieces) == ["a", "b", "c"]


def test_damage_to_one_piece_does_not_delete_the_others(databases: PieceStore, tmp_path: Path) -> None:
    """A file that a record names stays, whatever a look into it shows: its list of pieces may be what is damaged."""
    kept = [databases.append(shard=0, epoch=1, name=name, data=name.encode() * 5000) for name in "abc"]
    doomed = databases.append(shard=0, epoch=1, name="d", data=b"d")
    path = tmp_path / "store" / kept[0].file
    # The table of the first piece: a listing ends there as if it were the last one.
    damaged = min(path.glob("*.sst"))
    data = bytearray(damaged.read_bytes())
    data[10] ^= 1
    damaged.write_bytes(data)
    with contextlib.suppress(CorruptionError):
        databases.delete([doomed], keep={kept[0].file})
    assert path.exists()
    assert databases.read(kept[2]) == b"c" * 5000
    with contextlib.suppress(CorruptionError):
        databases.delete([], keep={kept[0].file})
    assert databases.read(kept[1]) == b"b" * 5000


def test_a_database_that_cannot_be_listed_to_its_end_says_so(tmp_path: Path) -> None:
    """RocksDB's iterators end at damage as at the last key."""
    pieces = RocksPieces(tmp_path)
    path = tmp_path / pieces.append(shard=0, epoch=1, name="a", data=b"x" * 5000).file
    pieces.append(shard=0, epoch=1, name="b", data=b"x" * 5000)
    table = min(path.glob("*.sst"))
    data = bytearray(table.read_bytes())
    data[10] ^= 1
    table.write_bytes(data)
    with pytest.raises(CorruptionError, match="mismatch"):
        list(pieces.pieces())
    with pytest.raises(CorruptionError, match="mismatch"):
        pieces.delete([StoredPiece(path.relative_to(tmp_path).as_posix(), "b", 0, 1, 0, 5000)])


def test_deleting_is_by_piece_and_can_be_repeated(pieces: PieceStore, tmp_path: Path) -> None:
    """The others stay; the file goes with its last piece."""
    a, b, c = (pieces.append(shard=0, epoch=1, name=name, data=name.encode() * 1000) for name in "abc")
    pieces.delete([a, b])
    pieces.delete([a])
    assert listed(pieces) == ["c"]
    assert pieces.read(c) == b"c" * 1000
    pieces.delete(list(pieces.pieces()))
    pieces.delete([a, b, c])
    assert listed(pieces) == []
    assert not (tmp_path / "store" / c.file).exists()
    with pytest.raises(CorruptionError):
        pieces.read(c)
    again = pieces.append(shard=0, epoch=1, name="d", data=b"d")
    assert pieces.read(again) == b"d"


def test_a_missing_or_short_piece_is_corruption(pieces: PieceStore) -> None:
    """With the file's name, never wrong bytes."""
    location = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 100)
    with pytest.raises(CorruptionError):
        pieces.read(replace(location, length=1 << 20))
    with pytest.raises(CorruptionError):
        pieces.read(location, 90, 20)
    with pytest.raises(CorruptionError, match="0009"):
        pieces.read(replace(location, file="pieces/0009/000001.nothing"))


def test_travels_by_its_url(pieces: PieceStore) -> None:
    """A task reopens what the driver opened."""
    location = pieces.append(shard=0, epoch=1, name="a", data=b"abc")
    copy: PieceStore = pickle.loads(pickle.dumps(pieces))
    assert copy.url == pieces.url
    assert copy.read(location) == b"abc"


@pytest.mark.slow
def test_a_reader_sees_what_was_appended_after_it_opened(pieces: PieceStore) -> None:
    """By any process: kept handles are opened again when a piece is missing."""
    first = pieces.append(shard=0, epoch=1, name="a", data=b"first")
    assert pieces.read(first) == b"first"
    code = (
        "import sys, bucket_store.pieces.open as b\n"
        "l = b.open_backend(sys.argv[1]).append(shard=0, epoch=1, name='b', data=b'second')\n"
        "print(l.file, l.offset)"
    )
    out = subprocess.run([sys.executable, "-c", code, pieces.url], check=True, capture_output=True, text=True).stdout
    file, offset = out.split()
    assert pieces.read(replace(first, file=file, name="b", offset=int(offset), length=6)) == b"second"


def test_threads_append_side_by_side(pieces: PieceStore) -> None:
    """Every piece is whole, wherever it went."""
    data = {f"p{number}": os.urandom(50_000) for number in range(8)}
    with ThreadPoolExecutor(4) as pool:
        locations = list(
            pool.map(lambda item: pieces.append(shard=0, epoch=1, name=item[0], data=item[1]), data.items())
        )
    assert [pieces.read(location) for location in locations] == list(data.values())
    assert listed(pieces) == sorted(data)


@pytest.mark.parametrize("url", ["file:", "ftp://host/path", "path", "rocksdb:"])
def test_other_urls_are_refused(url: str) -> None:
    """With what to write instead."""
    with pytest.raises(StoreError, match=r"file:PATH or rocksdb:PATH"):
        open_backend(url)


def test_objects_a_url_with_a_secret_is_refused() -> None:
    """And is not repeated."""
    with pytest.raises(StoreError, match="//BUCKET/PREFIX") as caught:
        open_backend("s3://id:secret@bucket/prefix")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["file", "objects"])
def test_a_listing_has_pieces_only(scheme: str, tmp_path: Path) -> None:
    """Other files below the root are nobody's pieces, and stay."""
    pieces = open_backend(f"{scheme}:{tmp_path}")
    location = pieces.append(shard=3, epoch=2, name="a", data=b"abc")
    assert re.fullmatch(r"pieces/0003/000002-a(~[0-9a-f]{8})?\.piece", location.file)
    for other in ("pieces/0003/note.txt", "pieces/notes/000001-a.piece", "pieces/0003/x-a.piece", "pieces/note"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"")
    assert list(pieces.pieces()) == [StoredPiece(location.file, "a", 3, 2, 0, 3)]
    pieces.delete(list(pieces.pieces()))
    assert (tmp_path / "pieces/0003/note.txt").exists()


def test_objects_a_piece_put_by_an_unclear_request_is_there(tmp_path: Path) -> None:
    """The same bytes under its name are its own; others are an error, and stay."""
    pieces = open_backend(f"objects:{tmp_path}")
    first = pieces.append(shard=0, epoch=1, name="a", data=b"abc")
    assert pieces.append(shard=0, epoch=1, name="a", data=memoryview(b"abc")) == first
    with pytest.raises(StoreError, match="exists"):
        pieces.append(shard=0, epoch=1, name="a", data=b"other")
    assert pieces.read(first) == b"abc"


@pytest.mark.parametrize("scheme", ["file", "objects"])
def test_a_piece_in_a_file_to_keep_stays(scheme: str, tmp_path: Path) -> None:
    """Whatever the epoch of the writers."""
    pieces = open_backend(f"{scheme}:{tmp_path}")
    kept, gone = (pieces.append(shard=0, epoch=epoch, name="a", data=b"abc") for epoch in (1, 2))
    assert pieces.delete([kept, gone], keep={kept.file}, writing_epoch=1) == ()
    assert [piece.file for piece in pieces.pieces()] == [kept.file]


def test_file_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a SpaceError, and the pieces are as before."""
    pieces = open_backend(f"file:{tmp_path}")
    first = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 900)
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset:
            raise OSError(28, "No space left on device")
        return real(fd, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpaceError, match="No space left"):
        pieces.append(shard=0, epoch=1, name="b", data=b"b" * 900)
    assert [path.name for path in (tmp_path / "pieces/0000").iterdir()] == [Path(first.file).name]


def test_file_a_part_that_a_dead_writer_left_is_listed_and_deleted(tmp_path: Path) -> None:
    """With the length that it has; the same name may be written again beside it."""
    pieces = open_backend(f"file:{tmp_path}")
    torn = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 900)
    os.truncate(tmp_path / torn.file, 450)
    again = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 900)
    assert sorted(piece.length for piece in pieces.pieces()) == [450, 900]
    with pytest.raises(CorruptionError, match="truncated"):
        pieces.read(torn)
    pieces.delete([piece for piece in pieces.pieces() if piece.length == 450])
    assert pieces.read(again) == b"a" * 900


_HOLD = """
import sys, time
from rocksdict import Options, Rdict
database = Rdict(sys.argv[1], Options(raw_mode=True))
print("held", flush=True)
time.sleep(60)
"""


def test_rocksdb_a_held_database_is_left_to_its_holder(tmp_path: Path) -> None:
    """After the wait a new database takes the piece; reading needs no LOCK; gc passes over it."""
    pieces = RocksPieces(tmp_path, lock_wait_s=0.1)
    first = pieces.append(shard=0, epoch=1, name="a", data=b"a")
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / first.file)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        second = pieces.append(shard=0, epoch=1, name="b", data=b"b")
        pieces.delete([first])
        assert listed(pieces) == ["a", "b"]
        assert (pieces.read(first), pieces.read(second)) == (b"a", b"b")
        holder.kill()
    assert second.file != first.file
    third = pieces.append(shard=0, epoch=1, name="c", data=b"c")
    assert third.file == first.file
    pieces.close()


def test_rocksdb_damage_in_its_files_is_corruption(tmp_path: Path) -> None:
    """RocksDB's own checksums speak first; their message becomes ours."""
    pieces = RocksPieces(tmp_path)
    location = pieces.append(shard=0, epoch=1, name="a", data=os.urandom(400_000))
    (table,) = (tmp_path / location.file).glob("*.sst")
    damaged = bytearray(table.read_bytes())
    damaged[1000] ^= 1
    table.write_bytes(bytes(damaged))
    with pytest.raises(CorruptionError, match="checksum mismatch"):
        pieces.read(location)
    pieces.close()


@pytest.fixture
def few_tables_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB's least: a handle opens two table files when it is opened, and the others when they are read."""
    monkeypatch.setattr(rocksdb_backend, "_TABLES_KEPT_OPEN", 20)


@pytest.mark.slow
@pytest.mark.usefixtures("few_tables_open")
def test_rocksdb_live_pieces_are_read_and_listed_beside_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion replaces table files of live pieces too, even between the opening of a handle and its first read."""
    pieces = RocksPieces(tmp_path)
    live = {at: pieces.append(shard=0, epoch=1, name=f"p{at:02d}", data=b"%d" % at * 500) for at in range(20)}
    file = live[0].file
    open_read_only = rocksdb_backend._open_read_only
    deletions: list[list[tuple[int, int]]] = [[(1, 3), (5, 7), (9, 11), (13, 15)], [(4, 12)], [], [(0, 16)], []]

    def overtaken(path: Path) -> Any:
        database = open_read_only(path)
        for first, last in deletions.pop(0):
            # The table files of the pieces between the two become one.
            assert pieces.delete([live.pop(first), live.pop(last)], keep={file}, writing_epoch=1) == ()
        return database

    monkeypatch.setattr(rocksdb_backend, "_open_read_only", overtaken)
    assert pieces.read(live[6]) == b"6" * 500
    assert len(deletions) == 2, "one handle was kept, and a fresh one overtaken"
    assert listed(pieces) == [each.name for each in live.values()]
    assert deletions == []
    monkeypatch.undo()
    assert [pieces.read(each) for each in live.values()] == [b"%d" % at * 500 for at in live]


@pytest.mark.slow
@pytest.mark.usefixtures("few_tables_open")
@pytest.mark.parametrize("is_kept", [False, True])
def test_rocksdb_a_missing_table_file_is_corruption(tmp_path: Path, is_kept: bool) -> None:
    """Of a handle that was opened before too: no fresh one finds the file."""
    pieces = RocksPieces(tmp_path)
    locations = [pieces.append(shard=0, epoch=1, name=f"p{at:02d}", data=b"x" * 500) for at in range(20)]
    if is_kept:
        assert pieces.read(locations[0]) == b"x" * 500
    sorted((tmp_path / locations[0].file).glob("*.sst"))[10].unlink()
    with pytest.raises(CorruptionError, match=r"(?s)No such file.*expected a sound database, found what RocksDB says"):
        pieces.read(locations[10])
    with pytest.raises(CorruptionError, match=r"(?s)No such file.*expected a sound database, found what RocksDB says"):
        list(pieces.pieces())


def test_rocksdb_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    """A table file that was not ingested, and a database whose deletion was cut short."""
    pieces = RocksPieces(tmp_path)
    location = pieces.append(shard=0, epoch=1, name="a", data=b"a")
    database = tmp_path / location.file
    orphan = database / "dead.ingest"
    orphan.write_bytes(b"half")
    doomed = database.with_name("000001.rocksdb.gone-00000000")
    doomed.mkdir()
    pieces.append(shard=0, epoch=1, name="b", data=b"b")
    pieces.delete([])
    assert not orphan.exists()
    assert not doomed.exists()
    assert listed(pieces) == ["a", "b"]


def test_rocksdb_deleting_gives_the_space_back(tmp_path: Path) -> None:
    """Though the database lives on."""
    pieces = RocksPieces(tmp_path)
    locations = [pieces.append(shard=0, epoch=1, name=f"p{at}", data=os.urandom(1 << 20)) for at in range(4)]

    def size() -> int:
        return sum(path.stat().st_size for path in (tmp_path / locations[0].file).iterdir())

    before = size()
    pieces.delete(locations[:3])
    assert size() < before / 2
    assert len(pieces.read(locations[3])) == 1 << 20


def test_a_held_file_is_given_back(databases: PieceStore, tmp_path: Path) -> None:
    """So that its pieces are asked for again; those of other files are gone."""
    held, free = (databases.append(shard=shard, epoch=1, name=f"p{shard}", data=b"x" * 500) for shard in (0, 1))
    path = tmp_path / "store" / held.file
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert databases.delete([held, free], writing_epoch=1) == (held,)
        assert listed(databases) == ["p0"]
        holder.kill()
    assert databases.delete([held, free], writing_epoch=1) == ()
    assert listed(databases) == []


def test_beside_writers_a_file_goes_only_when_it_gets_no_more_pieces(databases: PieceStore, tmp_path: Path) -> None:
    """Of the writers' epoch the one that the next piece goes to stays, and of later epochs all do."""
    mine, old, later = (
        databases.append(shard=0, epoch=epoch, name=f"e{epoch}", data=b"x" * 500) for epoch in (2, 1, 3)
    )
    databases.delete([mine, old, later], writing_epoch=2)
    assert listed(databases) == []
    assert [(tmp_path / "store" / each.file).exists() for each in (mine, old, later)] == [True, False, True]
    again = databases.append(shard=0, epoch=2, name="f", data=b"f")
    assert again.file == mine.file
    databases.delete([again], writing_epoch=3)
    assert not (tmp_path / "store" / mine.file).exists()


def test_rocksdb_a_database_gets_so_many_pieces_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many an owner writes, each is there; every database that is opened is bounded."""
    monkeypatch.setattr(rocksdb_backend, "_MOST_TABLES", 3)
    pieces = open_backend(f"rocksdb:{tmp_path}")
    locations = [pieces.append(shard=0, epoch=1, name=f"p{number}", data=b"%d" % number) for number in range(8)]
    names = ["000001", "000001-0001", "000001-0002"]
    assert [Path(each.file).stem for each in locations] == [names[0]] * 3 + [names[1]] * 3 + [names[2]] * 2
    assert [pieces.read(each) for each in locations] == [b"%d" % number for number in range(8)]
    assert {(each.file, each.name, each.epoch) for each in pieces.pieces()} == {
        (each.file, each.name, 1) for each in locations
    }
    another = pieces.append(shard=0, epoch=2, name="q", data=b"q")
    assert Path(another.file).stem == "000002"


def test_rocksdb_full_databases_of_the_writers_epoch_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the one that the next piece goes to; one that has lost all its pieces gets the next ones."""
    monkeypatch.setattr(rocksdb_backend, "_MOST_TABLES", 2)
    pieces = open_backend(f"rocksdb:{tmp_path}")
    locations = [pieces.append(shard=0, epoch=1, name=f"p{number}", data=b"x" * 600) for number in range(6)]
    pieces.delete(locations[:3], keep={locations[3].file}, writing_epoch=1)
    databases = tmp_path / "pieces" / "0000"
    assert sorted(path.name for path in databases.iterdir()) == ["000001-0001.rocksdb", "000001-0002.rocksdb"]
    pieces.delete(locations[3:], writing_epoch=1)
    assert [path.name for path in databases.iterdir()] == ["000001-0002.rocksdb"]
    again = pieces.append(shard=0, epoch=1, name="again", data=b"again")
    assert Path(again.file).name == "000001-0002.rocksdb"
    assert pieces.read(again) == b"again"


def test_rocksdb_a_piece_that_comes_to_an_emptied_database_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer gets LOCK between the look that found it empty and its removal."""
    pieces = RocksPieces(tmp_path)
    old = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 500)
    new: list[PieceLocation] = []

    def overtaken(path: Path) -> None:
        monkeypatch.undo()
        new.append(pieces.append(shard=0, epoch=1, name="b", data=b"b" * 500))

    monkeypatch.setattr(rocksdb_backend, "_forget_reader", overtaken)
    pieces.delete([old])
    assert new[0].file == old.file
    assert pieces.read(new[0]) == b"b" * 500


@pytest.mark.slow
def test_rocksdb_no_writer_waits_for_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compacting may take a second: a piece goes to a new database at once, however long it might wait for LOCK."""
    pieces = RocksPieces(tmp_path, lock_wait_s=600.0)
    old = pieces.append(shard=0, epoch=1, name="a", data=b"a" * 500)
    new: list[PieceLocation] = []
    delete_pieces = rocksdb_backend._delete_pieces

    def beside(database: Any, lengths: dict[str, int]) -> None:
        code = "import sys, bucket_store.pieces.rocksdb_backend as r; " + (
            "print(r.RocksPieces(sys.argv[1], lock_wait_s=600.0).append(shard=0, epoch=1, name='b', data=b'b').file)"
        )
        out = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True, timeout=300
        )
        new.append(PieceLocation(out.stdout.strip(), "b", 0, 1))
        new.append(pieces.append(shard=0, epoch=1, name="c", data=b"c"))
        delete_pieces(database, lengths)

    monkeypatch.setattr(rocksdb_backend, "_delete_pieces", beside)
    assert pieces.delete([old], writing_epoch=1) == ()
    assert len({old.file, *(each.file for each in new)}) == 3
    assert [pieces.read(each) for each in new] == [b"b", b"c"]
    # The sign of a deleter that died misleads nobody who gets LOCK.
    (tmp_path / old.file / "DELETING").touch()
    assert pieces.append(shard=0, epoch=1, name="d", data=b"d").file == old.file
    assert not (tmp_path / old.file / "DELETING").exists()


_APPEND = """
import sys
from bucket_store.pieces.rocksdb_backend import RocksPieces
print(RocksPieces(sys.argv[1], lock_wait_s=0.0).append(shard=0, epoch=1, name="z", data=b"z").file)
"""


@pytest.mark.slow
def test_rocksdb_a_kept_database_is_another_process_own_after_it_is_closed(tmp_path: Path) -> None:
    """Until then its pieces are read by all, and other processes' pieces go elsewhere; a deletion is to be repeated."""

    def by_another(code: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.strip()

    pieces = RocksPieces(tmp_path)
    locations = [
        pieces.append(shard=0, epoch=1, name=f"p{at}", data=b"%d" % at * 500, stays_open=True) for at in range(3)
    ]
    assert len({each.file for each in locations}) == 1
    assert [pieces.read(each) for each in locations] == [b"%d" % at * 500 for at in range(3)]
    names = "from bucket_store.pieces.rocksdb_backend import RocksPieces; import sys; p = RocksPieces(sys.argv[1]); "
    assert by_another(names + "print(*sorted(each.name for each in p.pieces()))") == "p0 p1 p2"
    delete = names + "each = min(p.pieces(), key=lambda each: each.name); print(len(p.delete([each], writing_epoch=1)))"
    assert by_another(delete) == "1"
    assert by_another(_APPEND) != locations[0].file

    pieces.close_writers()
    assert by_another(delete) == "0"
    assert by_another(_APPEND) == locations[0].file
    again = pieces.append(shard=0, epoch=1, name="again", data=b"again", stays_open=True)
    assert again.file == locations[0].file
    assert listed(pieces) == ["again", "p1", "p2", "z", "z"]
    assert pieces.delete([*locations, again]) == ()
    assert listed(pieces) == ["z", "z"]
    pieces.close_writers()


def test_rocksdb_a_piece_of_a_kept_database_is_read_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened for it; one that is missing there, or in another database, is looked for as ever."""
    pieces = RocksPieces(tmp_path)
    here = pieces.append(shard=0, epoch=1, name="here", data=b"h" * 9000, stays_open=True)
    elsewhere = pieces.append(shard=1, epoch=1, name="elsewhere", data=b"e")
    opened: list[Path] = []
    open_read_only = rocksdb_backend._open_read_only

    def opening(path: Path) -> Any:
        opened.append(path)
        return open_read_only(path)

    monkeypatch.setattr(rocksdb_backend, "_open_read_only", opening)
    assert (pieces.read(here), pieces.read(here, 10, 20), opened) == (b"h" * 9000, b"h" * 20, [])
    assert pieces.read(elsewhere) == b"e"
    assert opened == [tmp_path / elsewhere.file]
    with pytest.raises(CorruptionError):
        pieces.read(replace(here, name="missing"))
    pieces.close_writers()
    assert pieces.read(here) == b"h" * 9000


def test_rocksdb_a_kept_database_is_left_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for another epoch: one database a shard is kept."""
    monkeypatch.setattr(rocksdb_backend, "_MOST_TABLES", 3)
    pieces = RocksPieces(tmp_path)
    for epoch, shard, number in ((1, 0, 7), (2, 0, 2), (2, 1, 2)):
        for at in range(number):
            name = f"e{epoch}s{shard}p{at}"
            location = pieces.append(shard=shard, epoch=epoch, name=name, data=name.encode(), stays_open=True)
            assert pieces.read(location) == name.encode()
    assert len(listed(pieces)) == 11
    databases = sorted(path.name for path in (tmp_path / "pieces" / "0000").iterdir())
    assert databases == ["000001-0001.rocksdb", "000001-0002.rocksdb", "000001.rocksdb", "000002.rocksdb"]
    kept = sorted(path.relative_to(tmp_path / "pieces").as_posix() for path, _ in rocksdb_backend._kept.values())
    assert kept == ["0000/000002.rocksdb", "0001/000002.rocksdb"]
    pieces.close_writers()
    assert not rocksdb_backend._kept
    assert not rocksdb_backend._writing


def test_rocksdb_a_kept_database_is_opened_anew_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB takes no more pieces after a failed write, of a full disk say, until it is opened again."""
    pieces = RocksPieces(tmp_path)
    first = pieces.append(shard=0, epoch=1, name="a", data=b"a", stays_open=True)
    ingest = rocksdb_backend._ingest

    def fails(*args: Any) -> None:
        ingest(*args)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rocksdb_backend, "_ingest", fails)
    with pytest.raises(SpaceError):
        pieces.append(shard=0, epoch=1, name="b", data=b"b", stays_open=True)
    assert not rocksdb_backend._kept
    monkeypatch.undo()
    third = pieces.append(shard=0, epoch=1, name="c", data=b"c", stays_open=True)
    assert (pieces.read(first), pieces.read(third), third.file) == (b"a", b"c", first.file)
    pieces.close_writers()


def test_rocksdb_threads_share_a_kept_database(tmp_path: Path) -> None:
    """One at a time."""
    pieces = RocksPieces(tmp_path)
    data = {f"p{number}": os.urandom(5_000) for number in range(40)}
    with ThreadPoolExecutor(4) as pool:
        locations = list(
            pool.map(
                lambda item: pieces.append(shard=0, epoch=1, name=item[0], data=item[1], stays_open=True), data.items()
            )
        )
    assert [pieces.read(location) for location in locations] == list(data.values())
    assert listed(pieces) == sorted(data)
    pieces.close_writers()
