"""The disk that the crash tests stand on: it forgets what was not synced, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucket_store.filesystem import LOCAL, FileSystem, listed, place_new, remove_tree, replace_whole, write_at
from tests.faults.crash_disk import Disk, Killed, Machine, cut, fingerprint, unsynced

A, B = Path("/a"), Path("/b")
SEEDS = range(200)


def machine() -> Machine:
    """A machine at a disk with two durable directories."""
    made = Machine(Disk())
    for directory in (A, B):
        made.mkdir(directory)
    made.fsync_dir(Path("/"))
    return made


def left(made: Machine, seed: int) -> dict[str, bytes]:
    """The files after a cut."""
    return cut(made.disk.nodes, seed).files()


def test_bytes_and_names_are_durable_each_by_its_own_sync() -> None:
    """A synced file without a name is lost; a synced name without bytes is an empty or torn file."""
    made = machine()
    made.write_file(A / "data", b"12345", sync=True)
    made.write_file(B / "name", b"12345", sync=False)
    made.fsync_dir(B)
    assert left(made, 0) == {"/b/name": b""}
    assert left(made, 1) == {"/a/data": b"12345", "/b/name": b"12345"}
    place_new(made, A / "both", b"12345")
    assert all(left(made, seed)["/a/both"] == b"12345" for seed in SEEDS)
    assert {len(left(made, seed)["/b/name"].rstrip(b"\0")) for seed in SEEDS} == {0, 1, 2, 3, 4, 5}
    assert any(left(made, seed)["/b/name"].startswith(b"\0") for seed in SEEDS), "torn from its beginning"


def test_an_overwrite_is_torn_at_any_byte() -> None:
    """And an appended piece beside it in the same file independently."""
    made = machine()
    place_new(made, A / "f", b"--------")
    made.fsync_dir(A)
    with made.open(A / "f", write=True) as file:
        write_at(file, b"++++", 2)
        write_at(file, b"tail", 8)
    found = {left(made, seed)["/a/f"] for seed in range(1000)}
    assert {b"--------", b"--++++--tail", b"--++----", b"----++--"} <= found
    assert all(data[:2] == b"--" and data[6:8] == b"--" for data in found)
    with made.open(A / "f") as file:
        file.sync()
    assert {left(made, seed)["/a/f"] for seed in SEEDS} == {b"--++++--tail"}


def test_names_are_kept_in_any_selection() -> None:
    """Of three creations in one directory every subset may be left."""
    made = machine()
    for name in "xyz":
        made.write_file(A / name, b"", sync=True)
    found = {frozenset(Path(path).name for path in left(made, seed)) for seed in SEEDS}
    assert len(found) == 8


def test_a_rename_is_whole_or_not_at_all() -> None:
    """Between two directories too, and it is as durable as either of their syncs makes it."""
    for synced in (None, A, B):
        made = machine()
        place_new(made, A / "f", b"1")
        made.fsync_dir(A)
        made.replace(A / "f", B / "f")
        if synced is not None:
            made.fsync_dir(synced)
        found = {tuple(left(made, seed)) for seed in SEEDS}
        assert found == ({("/a/f",), ("/b/f",)} if synced is None else {("/b/f",)})


def test_a_lost_directory_takes_all_below_it() -> None:
    """However well that was synced."""
    made = machine()
    made.mkdir(A / "new")
    place_new(made, A / "new" / "f", b"1")
    assert left(made, 0) == {}
    made.fsync_dir(A)
    assert left(made, 0)["/a/new/f"] == b"1"


def test_what_was_removed_may_come_back() -> None:
    """Until its directory is synced."""
    made = machine()
    place_new(made, A / "f", b"1")
    made.fsync_dir(A)
    made.remove(A / "f")
    assert made.disk.files() == {}
    assert left(made, 0) == {"/a/f": b"1"}
    made.fsync_dir(A)
    assert left(made, 0) == {}
    assert unsynced(made.disk.nodes) == 0


def test_a_dead_process_writes_nothing_and_holds_no_lock() -> None:
    """Not even in its clean-up; a second process goes on at the same disk."""
    made = machine()
    other = Machine(made.disk)
    file = made.open(A / "f", create=True)
    with other.open(A / "f") as second:
        assert file.try_lock()
        assert not second.try_lock()
        made.step = lambda name, path: made.kill()
        with pytest.raises(Killed):
            replace_whole(made, A / "g", b"1")
        assert second.try_lock()
    assert listed(other, A) == ["f"]
    with pytest.raises(Killed):
        made.exists(A)


def test_a_moment_is_kept_as_it_was() -> None:
    """Later operations change nothing of it."""
    made = machine()
    made.disk.is_kept = True
    made.write_file(A / "f", b"1", sync=True)
    first = made.disk.moments[-1]
    before = fingerprint(first)
    made.fsync_dir(A)
    made.remove(A / "f")
    assert fingerprint(first) == before
    assert Disk(dict(first)).files() == {"/a/f": b"1"}
    assert len(made.disk.moments) == len(made.disk.operations) == 5


@pytest.mark.parametrize("kind", ["local", "crash"])
def test_it_behaves_as_the_machines_own_file_system(kind: str, tmp_path: Path) -> None:
    """The same calls, the same results and the same errors, so that what runs on one runs on the other."""
    fs: FileSystem = LOCAL
    if kind == "crash":
        fs = Machine(Disk())
        for directory in (*reversed(tmp_path.parents), tmp_path):
            if directory != Path("/"):
                fs.mkdir(directory)
    d, f, absent = tmp_path / "d", tmp_path / "f", tmp_path / "absent"
    fs.mkdir(d)
    fs.mkdir(d)
    fs.write_file(f, b"12345", sync=True)
    for error, call in (
        (FileExistsError, lambda: fs.write_file(f, b"", sync=False)),
        (FileExistsError, lambda: fs.link(f, f)),
        (FileNotFoundError, lambda: fs.link(absent, tmp_path / "g")),
        (FileNotFoundError, lambda: fs.replace(absent, f)),
        (FileNotFoundError, lambda: fs.replace(f, absent / "f")),
        (FileNotFoundError, lambda: fs.read(absent)),
        (FileNotFoundError, lambda: fs.open(absent, write=True)),
        (FileNotFoundError, lambda: fs.open(absent / "f", create=True)),
        (FileNotFoundError, lambda: fs.listdir(absent)),
        (NotADirectoryError, lambda: fs.listdir(f)),
        (FileNotFoundError, lambda: fs.fsync_dir(absent)),
        (FileNotFoundError, lambda: fs.mkdir(absent / "d")),
        (FileNotFoundError, lambda: fs.modified_us(absent)),
    ):
        with pytest.raises(error):
            call()
    fs.remove(absent)
    fs.remove(absent / "f")
    fs.rmdir(absent)
    fs.link(f, d / "g")
    with fs.open(f) as file, fs.open(d / "g", write=True) as other:
        assert file.size() == 5
        write_at(other, b"ab", 7)
        assert file.pread(100, 3) == b"45\0\0ab"
        assert file.pread(9, 9) == b""
        with pytest.raises(OSError, match=r"Bad file|reading"):
            file.pwrite(b"x", 0)
        fs.remove(f)
        assert file.pread(2, 0) == b"12"
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(d)
    fs.replace(d / "g", tmp_path / "h")
    assert (listed(fs, d), listed(fs, tmp_path), fs.exists(f)) == ([], ["d", "h"], False)
    assert (fs.is_dir(d), fs.is_dir(tmp_path / "h"), fs.is_dir(absent)) == (True, False, False)
    fs.mkdir(d / "e")
    fs.write_file(d / "e" / "x", b"", sync=False)
    remove_tree(fs, d)
    assert listed(fs, tmp_path) == ["h"]
